"""``manage.py parked``."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import psycopg
from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import DatabaseError

from enode_django.eventing.parking import Parked, list_parked
from enode_django.eventing.registry import subscribers
from enode_django.eventing.subscribers import checkpoint_database
from enode_django.eventing.unparking import retry_parked, skip_parked
from enode_django.exceptions import EnodeError
from enode_django.runtime import close_bus, follower_of

HEADINGS = ("subscriber", "aggregate", "parked at", "attempts", "last failed", "next try", "error")


class Command(BaseCommand):
    help = "Lists what subscribers have parked, tries it again, or skips the event that an aggregate is parked at."

    def add_arguments(self, parser: CommandParser) -> None:
        actions = parser.add_subparsers(dest="action", required=True)
        listing = actions.add_parser("list", help="show what is parked")
        listing.add_argument("--json", action="store_true", help="one JSON object a line, with tracebacks")
        retrying = actions.add_parser("retry", help="try again, and catch up from the store")
        retrying.add_argument("--all", action="store_true", help="everything that is parked")
        skipping = actions.add_parser("skip", help="leave out the event that an aggregate is parked at, and go on")
        for action in (listing, retrying):
            action.add_argument("--subscriber", default="", help="only what this subscriber has parked")
            action.add_argument("aggregates", nargs="*", metavar="aggregate", help="ids of parked aggregates")
        skipping.add_argument("--subscriber", required=True, help="the subscriber that is to do without the event")
        skipping.add_argument("aggregates", nargs="+", metavar="aggregate", help="ids of parked aggregates")

    def handle(self, *, action: str, aggregates: Sequence[str], subscriber: str, **options: Any) -> None:
        with _errors_shown(), _bus_closed():
            rows = _parked(subscriber, aggregates)
            if action == "list":
                self._list(rows, options["json"])
            elif aggregates or options.get("all"):
                self._settle(rows, action, aggregates)
            else:
                raise CommandError("name the aggregates to retry, or say --all; manage.py parked list shows them")

    def _list(self, rows: Sequence[Parked], as_json: bool) -> None:
        if as_json:
            for row in rows:
                self.stdout.write(json.dumps(row._asdict(), default=str))
            return
        table = [HEADINGS, *(_shown(row) for row in rows)]
        widths = [max(len(line[column]) for line in table) for column in range(len(HEADINGS))]
        for line in table if rows else []:
            self.stdout.write("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())
        self.stdout.write(f"{len(rows)} parked")

    def _settle(self, rows: Sequence[Parked], action: str, aggregates: Sequence[str]) -> None:
        missing = sorted(set(aggregates) - {row.aggregate_root_id for row in rows})
        if missing:
            raise CommandError(f"not parked: {', '.join(missing)}; manage.py parked list shows what is")
        keys = list(dict.fromkeys((row.subscriber, row.aggregate_root_id) for row in rows))
        still = sum(self._settle_one(name, id, action) is not None for name, id in keys)
        self.stdout.write(f"{len(keys) - still} go on, {still} parked")
        if still:
            raise SystemExit(1)

    def _settle_one(self, name: str, aggregate_root_id: str, action: str) -> Parked | None:
        settle = retry_parked if action == "retry" else skip_parked
        with follower_of(name) as follower:
            parked = settle(follower, aggregate_root_id)
        if parked is None:
            self.stdout.write(f"{name}: {aggregate_root_id} goes on")
        else:
            where = _place(parked)
            self.stdout.write(
                self.style.WARNING(f"{name}: {aggregate_root_id} is parked at {where}: {parked.error_type}")
            )
        return parked


@contextmanager
def _bus_closed() -> Iterator[None]:
    """Process managers send their commands through this process's bus."""
    try:
        yield
    finally:
        close_bus()


@contextmanager
def _errors_shown() -> Iterator[None]:
    try:
        yield
    except EnodeError as error:
        raise CommandError(str(error)) from error
    except (DatabaseError, psycopg.Error) as error:
        raise CommandError(f"{error}; was manage.py migrate run?") from error


def _parked(subscriber: str, aggregates: Sequence[str]) -> list[Parked]:
    """Also those of subscribers that this code does not have any more."""
    if subscriber:
        aliases = {subscribers.get(subscriber).database}
    else:
        aliases = {checkpoint_database(), *(one.database for one in subscribers.all())}
    rows = [row for alias in sorted(aliases) for row in list_parked(alias, subscriber)]
    return [row for row in rows if not aggregates or row.aggregate_root_id in aggregates]


def _shown(row: Parked) -> tuple[str, ...]:
    failed = row.last_failed_at.isoformat(" ", "seconds")
    due = row.next_try_at.isoformat(" ", "seconds") if row.next_try_at else ""
    last_line = row.error.strip().splitlines()[-1] if row.error.strip() else row.error_type
    return (row.subscriber, row.aggregate_root_id, _place(row), str(row.attempts), failed, due, last_line[:100])


def _place(row: Parked) -> str:
    if row.version is not None:
        return f"version {row.version}"
    return f"refusal {row.command_id}" if row.attempts else "waits"
