"""``manage.py buildsnapshots``."""

from __future__ import annotations

import time
from argparse import ArgumentTypeError
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import DatabaseError

from enode_django.domain.aggregate import AggregateRoot
from enode_django.eventing.snapshot_building import Compared, Due, build
from enode_django.eventing.snapshot_building import verify as compare
from enode_django.exceptions import EnodeError, UnknownMessageType
from enode_django.runtime import make_snapshots, make_store
from enode_django.serialization.registry import types
from enode_django.snapshots import policy

TELL_EVERY = 5.0
"""Seconds."""


class Command(BaseCommand):
    help = "Makes the snapshots that are due, of everything that is stored, or holds some of them against the events."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument(
            "--type", action="append", metavar="TYPE", help="only aggregates of this type; may be given several times"
        )
        parser.add_argument("--dry-run", action="store_true", help="say what is due, and make nothing")
        parser.add_argument(
            "--verify", type=_count, metavar="SAMPLE", help="replay so many random aggregates and compare; make nothing"
        )

    def handle(self, *, type: Sequence[str] | None, dry_run: bool, verify: int | None, **options: Any) -> None:
        try:
            store = make_store()
            snapshots = make_snapshots(store)
            if snapshots is None:
                raise CommandError("snapshots are switched off: by SNAPSHOTS['ENABLED'], or by all classes")
            classes = [_class(name) for name in type] if type else None
            if verify is not None:
                self._verify(compare(store, snapshots, verify, classes))
            else:
                self._build(build(store, snapshots, classes, dry_run=dry_run), "due" if dry_run else "made")
        except (EnodeError, DatabaseError) as error:
            raise CommandError(str(error)) from error

    def _build(self, told: Iterable[Due], what: str) -> None:
        made: Counter[str] = Counter()
        seen: set[str] = set()
        failed: set[str] = set()
        next_line = time.monotonic() + TELL_EVERY
        for one in told:
            if one.failure:
                if one.aggregate_root_id not in failed:
                    failed.add(one.aggregate_root_id)
                    self.stderr.write(f"{one.aggregate_root_type} {one.aggregate_root_id!r}: {one.failure}")
            elif what != "due" or one.aggregate_root_id not in seen:
                if what == "due":
                    seen.add(one.aggregate_root_id)
                made[one.aggregate_root_type] += 1
            if time.monotonic() >= next_line:
                self.stdout.write(f"{made.total()} snapshots {what} so far")
                next_line = time.monotonic() + TELL_EVERY
        for name, count in sorted(made.items()):
            self.stdout.write(f"{name}: {count} snapshots {what}")
        self.stdout.write(f"{made.total()} snapshots {what}, {len(failed)} aggregates failed")
        if failed:
            raise SystemExit(1)

    def _verify(self, compared: Iterable[Compared]) -> None:
        same, foreign, wrong = 0, 0, 0
        for one in compared:
            if one.is_foreign:
                foreign += 1
            elif one.problem:
                wrong += 1
                id, name, version = one.snapshot[:3]
                self.stdout.write(self.style.ERROR(f"{name} {id!r} at version {version}: {one.problem}"))
            else:
                same += 1
        self.stdout.write(f"{same} snapshots are as replayed, {wrong} differ, {foreign} were made by other code")
        if wrong:
            raise SystemExit(1)


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise ArgumentTypeError(f"{text!r} is no number of snapshots above 0")
    return int(text)


def _class(name: str) -> type[AggregateRoot]:
    try:
        cls = types.class_of(AggregateRoot, name)
    except UnknownMessageType as error:
        raise CommandError(str(error)) from error
    if not policy.is_on(cls):
        raise CommandError(f"{name} has no snapshots: its class says snapshot_every = {cls.snapshot_every!r}")
    return cls
