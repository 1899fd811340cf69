"""``manage.py rebuildprojection``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from django.core.management.base import CommandError, CommandParser

from enode_django.batch import NO_MASTER, engine_for
from enode_django.conf.rules import ENGINES
from enode_django.jobs.running import running_job
from enode_django.management.auditing import add_reason, audited
from enode_django.management.errors import errors_shown
from enode_django.management.on_spark import Lines
from enode_django.management.output import PrintableCommand
from enode_django.operating.actions import SUBSCRIBER
from enode_django.rebuilding.comparing import Comparison
from enode_django.rebuilding.failed import MOST_TOLD
from enode_django.rebuilding.rebuild import MOST_FAILURES, plan, rebuild, swap_kept, undo
from enode_django.rebuilding.results import MEND, Rebuilt, aggregates
from enode_django.rebuilding.target import Target


class Command(PrintableCommand):
    help = "Rebuilds the tables of a projection from the events, compares them with those in use, and swaps them."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("name", help="the projection's name, such as bank.Ledger")
        parser.add_argument(
            "--master",
            help=f'Spark\'s master (default: SPARK["MASTER"]); {NO_MASTER!r}: without Spark, in this process',
        )
        parser.add_argument("--engine", choices=ENGINES, help='what runs the rebuild (default: REBUILDS["ENGINE"])')
        parser.add_argument(
            "--archive", metavar="PATH", help="read events from this archive, and from the store only newer ones"
        )
        parser.add_argument("--sample", type=int, default=200, help="aggregates that are replayed twice (default: 200)")
        parser.add_argument("--accept-differences", action="store_true", help="swap even if rows differ")
        parser.add_argument(
            "--accept-uncompared", action="store_true", help="swap even if some rows could not be compared"
        )
        parser.add_argument(
            "--max-failures",
            type=int,
            default=MOST_FAILURES,
            help=f"aggregates that may be parked before the rebuild stops (default: {MOST_FAILURES})",
        )
        add_reason(parser)
        what = parser.add_mutually_exclusive_group()
        what.add_argument("--dry-run", action="store_true", help="show what would be rebuilt, or what prevents it")
        what.add_argument(
            "--compare-only",
            action="store_true",
            help="build and compare, then drop the new tables; the exit status is 1 if rows differ",
        )
        what.add_argument("--swap", action="store_true", help="swap the tables that the last rebuild could not swap")
        what.add_argument("--undo", action="store_true", help="put back the tables that the last rebuild replaced")
        what.add_argument("--drop", action="store_true", help="drop the tables that are kept for --undo and --swap")

    def handle(self, *, name: str, dry_run: bool, drop: bool, **options: Any) -> None:
        with errors_shown():
            if dry_run:
                self._plan(name)
                return
            action = "drop kept tables" if drop else _action(options)
            with audited(action, SUBSCRIBER, name, reason=options["reason"]):
                self._drop(name) if drop else self._run(name, options)

    def _plan(self, name: str) -> None:
        target = plan(name)
        self.stdout.write(f"{name} can be rebuilt; build {target.generation()} is in use")
        for table, used in target.described().items():
            self.stdout.write(f"  {used.schema}.{table}")
        self.stdout.write(f"from aggregates of {', '.join(target.types()) or 'no type that is known here'}")

    def _drop(self, name: str) -> None:
        target = Target.of(name)
        with running_job("rebuild", target.key) as job:  # the tables of a running rebuild are in use
            dropped = target.drop_left()
            job.result(dropped=dropped)
        self.stdout.write(f"{name}: the tables of {dropped} builds were dropped; build {target.generation()} is in use")

    def _run(self, name: str, options: Mapping[str, Any]) -> None:
        def given(*names: str) -> dict[str, Any]:
            return {each: options[each] for each in names}

        key = plan(name).key  # raises before a job or an engine is started
        accepted = given("accept_differences", "accept_uncompared")
        with running_job("rebuild", key) as job, engine_for(**given("master", "engine", "archive")) as engine:
            report = Lines(self.stdout, job.report)
            if options["undo"]:
                rebuilt = undo(name, engine, report)
            elif options["swap"]:
                rebuilt = swap_kept(name, engine, report, **accepted)
            else:
                more = given("compare_only", "sample", "max_failures", "archive")
                rebuilt = rebuild(name, engine, report, **accepted, **more)
            job.result(**rebuilt.figures())
        self._tell(name, rebuilt)
        if options["compare_only"]:
            _check_equal(name, rebuilt.comparison, options["accept_uncompared"])

    def _tell(self, name: str, rebuilt: Rebuilt) -> None:
        figures = rebuilt.figures()
        for one in rebuilt.failed[:MOST_TOLD]:
            said = f"parked: {one.text}; see manage.py enode parked list" if rebuilt.is_swapped else one.text
            self.stderr.write(said)
        for line in figures["examples"]:
            self.stdout.write(f"  {line}")
        uncompared = f", {figures['uncompared']} were not compared" if figures["uncompared"] else ""
        if rebuilt.comparison.undecided and not rebuilt.is_swapped:
            uncompared += f", the rows of {', '.join(rebuilt.comparison.undecided)} were not compared"
        state, end = ("parked", "swapped") if rebuilt.is_swapped else ("failed", "nothing was swapped")
        self.stdout.write(
            f"{name}: {figures['streams']} streams of {figures['aggregates']} aggregates in {figures['seconds']} s, "
            f"{len(rebuilt.failed)} {state}; {figures['differences']} rows differ among "
            f"{figures['compared']} aggregates{uncompared}; {end}"
        )


def _check_equal(name: str, comparison: Comparison, accept_uncompared: bool) -> None:
    """Raise `CommandError`, which gives exit status 1, if rows differ or were not all compared."""
    if not comparison.is_equal:
        failed = len(comparison.failed)
        why = f": {aggregates(failed)} failed; {MEND}" if failed else ""
        raise CommandError(f"the rebuilt tables of {name} are not like those in use{why}")
    if not (comparison.is_whole or accept_uncompared):
        raise CommandError(f"the tables of {name} could not all be compared; try at a quieter time")


def _action(options: Any) -> str:
    chosen = [name for name in ("undo", "swap", "compare_only") if options[name]]
    return chosen[0].replace("_", " ") if chosen else "rebuild"
