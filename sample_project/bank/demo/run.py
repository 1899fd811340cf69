"""The course of the demo."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from rich.console import Console
from rich.progress import Progress

from enode_django import send_commands
from enode_django.exceptions import CommandTimeout
from enode_django.ids import new_id
from enode_django.runtime import close_bus, make_transport
from sample_project.bank.demo.figures import count_stored, count_transfers, measure
from sample_project.bank.demo.processors import Processors
from sample_project.bank.demo.producers import Producers
from sample_project.bank.demo.progress import Result, progress_on, result_table
from sample_project.bank.demo.quiet import Lookout, Pace
from sample_project.bank.demo.read_models import read_model_problems
from sample_project.bank.demo.streams import stored_records
from sample_project.bank.demo.teller import Teller
from sample_project.bank.demo.verification import Verification
from sample_project.bank.demo.workload import SENT_AT_ONCE, Workload

ALREADY_RUNNING_SECONDS = 0.5
"""The time for running processors to answer an opening. A second runprocessors next to busy ones is harmless."""
START_SECONDS = 120.0
"""The time limit for processors that the demo starts; the demo notices if they end."""
FOUND_SECONDS = 30.0
"""The time limit for processors that others start."""
STALLED_SECONDS = 120.0
TICK = 0.2
ASKED_WHEN_IDLE = 300
PROBLEMS_SHOWN = 10


class DemoFailed(Exception):
    """The demo failed for the reason in the message."""


def new_workload(accounts: int, commands: int, producers: int, transfers: int) -> Workload:
    run = f"demo-{new_id()[-12:]}"
    return Workload(run=run, accounts=accounts, commands=commands, producers=producers, transfers=transfers)


class Demo:
    """The demo. `run` blocks until everything is verified and shown, and raises `DemoFailed`. It always ends the
    processes that it started. ``processes`` is None to use running processors only.
    """

    def __init__(self, workload: Workload, processes: int | None, console: Console) -> None:
        self._workload = workload
        self._processes = processes
        self._console = console
        self._teller = Teller(workload)
        self._processors: Processors | None = None
        self._sent_twice = sum(map(workload.is_sent_twice, range(workload.commands)))
        self._paces: dict[str, Pace] = {}

    def run(self) -> None:
        with ExitStack() as stack:
            stack.callback(close_bus)
            directory = Path(stack.enter_context(TemporaryDirectory(prefix="bankdemo-")))
            # Before the processors, so that both start in parallel.
            producers = stack.enter_context(Producers(self._workload))
            self._find_processors(stack, directory)
            with progress_on(self._console) as progress:
                self._open_accounts(progress)
                self._load(producers, progress)
            self._teller.ask(min(ASKED_WHEN_IDLE, self._workload.commands // 10))
            self._let_subscribers_catch_up()
            report = self._stop_processors()
            self._show(report)
            self._verify()

    # -- processors -----------------------------------------------------------------------------------------------

    def _find_processors(self, stack: ExitStack, directory: Path) -> None:
        with contextlib.suppress(CommandTimeout):
            self._teller.open(ALREADY_RUNNING_SECONDS)
            self._console.print("using the processors that run already")
            return
        if self._processes is not None:
            self._processors = stack.enter_context(Processors(self._processes, directory))
        seconds = FOUND_SECONDS if self._processors is None else START_SECONDS
        deadline = time.monotonic() + seconds
        while True:
            self._check_processors()
            try:
                self._teller.open(1.0)
                return
            except CommandTimeout:
                if time.monotonic() > deadline:
                    raise DemoFailed(self._explain(f"no processors answered within {seconds:g} s")) from None

    def _check_processors(self) -> None:
        if self._processors is not None and self._processors.has_ended:
            raise DemoFailed(self._explain("runprocessors has ended"))

    def _explain(self, text: str) -> str:
        if self._processors is None:
            return f"{text}; is manage.py runprocessors running on the same queue?"
        return f"{text}; it said last:\n{self._processors.last_words()}"

    def _stop_processors(self) -> dict[str, Any]:
        if self._processors is None:
            return {}
        status = self._processors.stop()
        if status:
            raise DemoFailed(self._explain(f"runprocessors ended with status {status}"))
        return self._processors.report()

    # -- the load -------------------------------------------------------------------------------------------------

    def _open_accounts(self, progress: Progress) -> None:
        task = progress.add_task("opening accounts", total=self._workload.accounts)
        openings = self._workload.openings()
        while batch := list(islice(openings, SENT_AT_ONCE)):
            send_commands(batch)
            progress.advance(task, len(batch))
        with contextlib.closing(make_transport()) as transport:
            lookout = Lookout(transport)
            for _ in self._until(lookout, lookout.commands_are_handled):
                pass

    def _load(self, producers: Producers, progress: Progress) -> None:
        workload = self._workload
        sending = progress.add_task("sending", total=workload.commands + workload.transfers + self._sent_twice)
        bars = _Bars(workload, progress)
        with contextlib.closing(make_transport()) as transport, self._teller:
            lookout = Lookout(transport)
            producers.start()
            while not producers.look():
                progress.update(sending, completed=sum(producers.sent))
                bars.show(lookout)
                self._check_processors()
                time.sleep(TICK)
            progress.update(sending, completed=sum(producers.sent))
            self._teller.stop()
            for _ in self._until(lookout, lookout.is_quiet):
                bars.show(lookout)
            bars.show(lookout)
            self._paces = lookout.paces()

    def _let_subscribers_catch_up(self) -> None:
        """Wait for the subscribers. Answers do not wait for them, and they would leave unpulled events when stopped."""
        with contextlib.closing(make_transport()) as transport:
            lookout = Lookout(transport)
            for _ in self._until(lookout, lookout.is_quiet):
                pass

    def _until(self, lookout: Lookout, done: Callable[[], bool]) -> Iterator[None]:
        """Yield regularly until ``done``. Raises `DemoFailed` if there is no progress."""
        while not done():
            yield
            self._check_processors()
            if lookout.seconds_without_progress > STALLED_SECONDS:
                raise DemoFailed(self._explain(f"nothing was finished within {STALLED_SECONDS:g} s"))
            time.sleep(TICK)

    # -- the end --------------------------------------------------------------------------------------------------

    def _show(self, report: dict[str, Any]) -> None:
        workload = self._workload
        result = Result(
            measure(workload), count_transfers(workload), self._sent_twice, self._teller, self._paces, report
        )
        self._console.print()
        self._console.print(result_table(result))
        self._console.print()

    def _verify(self) -> None:
        workload = self._workload
        verification = Verification(workload, self._teller.results, stored_records(workload))
        problems = self._teller.problems + verification.problems
        problems += read_model_problems(workload, verification.accounts)
        if problems:
            shown = "\n".join(f"  {problem}" for problem in problems[:PROBLEMS_SHOWN])
            raise DemoFailed(f"the database does not hold what was sent ({len(problems)} problems):\n{shown}")
        self._console.print(
            "[green]Verified in the database:[/green] every command is stored exactly once, no account's versions "
            "have a gap, each balance is the sum of what was accepted, and no transfer is left open. All balances "
            f"make {verification.balances:,.2f}, which is what was paid in less what was taken out: in the store, in "
            "AccountSummary and in LedgerEntry."
        )


class _Bars:
    """The progress bars of the workers."""

    def __init__(self, workload: Workload, progress: Progress) -> None:
        self._workload = workload
        self._progress = progress
        self._storing = progress.add_task("storing", total=workload.commands)
        self._transfers = progress.add_task("transfers", total=workload.transfers) if workload.transfers else None
        self._following = progress.add_task("following", total=0)

    def show(self, lookout: Lookout) -> None:
        self._progress.update(self._storing, completed=count_stored(self._workload))
        if self._transfers is not None:
            self._progress.update(self._transfers, completed=count_transfers(self._workload).ended)
        self._progress.update(self._following, completed=lookout.followed(), total=lookout.published())
