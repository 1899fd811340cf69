"""One round: a world, clients at full load, the planned faults, the wait for quiet, and the verdict."""

from __future__ import annotations

import importlib.util
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import psycopg

from chaos.counting import Counting
from chaos.errors import ChaosError
from chaos.evidence import keep_evidence, keep_logs
from chaos.faults import KINDS
from chaos.names import BEAT, Setup
from chaos.plan import PlannedFault, make_plan
from chaos.processes import PROJECT, Child
from chaos.quiet import Quiet
from chaos.timeline import Timeline
from chaos.waiting import wait_until
from chaos.watcher import Watcher
from chaos.world import World

CLIENTS = 2
UNDER_WAY = 50
"""The number of answers before the first fault."""
START_SECONDS, FINISH_SECONDS, QUIET_SECONDS, STOP_SECONDS = 240.0, 200.0, 300.0, 120.0
CHECK_SECONDS = 300.0
PROGRESS_EVERY = 10.0

Say = Callable[[str], None]


class Round(NamedTuple):
    """A round. ``seconds`` is the duration of the faults."""

    number: int
    seed: int
    setup: Setup
    seconds: float

    def plan(self) -> list[PlannedFault]:
        return make_plan(self.seed, self.seconds, {name: KINDS[name].choice(self.setup) for name in self.setup.faults})


def run_round(round_: Round, directory: Path, run: Path, say: Say) -> bool:
    """Run a round, and return True if every promise was kept. ``directory`` is that of the processes, ``run`` that of
    the checker.

    Raises `ChaosError` if the world did not start, did not become quiet, or did not end.
    """
    began = time.monotonic()
    with World(round_.setup, directory, run, round_.seed) as world:
        kept_its_promises = False
        try:
            world.describe(finished=False)
            problems = _Running(round_, world, say, began).run()
            world.describe(finished=True)
            for problem in problems:
                say(f"VIOLATION driver: {problem}")
            kept_its_promises = _check(run, say) and not problems
        finally:
            keep_logs(directory, run)
            if not kept_its_promises:
                _keep_evidence(world, say)
        return kept_its_promises


class _Running:
    def __init__(self, round_: Round, world: World, say: Say, began: float) -> None:
        self._round, self._world, self._say, self._began = round_, world, say, began
        self._counting = Counting(world.run / "clients")
        self._timeline = Timeline(world, round_.plan(), say)
        self._next_progress = 0.0
        self._clients: Sequence[Child] = []

    def run(self) -> list[str]:
        """Run the round, and return the problems that are not covered by the checker."""
        with Watcher(self._world.services.transport, self._world.run / "offsets.jsonl"):
            seconds = self._load()
            self._finish()
            self._wait_quiet(Quiet(self._world))
        self._stop_processes()
        self._say_figures(seconds)
        return [f"client {child.name} ended with {child.status}" for child in self._clients if child.status]

    def _load(self) -> float:
        """Run the clients and the faults, and return the seconds that the clients had."""
        self._clients = [self._world.make_client(f"client-{number}") for number in range(1, CLIENTS + 1)]
        began = time.monotonic()
        for client in self._clients:
            client.start()
        wait_until(self._under_way, "clients get answers", START_SECONDS)
        self._say(f"clients are under way; faults for {self._round.seconds:g} s")
        try:
            self._timeline.run(self._round.seconds, self._tick)
        finally:
            self._timeline.mend()
        return time.monotonic() - began

    def _under_way(self) -> bool:
        self._world.tend()
        self._counting.look()
        for client in self._clients:
            if not client.is_running:
                raise ChaosError(f"{client.name} ended with {client.status}; see {client.log_path.name}")
        return self._counting.answers >= UNDER_WAY

    def _tick(self) -> None:
        self._world.tend()
        if time.monotonic() >= self._next_progress:
            self._next_progress = time.monotonic() + PROGRESS_EVERY
            self._counting.look()
            made = sum(self._timeline.made.values())
            self._say(f"… {self._counting.sends:,} sends, {self._counting.answers:,} answers, {made} faults")

    def _finish(self) -> None:
        self._say("all faults are over; clients finish")
        for client in self._clients:
            client.close_input()
        wait_until(self._clients_ended, "the end of the clients", FINISH_SECONDS)

    def _clients_ended(self) -> bool:
        self._world.tend()
        return not any(client.is_running for client in self._clients)

    def _wait_quiet(self, quiet: Quiet) -> None:
        began = time.monotonic()
        self._next_progress = began + PROGRESS_EVERY

        def is_quiet() -> bool:
            self._world.tend()
            reached = quiet.reached()
            if not reached and time.monotonic() >= self._next_progress:
                self._next_progress += PROGRESS_EVERY
                self._say(f"… not quiet yet: {quiet.describe()}")
            return reached

        wait_until(is_quiet, quiet.describe, QUIET_SECONDS)
        self._say(f"quiet after {time.monotonic() - began:.1f} s")

    def _stop_processes(self) -> None:
        for child in self._world.children:
            child.wanted = False
            if child.is_running:
                # Celery's beat uses its database connection in its handler of SIGTERM. If the signal interrupts psycopg
                # with this connection's lock, it waits for itself and never ends.
                child.send_signal(signal.SIGKILL if child.name == BEAT else signal.SIGTERM)
        for child in self._world.children:
            child.wait_end(STOP_SECONDS)
        self._world.services.broker.stop()

    def _say_figures(self, seconds: float) -> None:
        self._counting.look()
        rate = self._counting.answers / seconds
        self._say(
            f"{self._counting.sends:,} sends, {self._counting.answers:,} answers in {seconds:.0f} s, {rate:,.0f}/s; "
            f"the round has taken {time.monotonic() - self._began:.0f} s"
        )
        kinds = ", ".join(f"{count} {kind}" for kind, count in sorted(self._timeline.made.items()))
        self._say(f"faults: {kinds or 'none'}")
        if self._timeline.skipped:
            self._say(f"left out: {dict(self._timeline.skipped)}")
        if self._world.ended_by_themselves:
            self._say(f"ended by themselves and were started again: {', '.join(self._world.ended_by_themselves)}")


def _check(run: Path, say: Say) -> bool:
    if importlib.util.find_spec("chaos.checker") is None:
        say("there is no checker here, so nobody has judged")
        return True
    began = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-m", "chaos.checker", run],
        cwd=PROJECT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=CHECK_SECONDS,
    )
    (run / "verdict.txt").write_text(done.stdout)
    for line in done.stdout.splitlines():
        say(line)
    say(f"the checker has taken {time.monotonic() - began:.1f} s and ended with {done.returncode}")
    return done.returncode == 0


def _keep_evidence(world: World, say: Say) -> None:
    """Keep the evidence. An unavailable server must not hide why the round has failed."""
    try:
        keep_evidence(world)
    except (OSError, psycopg.Error) as error:
        say(f"not all evidence could be kept: {error}")
