"""The messages of one topic on their way to a consumer."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import datetime
from typing import NamedTuple, TypeAlias

from enode_django.equeue.consumer.broadcasting import BroadcastQueues
from enode_django.equeue.consumer.queue_consumer import QueueConsumer
from enode_django.equeue.consumer.worklist import Task, Worklist
from enode_django.equeue.messages import MalformedBatch, Start
from enode_django.equeue.offsets import OffsetWindow
from enode_django.equeue.retrying import Failed, Message, decode
from enode_django.equeue.transport import Transport
from enode_django.exceptions import MalformedMessage, QueueHeld, UnknownQueue

logger = logging.getLogger("enode_django.equeue")

OwnedQueues: TypeAlias = QueueConsumer | BroadcastQueues
MakeTask = Callable[[OffsetWindow, int, bytes], Task]


class Room(NamedTuple):
    """The messages that may be pulled: ``limit`` from each queue at once, none from the ``full`` queues. A full queue
    has room again after ``step`` of its messages, or fewer, are finished."""

    limit: int
    full: frozenset[int]
    step: int


def room_in(unfinished: Mapping[int, int], *, max_held: int, limit: int) -> Room:
    """Divide ``max_held`` messages among queues with the given numbers of ``unfinished`` messages. A queue that holds
    its share is full until a quarter of it is finished, independently of the others.

    >>> room_in({0: 750, 1: 0, 2: 600, 3: 500}, max_held=3_000, limit=200)
    Room(limit=200, full=frozenset({0, 2}), step=187)
    >>> room_in({0: 0, 1: 0, 2: 0}, max_held=2, limit=200)
    Room(limit=1, full=frozenset(), step=1)
    """
    share = max(1, max_held // max(1, len(unfinished)))
    step = max(1, share // 4)
    room = {queue: share - held for queue, held in unfinished.items()}
    full = frozenset(queue for queue, left in room.items() if left < step)
    return Room(min([limit, *(left for left in room.values() if left >= step)]), full, step)


class Beginner(NamedTuple):
    """A member of a group, which may be the first one. ``lease``: in seconds."""

    group: str
    owner: str
    lease: float


class Starts:
    """The start offsets of queues from which a group has consumed nothing. They are fetched once; a queue that is added
    later begins at its first message.

    With a ``beginner`` a new group gets its offsets in all queues, in queue 0 last. Once it has one there, a queue
    without an offset is a later one, and begins at its first message, too.
    """

    def __init__(
        self, transport: Transport, topic: str, start: Start | datetime, beginner: Beginner | None = None
    ) -> None:
        self._transport = transport
        self._topic = topic
        self._start = start
        self._beginner = beginner if start is not Start.FIRST else None
        self._offsets: dict[int, int] | None = None

    def ask(self) -> None:
        """Fetch the offsets. Raises what the transport raises. Later calls change nothing."""
        if self._offsets is None:
            self._offsets = self._fetched()
        if self._beginner is not None:
            self._begin(self._beginner, self._offsets)
            self._beginner = None

    def _fetched(self) -> dict[int, int]:
        if isinstance(self._start, datetime):
            return dict(self._transport.offsets_at(self._topic, self._start.timestamp()))
        if self._start is Start.LAST:
            return dict(self._transport.end_offsets(self._topic))
        self._transport.queue_count(self._topic)
        return {}

    def _begin(self, beginner: Beginner, offsets: dict[int, int]) -> None:
        """Give a new group its offsets. For an existing one, forget the offsets of queues that were added since."""
        state = self._transport.groups(self._topic).get(beginner.group)
        begun = state.claims.keys() if state is not None else frozenset[int]()
        for queue in sorted(offsets.keys() - begun, reverse=True):
            if 0 in begun:
                del offsets[queue]
            else:
                self._give_offset(beginner, queue, offsets[queue])

    def _give_offset(self, beginner: Beginner, queue: int, offset: int) -> None:
        group, owner, lease = beginner
        # Another member was faster, or the topic was made again with fewer queues.
        with suppress(QueueHeld, UnknownQueue):
            epoch = self._transport.acquire(group, self._topic, queue, owner, lease, start=offset).epoch
            self._transport.release(group, self._topic, owner, {queue: epoch})

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


class TopicConsumer:
    """Pulls one topic into the worklist. The pulling thread calls `prepare`, `pull` and `release`, one thread each
    `renew` and `join`, the keeper `commit` and `leave`, any thread `finish`. All but `finish` raise what the transport
    raises.

    Each queue has its share of ``max_held`` unfinished messages (see `room_in`), so a queue with slow messages stops
    no other. `pull` waits until a quarter of ``max_held`` is free, but at most ``pause`` seconds: queues that came or
    went may have had other shares. While a queue is full, pulls do not wait for messages of the others; they are
    pulled again after the pause, or once `Room.step` messages are finished.
    """

    def __init__(
        self,
        topic: str,
        queues: OwnedQueues,
        worklist: Worklist,
        *,
        starts: Starts,
        make_task: MakeTask = task_of_message,
        max_held: int,
        limit: int,
        pause: float,
    ) -> None:
        self.topic = topic
        self.prepared = False
        self._queues = queues
        self._worklist = worklist
        self._starts = starts
        self._make_task = make_task
        self._max_held = max_held
        self._limit = limit
        self._pause = pause
        self._windows: list[OffsetWindow] = []
        self._given_up: list[OffsetWindow] = []
        self._awaited = 0
        self._finishing = threading.Lock()
        self._has_room = threading.Event()

    def prepare(self) -> None:
        """Fetch the start offsets and join the group, once. Raises `UnknownTopic` while the topic does not exist."""
        if not self.prepared:
            self._starts.ask()
            self._queues.join()
            self.prepared = True

    def pull(self) -> None:
        """Block until messages have arrived, `wake` is called, or the long poll is over."""
        self.prepare()
        self._take_over()
        scarce = self._queues.unfinished - (self._max_held - max(1, self._max_held // 4))
        if scarce > 0:
            self._wait_until_finished(scarce)
        unfinished = {window.queue: window.unfinished for window in self._windows}
        room = room_in(unfinished, max_held=self._max_held, limit=self._limit)
        if not self._pull(room) and room.full:
            self._wait_until_finished(room.step)

    def _pull(self, room: Room) -> int:
        """Return the number of messages that have arrived."""
        wait = 0.0 if room.full else self._queues.pull_wait
        came = 0
        for pulled in self._queues.pull(room.limit, wait, without=room.full):
            messages = zip(pulled.offsets, pulled.bodies, strict=True)
            self._worklist.post([self._task(pulled.window, offset, body) for offset, body in messages])
            came += len(pulled.offsets)
        return came

    def _take_over(self) -> None:
        try:
            self._windows += (one.window for one in self._queues.acquire_missing())
        finally:
            for window in [w for w in self._windows if w.closed or w.queue not in self._queues.owned]:
                self._worklist.withdraw(window)
                self._windows.remove(window)
                self._given_up.append(window)
        self._queues.release_drained(self._worklist.left)
        for window in [window for window in self._given_up if window.closed]:
            self._given_up.remove(window)
            self._worklist.forget(window)

    def _wait_until_finished(self, messages: int) -> None:
        """Wait until so many ``messages`` are finished, at most for the pause."""
        with self._finishing:
            self._has_room.clear()
            self._awaited = messages
        self._has_room.wait(self._pause)

    def _task(self, window: OffsetWindow, offset: int, body: bytes) -> Task:
        """Return the task of a pulled message. A malformed batch is never passed to a user's function."""
        if isinstance(body, MalformedBatch):
            return task_of_message(window, offset, bytes(body))._replace(broken=f"a malformed batch: {body.reason}")
        return self._make_task(window, offset, bytes(body))

    def finish(self, task: Task) -> None:
        task.window.finish(task.offset)
        with self._finishing:
            self._awaited -= 1
            has_room = self._awaited == 0
        if has_room:
            self._has_room.set()

    def wake(self) -> None:
        """Make the pulling thread return from `pull` soon. Called by any thread."""
        self._queues.wake()

    def join(self) -> None:
        if self.prepared:
            self._queues.join()

    def begin_anew(self) -> None:
        """Own nothing until `prepare` finds the deleted topic again. Called by any thread."""
        self.prepared = False
        self._queues.lose_all()

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
        """Withdraw the tasks that wait for their due time."""
        for window in self._windows:
            self._worklist.withdraw(window)

    def release(self) -> None:
        """After `leave`, when pulling has ended: release every queue that has no message in work."""
        self._queues.acquire_missing()
        self._queues.release_drained(self._worklist.left)
