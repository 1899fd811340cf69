"""An event loop that records its longest turns and their parts.

A turn is the work of the loop between two polls of its connections. To separate work from the noise of a busy machine,
a turn has, besides its length, its processor time, its page faults, and the time that its thread waited for a core. The
number of times that the thread gave up its core is that of its waits, for the disk or for the interpreter lock.
"""

from __future__ import annotations

import asyncio
import gc
import heapq
import resource
import selectors
import time
from collections import defaultdict
from collections.abc import Callable
from contextvars import Context
from dataclasses import asdict, dataclass, field
from operator import itemgetter
from typing import Any, TypeVarTuple

_Arguments = TypeVarTuple("_Arguments")

WORST = 10
_SHOWN = 0.2
"""The least milliseconds of processor time of a callback that is named."""
_SHORTEST = 1.0
"""The least milliseconds of a turn that is recorded."""


def without_core() -> float:
    """Return the seconds that this thread has waited for a core so far; 0 if the kernel does not report it."""
    try:
        with open("/proc/thread-self/schedstat", "rb", buffering=0) as file:
            return int(file.read().split()[1]) / 1e9
    except FileNotFoundError:
        return 0.0


@dataclass(order=True)
class Turn:
    """A turn; times are in milliseconds. ``made_of`` is the processor time by callback; the rest of ``worked`` is that
    of connections. The garbage collector's time is also contained in that of a callback."""

    pause: float
    """The length without the wait for a core."""
    wall: float
    worked: float
    robbed: float
    major_faults: int
    minor_faults: int
    waits: int
    made_of: dict[str, float] = field(compare=False)

    def __str__(self) -> str:
        longest = sorted(self.made_of.items(), key=itemgetter(1), reverse=True)[:4]
        parts = ", ".join(f"{name} {each:.1f}" for name, each in longest)
        return (
            f"{self.pause:6.1f} ms: worked {self.worked:.1f}, robbed {self.robbed:.1f}, faults {self.major_faults} "
            f"major {self.minor_faults} minor, waits {self.waits}; {parts or 'connections'}"
        )


class Turns:
    """The longest turns of a loop. The loop's thread calls it."""

    def __init__(self) -> None:
        self.worst: list[Turn] = []
        self._parts: defaultdict[str, float] = defaultdict(float)
        self._collecting = 0.0
        gc.callbacks.append(self._collected)
        self.begin()

    def begin(self) -> None:
        self._parts.clear()
        self._usage = resource.getrusage(resource.RUSAGE_THREAD)
        self._robbed, self._worked = without_core(), time.thread_time()
        self._begun = time.monotonic()  # last here, and first in `end`, to exclude the calls before

    def end(self) -> None:
        wall = 1e3 * (time.monotonic() - self._begun)
        worked, robbed = 1e3 * (time.thread_time() - self._worked), 1e3 * (without_core() - self._robbed)
        if wall - robbed < _SHORTEST:
            return
        usage, before = resource.getrusage(resource.RUSAGE_THREAD), self._usage
        turn = Turn(
            wall - robbed,
            wall,
            worked,
            robbed,
            usage.ru_majflt - before.ru_majflt,
            usage.ru_minflt - before.ru_minflt,
            usage.ru_nvcsw - before.ru_nvcsw,
            dict(self._parts),
        )
        heapq.heappush(self.worst, turn)
        if len(self.worst) > WORST:
            heapq.heappop(self.worst)

    def forget(self) -> None:
        self.worst.clear()

    def run(self, callback: Callable[[*_Arguments], object], *arguments: *_Arguments) -> None:
        begun = time.thread_time()
        try:
            callback(*arguments)
        finally:
            worked = 1e3 * (time.thread_time() - begun)
            if worked >= _SHOWN:
                self._parts[_name(callback)] += worked

    def _collected(self, phase: str, info: dict[str, int]) -> None:
        """Count a garbage collection. Any thread may run it; all others wait for it."""
        if phase == "start":
            self._collecting = time.monotonic()
        else:
            self._parts[f"garbage of generation {info['generation']}"] += 1e3 * (time.monotonic() - self._collecting)

    def plain(self) -> list[dict[str, Any]]:
        return [asdict(turn) for turn in sorted(self.worst, reverse=True)]


class WatchedSelector(selectors.DefaultSelector):
    def __init__(self, turns: Turns) -> None:
        super().__init__()
        self._turns = turns

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        self._turns.end()
        try:
            return super().select(timeout)
        finally:
            self._turns.begin()


class WatchedLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self.turns = Turns()
        super().__init__(WatchedSelector(self.turns))

    def call_soon(
        self,
        callback: Callable[[*_Arguments], object],
        *args: *_Arguments,
        context: Context | None = None,
    ) -> asyncio.Handle:
        return super().call_soon(self.turns.run, callback, *args, context=context)

    def call_soon_threadsafe(
        self,
        callback: Callable[[*_Arguments], object],
        *args: *_Arguments,
        context: Context | None = None,
    ) -> asyncio.Handle:
        return super().call_soon_threadsafe(self.turns.run, callback, *args, context=context)

    def call_at(
        self,
        when: float,
        callback: Callable[[*_Arguments], object],
        *args: *_Arguments,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        return super().call_at(when, self.turns.run, callback, *args, context=context)


class WatchedLoops(asyncio.DefaultEventLoopPolicy):
    """A policy by which `asyncio.run` makes watched loops."""

    def new_event_loop(self) -> asyncio.AbstractEventLoop:
        return WatchedLoop()


def _name(callback: Callable[..., object]) -> str:
    owner = getattr(callback, "__self__", None)
    if isinstance(owner, asyncio.Task):
        return str(getattr(owner.get_coro(), "__qualname__", "a task"))
    return str(getattr(callback, "__qualname__", type(callback).__name__))
