"""``manage.py enode rehearse``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Any

from django.core.management.base import CommandError, CommandParser

from enode_django.domain.aggregate import AggregateRoot
from enode_django.domain.declarations import aliases_of
from enode_django.exceptions import UnknownMessageType, shown
from enode_django.history.differences import Change
from enode_django.history.rehearsal import Rehearsed, rehearse
from enode_django.management.arguments import above_0
from enode_django.management.errors import errors_shown
from enode_django.management.output import PrintableCommand
from enode_django.runtime import make_snapshots, make_store
from enode_django.serialization.registry import types

SAMPLE = 1_000
EXAMPLES = 20
"""The most aggregates that are shown, of those that fail and of those that differ."""
MOST_CHANGES = 10
"""The most differences that are shown of an aggregate."""


class Command(PrintableCommand):
    help = (
        "Replays random aggregates of the event store with this code, before it goes live: shows those that it cannot "
        "replay, and the snapshots of other code that differ from its states. Changes nothing. The exit status is 1 "
        "if an aggregate fails, or a state differs."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        told = f"replay so many random aggregates (default: {SAMPLE})"
        parser.add_argument("--sample", type=above_0, default=SAMPLE, metavar="SAMPLE", help=told)
        parser.add_argument(
            "--type", action="append", metavar="TYPE", help="only aggregates of this type; may be given several times"
        )
        parser.add_argument("--accept-differences", action="store_true", help="only fail for what cannot be replayed")

    def handle(self, *, sample: int, type: Sequence[str] | None, accept_differences: bool, **options: Any) -> None:
        names = {one: _names(one) for one in type or ()}
        with errors_shown():
            store = make_store()
            found = rehearse(store, make_snapshots(store), sample, [*chain.from_iterable(names.values())])
            counted, kinds = self._show(found)
        self.stdout.write(
            f"{counted['replayed']} aggregates replayed, {counted['failed']} failed; "
            f"{counted['compared']} snapshots compared, {counted['differ']} differ"
        )
        if missing := [one for one, known in names.items() if kinds.isdisjoint(known)]:
            self.stdout.write(
                f"no aggregate of {' or '.join(missing)} is near any of {sample} random events; raise --sample",
                self.style.WARNING,
            )
        if counted["failed"] or (counted["differ"] and not accept_differences):
            raise SystemExit(1)

    def _show(self, rehearsed: Iterable[Rehearsed]) -> tuple[Counter[str], set[str]]:
        """Return the numbers of the aggregates, and their types."""
        counted, kinds = Counter[str](), set[str]()
        for one in rehearsed:
            kinds.add(one.aggregate_root_type)
            counted["failed" if one.problem else "replayed"] += 1
            counted["compared"] += one.version is not None
            counted["differ"] += bool(one.changes)
            if one.problem and counted["failed"] <= EXAMPLES:
                self.stdout.write(
                    f"{one.aggregate_root_type} {one.aggregate_root_id!r}: {one.problem}", self.style.ERROR
                )
            if one.changes and counted["differ"] <= EXAMPLES:
                text = _listed(one.changes)
                place = f"{one.aggregate_root_type} {one.aggregate_root_id!r} at version {one.version}"
                self.stdout.write(f"{place}: {text}", self.style.WARNING)
        for kind in ("failed", "differ"):
            if (more := counted[kind] - EXAMPLES) > 0:
                self.stdout.write(f"{more} more {kind}")
        return counted, kinds


def _names(type_name: str) -> Sequence[str]:
    """Return the stable name of the class and its aliases, by which old events are stored."""
    try:
        cls = types.class_of(AggregateRoot, type_name)
    except UnknownMessageType as error:
        raise CommandError(str(error)) from error
    return types.name_of(cls), *aliases_of(cls)


def _listed(changes: Sequence[Change]) -> str:
    more = len(changes) - MOST_CHANGES
    return "; ".join([*map(_text, changes[:MOST_CHANGES]), *([f"and {more} more"] if more > 0 else [])])


def _text(change: Change) -> str:
    name = ".".join(map(str, change.path))
    if change.kind == "added":
        return f"{name} is new, {shown(change.after)}"
    if change.kind == "removed":
        return f"{name} was {shown(change.before)}, and is gone"
    return f"{name} was {shown(change.before)}, is {shown(change.after)}"
