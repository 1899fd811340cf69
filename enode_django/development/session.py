"""Start, watch, restart and end the parts of `enodedev`, and write their output to one log."""

from __future__ import annotations

import signal
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any, NamedTuple

from django.utils import autoreload

from enode_django.development.groups import Groups
from enode_django.development.lines import Lines
from enode_django.development.parts import Part, Plan
from enode_django.development.steps import decode_step
from enode_django.equeue.stops import Stops

OURSELVES = "enodedev"
TICK = 0.1
SETTLED = 5.0
"""Seconds. A part that has lived this long is restarted at once. If its first start does not last this long, everything
ends."""
RETRY = 10.0
"""Seconds after which a part that did not last is restarted, if no code changes before."""
BEYOND_GRACE = 10.0
LONGEST_STEP = 65_536

IsReady = Callable[[], bool]


class Waiting(NamedTuple):
    """A part to restart at ``due``, or when the newest code no longer has the time ``code``."""

    plan: Plan
    code: float
    due: float


class Development:
    """A run of `enodedev`. A signal handler may call `stop`: once to end the parts in order, again to kill them."""

    def __init__(
        self,
        plans: Sequence[Plan],
        *,
        steps: socket.socket,
        environment: Mapping[str, str],
        grace: float,
        lines: Lines,
        write: Callable[[str], object],
    ) -> None:
        self._plans = plans
        self._steps = steps
        self._environment = environment
        self._grace = grace
        self._lines = lines
        self._write = write
        self._groups = Groups()
        self._parts: list[Part] = []
        self._leaving: list[Part] = []
        self._waiting: list[Waiting] = []
        self._restarted: set[str] = set()
        self._stops = Stops()
        steps.setblocking(False)

    def stop(self) -> None:
        self._stops.add()

    def run(self, is_ready: IsReady) -> int:
        """Start the parts in order, the next one when ``is_ready`` returns True. Block until the end. Return the exit
        status: 0 if `stop` was called and every part ended in time, else 1."""
        try:
            return self._run(is_ready)
        finally:
            for part in [*self._parts, *self._leaving]:
                part.close()

    def _run(self, is_ready: IsReady) -> int:
        going_on = True
        for plan in self._plans:
            self._start(plan)
            while going_on and not self._stops.count and not is_ready():
                going_on = self._look()
            if not going_on or self._stops.count:
                break
        while going_on and not self._stops.count:
            going_on = self._look()
        clean = self._end()
        return 0 if going_on and clean else 1

    def say(self, text: str) -> None:
        self._write(self._lines.of_part(OURSELVES, text, time.time()))

    # -- watching -------------------------------------------------------------------------------------------------

    def _start(self, plan: Plan) -> None:
        self._parts.append(Part(plan, self._environment, time.monotonic()))

    def _look(self) -> bool:
        """Show new output and restart dead parts. Return False if a part failed at its first start."""
        self._listen()
        for part in [part for part in self._parts if part.status is not None]:
            self._parts.remove(part)
            self._leaving.append(part)
            part.signal_all(signal.SIGTERM)  # its children, if any are left
            if not self._outlive(part):
                return False
        self._start_waiting()
        return True

    def _outlive(self, part: Part) -> bool:
        name, status = part.plan.name, part.status
        self._listen()
        settled = time.monotonic() - part.started >= SETTLED
        if not settled and name not in self._restarted:
            self.say(f"{name} ended with status {status} at its start, for the reason above; ending everything")
            return False
        self._restarted.add(name)
        if settled:
            self.say(f"{name} ended with status {status}; starting it again")
            self._start(part.plan)
        else:
            self._waiting.append(Waiting(part.plan, newest_code(), time.monotonic() + RETRY))
            self.say(f"{name} ended with status {status}; starting it again when code changes, or in {RETRY:g} s")
        return True

    def _start_waiting(self) -> None:
        for waiting in [one for one in self._waiting if time.monotonic() >= one.due or newest_code() != one.code]:
            self._waiting.remove(waiting)
            self._start(waiting.plan)

    def _listen(self) -> None:
        """Wait up to `TICK` seconds for output of the parts, and show it."""
        parts = [part for part in [*self._parts, *self._leaving] if not part.is_at_end]
        sources: list[Any] = [self._steps, *(part.output for part in parts)]
        wait(sources, TICK)
        for part in parts:
            for line in filter(None, part.lines()):
                self._write(self._lines.of_part(part.plan.name, line, time.time()))
        self._take_steps()
        self._show(self._groups.take_due(time.monotonic()))
        for part in [part for part in self._leaving if part.is_gone]:
            self._leaving.remove(part)
            part.close()

    def _take_steps(self) -> None:
        try:
            while True:
                step = decode_step(self._steps.recv(LONGEST_STEP))
                if step is not None:
                    self._groups.add(step, time.monotonic())
        except BlockingIOError:
            return

    def _show(self, groups: Sequence[Sequence[Any]]) -> None:
        for steps in groups:
            for line in self._lines.of_group(steps):
                self._write(line)

    # -- ending ---------------------------------------------------------------------------------------------------

    def _end(self) -> bool:
        """End the parts together, and afterwards those that others need until then. Return True if all ended in
        time."""
        self.say("ending; a second Ctrl-C kills")
        needed = [part for part in self._parts if part.plan.patience]
        clean = self._end_all([part for part in self._parts if part not in needed])
        clean = self._end_all(needed) and clean
        self._listen()
        self._show(self._groups.take_all())
        return clean

    def _end_all(self, parts: Sequence[Part]) -> bool:
        for part in parts:
            self._parts.remove(part)
            self._leaving.append(part)
            part.end()
        ended = [self._wait_for(part) for part in parts]
        return all(ended)

    def _wait_for(self, part: Part) -> bool:
        deadline = time.monotonic() + self._grace + BEYOND_GRACE
        while part in self._leaving:
            if self._stops.count > 1 or time.monotonic() > deadline:
                self.say(f"{part.plan.name} has not ended; killing it")
                part.signal_all(signal.SIGKILL)
                return False
            self._listen()
        return True


def newest_code() -> float:
    """Return the newest modification time of the Python files that this process has imported, in seconds since 1970."""
    return max(map(_changed_at, autoreload.iter_all_python_module_files()), default=0.0)


def _changed_at(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:  # an editor may be replacing it
        return 0.0
