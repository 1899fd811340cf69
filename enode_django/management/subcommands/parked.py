"""``manage.py enode parked``."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import Any

from django.core.management.base import CommandError, CommandParser

from enode_django.eventing.parking import Parked
from enode_django.eventing.registry import subscribers
from enode_django.eventing.unparking import retry_parked, skip_parked
from enode_django.exceptions import NotParked, UnknownSubscriber, printable
from enode_django.jobs.error_texts import in_one_line
from enode_django.management.auditing import add_reason, audited, user_name
from enode_django.management.errors import errors_shown
from enode_django.management.output import PrintableCommand, printable_json
from enode_django.management.tables import Row, write_table
from enode_django.models import ParkedEvent
from enode_django.operating.correcting import Retried, handled_before, parked_rows, parked_version, retry_all
from enode_django.operating.corrections import correct, editable, json_of, take_back
from enode_django.runtime import close_bus, make_store, subscription_of


class Command(PrintableCommand):
    help = "Lists parked aggregates, tries them again, skips the events that they are parked at, or corrects these."

    def add_arguments(self, parser: CommandParser) -> None:
        actions = parser.add_subparsers(dest="action", required=True)
        listing = actions.add_parser("list", help="show the parked aggregates")
        listing.add_argument("--json", action="store_true", help="write one JSON object a line, with tracebacks")
        retrying = actions.add_parser("retry", help="try the event again, and catch up from the store")
        retrying.add_argument("--all", action="store_true", help="all parked aggregates, or all of the subscriber")
        skipping = actions.add_parser("skip", help="leave out the event that an aggregate is parked at, and go on")
        for action in (listing, retrying):
            action.add_argument("--subscriber", default="", help="only aggregates that this subscriber has parked")
            action.add_argument("aggregates", nargs="*", metavar="aggregate", help="ids of parked aggregates")
        for action in (retrying, skipping):
            add_reason(action)
        who = skipping.add_mutually_exclusive_group(required=True)
        who.add_argument("--subscriber", default="", help="the subscriber that leaves out the event")
        who.add_argument("--all-subscribers", action="store_true", help="all subscribers that have parked an aggregate")
        skipping.add_argument("aggregates", nargs="+", metavar="aggregate", help="ids of parked aggregates")
        showing = actions.add_parser("show", help="print the events that an aggregate is parked at as JSON, for edit")
        editing = actions.add_parser("edit", help="correct the events, and try again")
        for action in (showing, editing):
            action.add_argument("--subscriber", default="", help="the subscriber that has parked the aggregate")
            action.add_argument(
                "--at", type=int, metavar="VERSION", help="this version, instead of the one that it is parked at"
            )
            action.add_argument("aggregates", nargs=1, metavar="aggregate", help="the id of the aggregate")
        source = editing.add_mutually_exclusive_group(required=True)
        source.add_argument("--file", help="a file with the corrected JSON of show; - is the standard input")
        source.add_argument("--original", action="store_true", help="take corrections back: the original counts again")
        editing.add_argument("--reason", required=True, help="why; stored with the correction")
        editing.add_argument("--by", default="", help="the author (default: the user of the system)")

    def handle(self, *, action: str, aggregates: Sequence[str], subscriber: str, **options: Any) -> None:
        with errors_shown(), ExitStack() as stack:
            stack.callback(close_bus)  # process managers send their commands through it
            rows = [row for row in parked_rows(subscriber) if not aggregates or row.aggregate_root_id in aggregates]
            if action == "list":
                self._list(rows, options["json"])
            elif action in ("show", "edit"):
                id = aggregates[0]
                version = parked_version(rows, id) if options["at"] is None else options["at"]
                self._edit(id, version, options) if action == "edit" else self._show(id, version)
            elif aggregates or options.get("all"):
                self._settle(rows, action, aggregates, options["reason"])
            else:
                raise CommandError("name the aggregates to retry, or say --all; manage.py enode parked list shows them")

    def _list(self, rows: Sequence[Parked], as_json: bool) -> None:
        if as_json:
            for row in rows:
                named = row._replace(subscriber=subscribers.name_of(row.subscriber))
                self.stdout.write(json.dumps(named._asdict(), default=str))
            return
        write_table(self.stdout, list(map(_shown, rows)))
        self.stdout.write(f"{len(rows)} parked")

    def _settle(self, rows: Sequence[Parked], action: str, aggregates: Sequence[str], reason: str) -> None:
        missing = sorted(set(aggregates) - {row.aggregate_root_id for row in rows})
        if missing:
            raise CommandError(
                f"not parked: {', '.join(map(printable, missing))}; manage.py enode parked list shows what is"
            )
        keys = list(dict.fromkeys((row.subscriber, row.aggregate_root_id) for row in rows))
        still = sum(not self._settle_one(key, id, action, reason) for key, id in keys)
        self.stdout.write(f"{len(keys) - still} go on, {still} parked")
        if still:
            raise SystemExit(1)

    def _settle_one(self, key: str, aggregate_root_id: str, action: str, reason: str) -> bool:
        """Return True if the aggregate goes on."""
        name = subscribers.name_of(key)
        settle = retry_parked if action == "retry" else skip_parked
        why, kind = "", ""
        try:
            with subscription_of(key) as subscription, _audited(action, aggregate_root_id, reason) as details:
                parked = settle(subscription, aggregate_root_id)
                if parked is not None:
                    why = f"is parked at {_place(parked)}: {_error(parked)}"
                    # The audit trail has no values of events.
                    kind = f"is parked at {_place(parked)}: {parked.error_type}"
                details.append(f"{name}: {aggregate_root_id} {kind or 'goes on'}")
        except UnknownSubscriber:  # go on with the other subscribers
            why = f"stays parked: the code has no such subscriber; manage.py enode forgetsubscriber {name} forgets it"
        except NotParked:  # a worker was faster
            pass
        if why:
            self.stdout.write(f"{name}: {printable(aggregate_root_id)} {why}", self.style.WARNING)
        else:
            self.stdout.write(f"{name}: {printable(aggregate_root_id)} goes on")
        return not why

    def _show(self, id: str, version: int) -> None:
        """Print JSON for `_edit`."""
        shown = editable(make_store(), id, version)
        given = {"aggregate_root_id": id, "version": version, "correction": shown.last, "events": shown.events}
        self.stdout.write(printable_json(given))

    def _edit(self, id: str, version: int, options: Mapping[str, Any]) -> None:
        store, by, why = make_store(), options["by"] or user_name(), options["reason"]
        before = handled_before(id, version)
        if options["original"]:
            last = editable(store, id, version).last
            with _audited("correct", id, why) as details:
                made = take_back(store, id, version, by=by, reason=why, last=last)
                details.append(f"{by} took the correction of version {version} back")
        else:
            last, events = _read(options["file"], id, version)
            with _audited("correct", id, why) as details:
                made = correct(store, id, version, events, by=by, reason=why, last=last)
                details.append(f"{by} corrected version {version} by correction {made.number}")
        what = "it was stored" if made.events is None else "corrected"
        self.stdout.write(f"correction {made.number}: version {version} of {printable(id)} is read as {what}")
        for text in before:
            self.stdout.write(text, self.style.WARNING)
        self._say_retried(list(retry_all(id)))

    def _say_retried(self, retried: Sequence[Retried]) -> None:
        for one in retried:
            if one.parked is None and not one.error:
                self.stdout.write(f"{one.subscriber} goes on")
            else:
                why = f"parked at {_place(one.parked)}: {_error(one.parked)}" if one.parked else one.error
                self.stdout.write(f"{one.subscriber} does not go on: {why}", self.style.WARNING)
        if any(one.parked is not None or one.error for one in retried):
            raise SystemExit(1)


def _audited(action: str, aggregate_root_id: str, reason: str) -> AbstractContextManager[list[str]]:
    return audited(action, ParkedEvent._meta.label_lower, aggregate_root_id, reason=reason)


def _read(path: str, id: str, version: int) -> tuple[int, Any]:
    """Return the number of the newest correction that the JSON's author saw, and the events. Raises `CommandError`."""
    try:
        given = json_of(sys.stdin.buffer.read() if path == "-" else Path(path).read_bytes())
    except OSError as error:
        raise CommandError(f"{path} cannot be read: {error}") from error
    if type(given) is not dict or given.keys() != {"aggregate_root_id", "version", "correction", "events"}:
        raise CommandError("give the JSON that manage.py enode parked show prints, with corrected fields of the events")
    if (given["aggregate_root_id"], given["version"]) != (id, version):
        raise CommandError(
            f"the JSON is of version {given['version']!r} of {given['aggregate_root_id']!r}; "
            f"give that of version {version} of {id!r}"
        )
    if type(given["correction"]) is not int:
        raise CommandError(f"the JSON has correction {given['correction']!r}, which must be a number")
    return given["correction"], given["events"]


def _shown(row: Parked) -> Row:
    return {
        "subscriber": subscribers.name_of(row.subscriber),
        "aggregate": row.aggregate_root_id,
        "parked at": _place(row),
        "attempts": row.attempts,
        "last failed": row.last_failed_at,
        "next try": row.next_try_at,
        "error": _error(row),
    }


def _error(row: Parked) -> str:
    return (in_one_line(row.error) or row.error_type)[:100]


def _place(row: Parked) -> str:
    if row.version is not None:
        return f"version {row.version}"
    return f"refusal {printable(row.command_id)}" if row.attempts else "waits"
