"""Pulled messages on their way to the threads that handle them."""

from __future__ import annotations

import heapq
import itertools
import threading
from collections import deque
from collections.abc import Callable, Hashable, Iterable
from typing import NamedTuple

from enode_django.equeue.offsets import OffsetWindow
from enode_django.equeue.retrying import Message

LONGEST_WAIT = 1.0
"""Seconds after which a waiting thread reads the clock again, which may have been set."""


class Task(NamedTuple):
    """A message to handle. ``offset`` is its offset in the window, which differs from the message's own when it was
    pulled from the topic of retries. ``due``: not to be handled earlier, in seconds since 1970. ``broken`` says what
    is wrong with a message that cannot be handled."""

    window: OffsetWindow
    offset: int
    message: Message
    due: float = 0.0
    broken: str = ""


class Worklist:
    """Tasks in lanes. One thread at a time works on a lane, in order. A lane is a queue of a topic, across its windows,
    when ``linear``; otherwise it is one task. Lanes take turns. No I/O.

    Pulling threads call `post`, `withdraw`, `left` and `forget`; handling threads `take`, then `done` or `again`; the
    thread that ends the work `wait_idle` and `close`. A task that waits for its due time blocks no lane.
    """

    def __init__(self, *, linear: bool, clock: Callable[[], float]) -> None:
        self._linear = linear
        self._clock = clock
        self._lanes: dict[Hashable, deque[Task]] = {}
        self._ready: deque[Hashable] = deque()
        self._waiting: list[tuple[float, int, Task]] = []
        self._numbers = itertools.count()
        self._left: dict[OffsetWindow, int] = {}
        self._closed = False
        self._changed = threading.Condition()

    def post(self, tasks: Iterable[Task]) -> None:
        with self._changed:
            for task in tasks:
                self._enter(task)
            self._changed.notify_all()

    def take(self) -> Task | None:
        """Return the next task; block until there is one. Return None when the list is closed."""
        with self._changed:
            while not self._closed:
                self._line_up_due()
                if self._ready:
                    return self._lanes[self._ready.popleft()].popleft()
                self._changed.wait(self._until_due())
            return None

    def done(self, task: Task) -> None:
        with self._changed:
            self._free(task)

    def again(self, task: Task) -> None:
        """Put a taken task back, to be handled again when it is due, unless its window was withdrawn."""
        with self._changed:
            self._free(task)
            self._enter(task)
            self._changed.notify_all()

    def withdraw(self, window: OffsetWindow) -> None:
        """Drop the window's waiting tasks, which are left to the next owner. Tasks that are due are still handled."""
        with self._changed:
            self._left.setdefault(window, 0)
            waiting, self._waiting = self._waiting, []
            for due, number, task in waiting:
                if task.window is window:
                    self._left[window] += 1
                else:
                    heapq.heappush(self._waiting, (due, number, task))

    def left(self, window: OffsetWindow) -> int:
        """Return the number of tasks of a withdrawn window that will not be handled here."""
        return self._left.get(window, 0)

    def forget(self, window: OffsetWindow) -> None:
        with self._changed:
            self._left.pop(window, None)

    def wait_idle(self, timeout: float) -> bool:
        """Return True if, within ``timeout`` seconds, no task is due and none is being handled."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._lanes, timeout)

    def close(self) -> None:
        """Hand out no more tasks; those not being handled are dropped."""
        with self._changed:
            self._closed = True
            left = [task for lane in self._lanes.values() for task in lane]
            left += (task for _, _, task in self._waiting)
            for key in self._ready:
                del self._lanes[key]
            for lane in self._lanes.values():
                lane.clear()
            self._ready.clear()
            self._waiting.clear()
            for task in left:
                self._leave(task)
            self._changed.notify_all()

    def _enter(self, task: Task) -> None:
        if self._closed or task.window in self._left:
            self._leave(task)
        elif task.due > self._clock():
            heapq.heappush(self._waiting, (task.due, next(self._numbers), task))
        else:
            self._line_up(task)

    def _leave(self, task: Task) -> None:
        self._left[task.window] = self._left.get(task.window, 0) + 1

    def _line_up(self, task: Task) -> None:
        key = self._lane(task)
        lane = self._lanes.get(key)
        if lane is None:
            lane = self._lanes[key] = deque()
            self._ready.append(key)
        lane.append(task)

    def _lane(self, task: Task) -> Hashable:
        window = task.window
        return (window.topic, window.queue) if self._linear else (window, task.offset)

    def _line_up_due(self) -> None:
        now = self._clock() if self._waiting else 0.0
        while self._waiting and self._waiting[0][0] <= now:
            self._line_up(heapq.heappop(self._waiting)[2])

    def _until_due(self) -> float | None:
        return min(LONGEST_WAIT, max(0.0, self._waiting[0][0] - self._clock())) if self._waiting else None

    def _free(self, task: Task) -> None:
        key = self._lane(task)
        if self._lanes[key]:
            self._ready.append(key)  # the calling thread takes next, so no other has to be woken
            return
        del self._lanes[key]
        if not self._lanes:
            self._changed.notify_all()
