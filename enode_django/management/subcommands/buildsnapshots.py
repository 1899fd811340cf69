"""``manage.py enode buildsnapshots``."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from django.core.management.base import CommandError, CommandParser

from enode_django.batch import EVERYTHING
from enode_django.domain.aggregate import AggregateRoot
from enode_django.exceptions import UnknownMessageType
from enode_django.management.arguments import above_0
from enode_django.management.errors import errors_shown
from enode_django.management.on_spark import Lines, add_master, job_on_spark
from enode_django.management.output import PrintableCommand
from enode_django.repository import policy
from enode_django.repository.snapshot_building import Compared, Due, build
from enode_django.repository.snapshot_building import verify as compare
from enode_django.runtime import make_store, needed_snapshots
from enode_django.serialization.registry import types

TELL_EVERY = 5.0
"""Seconds."""


class Command(PrintableCommand):
    help = "Makes all snapshots that are due, or compares some snapshots with a replay of their events."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument(
            "--type", action="append", metavar="TYPE", help="only aggregates of this type; may be given several times"
        )
        parser.add_argument("--dry-run", action="store_true", help="count what is due, and make nothing")
        parser.add_argument(
            "--verify",
            type=above_0,
            metavar="SAMPLE",
            help="compare the snapshots of so many random aggregates with a replay; make nothing",
        )
        parser.add_argument("--spark", action="store_true", help="make them in parallel, on Spark")
        parser.add_argument("--archive", metavar="PATH", help="with --spark: read events from this archive, too")
        add_master(parser)

    def handle(self, *, type: Sequence[str] | None, dry_run: bool, verify: int | None, **options: Any) -> None:
        on_spark, archive, master = options["spark"], options["archive"], options["master"]
        if on_spark and (dry_run or verify is not None):
            raise CommandError("--dry-run and --verify run without Spark: leave out --spark")
        if not on_spark and (archive or master):
            raise CommandError("--archive and --master need --spark")
        if on_spark:
            self._build_on_spark(type, master, archive)
        else:
            self._run_here(type, dry_run, verify)

    def _build_on_spark(self, names: Sequence[str] | None, master: str | None, archive: str | None) -> None:
        for name in names or ():
            _class(name)
        name = ",".join(sorted({*names})) if names else EVERYTHING
        with job_on_spark("snapshots", name, master) as (spark, job):
            from enode_django.spark.snapshot_job import build_snapshots

            figures = build_snapshots(spark, names, Lines(self.stdout, job.report), archive=archive)
            job.result(**figures)
        for name, id, failure in figures["failures"]:
            self.stderr.write(f"{name} {id!r}: {failure}")
        self._sum_up(Counter(figures["made"]), "made", figures["failed"])

    def _run_here(self, type: Sequence[str] | None, dry_run: bool, verify: int | None) -> None:
        with errors_shown():
            store = make_store()
            snapshots = needed_snapshots(store)
            classes = [_class(name) for name in type] if type else None
            if verify is not None:
                self._verify(compare(store, snapshots, verify, classes))
            else:
                self._build(build(store, snapshots, classes, dry_run=dry_run), "due" if dry_run else "made")

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
            elif one.aggregate_root_id not in seen:
                if what == "due":
                    seen.add(one.aggregate_root_id)
                made[one.aggregate_root_type] += 1
            if time.monotonic() >= next_line:
                self.stdout.write(f"{made.total()} snapshots {what} so far")
                next_line = time.monotonic() + TELL_EVERY
        self._sum_up(made, what, len(failed))

    def _sum_up(self, made: Counter[str], what: str, failed: int) -> None:
        for name, count in sorted(made.items()):
            self.stdout.write(f"{name}: {count} snapshots {what}")
        self.stdout.write(f"{made.total()} snapshots {what}, {failed} aggregates failed")
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
                self.stdout.write(f"{name} {id!r} at version {version}: {one.problem}", self.style.ERROR)
            else:
                same += 1
        self.stdout.write(f"{same} snapshots are as replayed, {wrong} differ, {foreign} were made by other code")
        if wrong:
            raise SystemExit(1)


def _class(name: str) -> type[AggregateRoot]:
    try:
        cls = types.class_of(AggregateRoot, name)
    except UnknownMessageType as error:
        raise CommandError(str(error)) from error
    if not policy.is_on(cls):
        raise CommandError(f"{name} has no snapshots: its class says snapshot_every = {cls.snapshot_every!r}")
    return cls
