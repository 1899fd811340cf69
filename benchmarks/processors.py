"""``manage.py runprocessors`` as a process that can be frozen, thawed, killed and observed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import psutil

from benchmarks.workspace import COMMANDS, EVENTS, GROUP, PROJECT, Workspace

PATIENCE = 300.0
POLL = 0.005
POLL_OF_QUEUES = 0.02
"""Seconds. Each look reads every queue, which takes time from the workers."""


class BenchmarkError(Exception):
    """A run failed."""


def wait_for(what: str, condition: Callable[[], bool], seconds: float = PATIENCE, poll: float = POLL) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise BenchmarkError(f"{what}: not within {seconds:g} s")
        time.sleep(poll)


class Processors:
    """A ``runprocessors`` process. Unless ``ready`` is False, it is ready when the block begins: in each consumer
    group, ``processes`` workers own all queues. Event workers need a workspace that names its subscribers."""

    def __init__(
        self,
        workspace: Workspace,
        processes: int = 2,
        role: str = "command",
        *,
        ready: bool = True,
        options: Sequence[str] = (),
    ) -> None:
        self._workspace = workspace
        self._processes = processes
        self._role = role
        self._ready = ready
        self._options = options

    def __enter__(self) -> Processors:
        self._directory = tempfile.TemporaryDirectory(prefix="enode-bench-")
        self._report = Path(self._directory.name) / "report.json"
        self._log = open(Path(self._directory.name) / "log", "w+")
        self.process = subprocess.Popen(
            [
                *(sys.executable, "manage.py", "runprocessors", "-v", "0"),
                *("--role", self._role, "--processes", str(self._processes), "--report", str(self._report)),
                *self._options,
            ],
            cwd=PROJECT,
            env=self._workspace.environment,
            stdout=self._log,
            stderr=self._log,
        )
        try:
            if self._ready:
                wait_for("workers own all queues", self._is_ready, 60.0)
        except BaseException:
            self._end()
            raise
        return self

    def _is_ready(self) -> bool:
        self.check()
        groups = [] if self._role == "event" else [(COMMANDS, GROUP)]
        if self._role != "command":
            groups += [(EVENTS, name) for name in self._workspace.subscribers]
        owners = [self._workspace.owners(*group) for group in groups]
        return len(self.pids()) == self._processes * (1 + (self._role == "all")) and all(
            None not in names and _is_even(names, self._processes) for names in owners
        )

    def check(self) -> None:
        if self.process.poll() is not None:
            raise BenchmarkError(f"runprocessors ended with {self.process.returncode}:\n{self.log()}")

    def report(self) -> dict[str, Any]:
        try:
            report: dict[str, Any] = json.loads(self._report.read_text())
        except FileNotFoundError:
            return {}
        return report

    def pids(self) -> list[int]:
        report = self.report()
        return [*report.get("pids", []), *report.get("event_pids", [])]

    def processor_seconds(self) -> float:
        """Return the processor time of the workers so far, in seconds, which depends less than the elapsed time on
        other work of the machine."""
        return sum(sum(psutil.Process(pid).cpu_times()[:2]) for pid in self.pids())

    def log(self) -> str:
        self._log.flush()
        self._log.seek(0)
        return self._log.read()[-4_000:]

    def freeze(self) -> None:
        self.signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self.signal(signal.SIGCONT)

    def signal(self, number: int) -> None:
        """Send a signal to each worker, but not to the supervisor."""
        for pid in self.pids():
            os.kill(pid, number)

    def wait_published(self, count: int) -> float:
        """Block until the event topic has ``count`` streams. Return the time of `time.perf_counter`."""

        def published() -> bool:
            self.check()
            return self._workspace.published() >= count

        wait_for(f"{count} streams are published", published, poll=POLL_OF_QUEUES)
        return time.perf_counter()

    def wait_reported(self, figure: str, least: int) -> None:
        """Block until the workers have reported a figure of at least ``least``."""
        wait_for(f"{figure} are {least}", lambda: self.report().get(figure, 0) >= least, 60.0)

    def __exit__(self, *_: object) -> None:
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(60)
        finally:
            self._end()

    def _end(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        self._log.close()
        self._directory.cleanup()


def _is_even(owners: Sequence[str | None], workers: int) -> bool:
    """Return True if no worker will give a queue to another: what it has in memory of a queue goes with it."""
    queues = Counter(owners).values()
    return len(queues) == workers and max(queues) - min(queues) <= 1


def timed_run(workspace: Workspace, processors: Processors, messages: list[tuple[str, bytes]], streams: int) -> float:
    """Return the seconds from the start of the workers on a full queue until the last of ``streams`` is published."""
    before = workspace.published()
    processors.freeze()
    workspace.send(messages)
    workspace.checkpoint()
    started = time.perf_counter()
    processors.thaw()
    return processors.wait_published(before + streams) - started
