"""One topic's messages on their way to a consumer."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Sequence
from datetime import datetime
from typing import Protocol

from enode_django.equeue.consumer import Acquired, PulledMessages
from enode_django.equeue.messages import Start
from enode_django.equeue.offsets import OffsetWindow
from enode_django.equeue.retrying import Failed, Message, decode
from enode_django.equeue.transports.base import Transport
from enode_django.equeue.worklist import Task, Worklist
from enode_django.exceptions import MalformedMessage, PartlyUnavailable

logger = logging.getLogger("enode_django.equeue")

LOOK_FOR_ROOM = 0.2
"""Seconds until somebody who holds as many messages as it may looks whether it is to stop."""

MakeTask = Callable[[OffsetWindow, int, bytes], Task]


class OwnedQueues(Protocol):
    """What `QueueConsumer` and `BroadcastQueues` have in common."""

    @property
    def owned(self) -> frozenset[int]: ...

    @property
    def unfinished(self) -> int: ...

    def join(self) -> None: ...

    def leave(self) -> None: ...

    def renew(self) -> None: ...

    def commit(self) -> None: ...

    def trim(self) -> None: ...

    def acquire_missing(self) -> list[Acquired]: ...

    @property
    def pull_wait(self) -> float: ...

    def pull(self, limit: int, wait: float, *, without: Collection[int] = ()) -> list[PulledMessages]: ...

    def wake(self) -> None: ...

    def release_drained(self, held: Callable[[OffsetWindow], int] = ...) -> None: ...


class Starts:
    """Where queues begin of which a group has nothing yet. It is asked once, so that a queue which is added later
    begins at its first message."""

    def __init__(self, transport: Transport, topic: str, start: Start | datetime) -> None:
        self._transport = transport
        self._topic = topic
        self._start = start
        self._offsets: dict[int, int] | None = None

    def ask(self) -> None:
        """Raises what the transport raises. Later calls change nothing."""
        if self._offsets is not None:
            return
        if isinstance(self._start, datetime):
            self._offsets = dict(self._transport.offsets_at(self._topic, self._start.timestamp()))
        elif self._start is Start.LAST:
            self._offsets = dict(self._transport.end_offsets(self._topic))
        else:
            self._transport.queue_count(self._topic)
            self._offsets = {}

    def __call__(self, queue: int) -> int:
        return (self._offsets or {}).get(queue, 0)


def task_of_message(window: OffsetWindow, offset: int, body: bytes) -> Task:
    return Task(window, offset, Message(window.topic, window.queue, offset, body))


def task_of_retry(window: OffsetWindow, offset: int, body: bytes) -> Task:
    try:
        failed = decode(body)
        if isinstance(failed, Failed):
            message = failed.message
            return Task(window, offset, message._replace(attempt=message.attempt + 1), failed.due)
        broken = "no message to try again"
    except MalformedMessage as error:
        broken = str(error)
    return task_of_message(window, offset, body)._replace(broken=broken)


class Share:
    """`prepare`, `pull` and `release` are called by the pulling thread, `beat`, `commit` and `leave` by the keeper,
    `finish` by any. All but `finish` raise what the transport raises.

    With ``max_held`` messages unfinished it pulls no more, until a quarter of them is finished; one more of each queue
    may have come by then.
    """

    def __init__(
        self,
        topic: str,
        queues: OwnedQueues,
        worklist: Worklist,
        *,
        starts: Starts,
        make_task: MakeTask = task_of_message,
        max_held: int | None,
        limit: int,
    ) -> None:
        self.topic = topic
        self.prepared = False
        self._queues = queues
        self._worklist = worklist
        self._starts = starts
        self._make_task = make_task
        self._max_held = max_held
        self._limit = limit
        self._windows: list[OffsetWindow] = []
        self._given_up: list[OffsetWindow] = []
        self._moved = threading.Event()

    def prepare(self) -> None:
        """Raises `UnknownTopic` while there is none."""
        if not self.prepared:
            self._starts.ask()
            self._queues.join()
            self.prepared = True

    def pull(self) -> None:
        """Blocks until something has come, `wake` is called, or the long poll is over."""
        self.prepare()
        self._take_over()
        limit = self._room()
        if limit:
            for pulled in self._queues.pull(limit, self._queues.pull_wait):
                self._worklist.post(self._tasks(pulled))

    def _take_over(self) -> None:
        try:
            self._windows += (one.window for one in self._queues.acquire_missing())
        finally:
            self._give_up([w for w in self._windows if w.closed or w.queue not in self._queues.owned])
        self._queues.release_drained(self._worklist.left)
        for window in [window for window in self._given_up if window.closed]:
            self._given_up.remove(window)
            self._worklist.forget(window)

    def _give_up(self, windows: Sequence[OffsetWindow]) -> None:
        for window in windows:
            self._worklist.withdraw(window)
            self._windows.remove(window)
            self._given_up.append(window)

    def _room(self) -> int:
        """How many messages of each queue to pull; waits for a moment when it is none."""
        if self._max_held is None:
            return self._limit
        self._moved.clear()
        room = self._max_held - self._queues.unfinished
        if room < max(1, self._max_held // 4):
            self._moved.wait(LOOK_FOR_ROOM)
            return 0
        return max(1, min(self._limit, room // max(1, len(self._queues.owned))))

    def _tasks(self, pulled: PulledMessages) -> list[Task]:
        return [
            self._make_task(pulled.window, offset, bytes(body))
            for offset, body in zip(pulled.offsets, pulled.bodies, strict=True)
        ]

    def finish(self, task: Task) -> None:
        task.window.finish(task.offset)
        self._moved.set()

    def wake(self) -> None:
        """Let the pulling thread return from `pull` soon. Called by any thread."""
        self._queues.wake()

    def beat(self) -> None:
        if self.prepared:
            try:
                self._queues.renew()  # first: it must not wait for an answer that is late
            except PartlyUnavailable:
                self._queues.join()
                raise
            self._queues.join()

    def renew(self) -> None:
        self._queues.renew()

    def commit(self) -> None:
        self._queues.commit()

    def trim(self) -> None:
        if self.prepared:
            self._queues.trim()

    def leave(self) -> None:
        if self.prepared:
            self._queues.leave()

    def withdraw(self) -> None:
        """Let nothing wait for its due time any more."""
        for window in self._windows:
            self._worklist.withdraw(window)

    def release(self) -> None:
        """After `leave`, and when nothing is pulled any more: give back all that nobody is at work on."""
        self._queues.acquire_missing()
        self._queues.release_drained(self._worklist.left)
