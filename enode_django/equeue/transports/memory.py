"""Queues in the memory of a process: for tests, for `inline` runs, and for trials.

All other drivers behave like this one, except that its content ends with the process; a forked child has a copy.
"""

from __future__ import annotations

import threading
import time
import uuid
from bisect import bisect_left
from collections.abc import Callable, Collection, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from operator import itemgetter

from enode_django.equeue.assignment import Allocate, divide
from enode_django.equeue.coordination import Coordinator
from enode_django.equeue.known_sends import KnownSends
from enode_django.equeue.messages import (
    Commit,
    GroupState,
    Lease,
    Membership,
    Once,
    PulledBatch,
    QueueState,
    Route,
    Start,
)
from enode_django.equeue.refusals import check_deletable_queue, check_limit, check_route, check_size, check_unused
from enode_django.equeue.topic_records import Bounds
from enode_django.equeue.transport import LONG_POLL

__all__ = ["MemoryTransport"]


@dataclass(slots=True)
class _Queue:
    """A queue. ``times`` has the time of each send and the offset of its first message."""

    first: int = 0
    bodies: list[bytes] = field(default_factory=list)
    times: list[tuple[float, int]] = field(default_factory=list)

    @property
    def end(self) -> int:
        return self.first + len(self.bodies)

    def read(self, offset: int, limit: int) -> tuple[range, list[bytes]]:
        start = max(offset, self.first)
        bodies = self.bodies[start - self.first : start - self.first + limit]
        return range(start, start + len(bodies)), bodies

    def add(self, bodies: Sequence[bytes]) -> int:
        first = self.end
        self.times.append((time.time(), first))
        self.bodies += bodies
        return first

    def offset_at(self, moment: float) -> int:
        place = bisect_left(self.times, (moment, 0))
        return max(self.first, self.times[place][1]) if place < len(self.times) else self.end

    def holds_after(self, offset: int) -> bool:
        return self.end > max(offset, self.first)

    def trim(self, offset: int) -> None:
        if offset > self.first:
            del self.bodies[: offset - self.first]
            self.first = offset
            del self.times[: max(0, bisect_left(self.times, offset + 1, key=itemgetter(1)) - 1)]


class MemoryInbox:
    def __init__(self, address: str, forget: Callable[[str], object]) -> None:
        self.address = address
        self._forget = forget
        self._bodies: list[bytes] = []
        self._closed = False
        self._changed = threading.Condition()

    def receive(self, wait: float) -> Sequence[bytes]:
        with self._changed:
            self._changed.wait_for(lambda: self._bodies or self._closed, timeout=wait)
            received, self._bodies = self._bodies, []
            return received

    def close(self) -> None:
        self._forget(self.address)
        with self._changed:
            self._closed = True
            self._bodies = []
            self._changed.notify_all()

    def deliver(self, body: bytes) -> None:
        """Add an answer. Called by the replying thread."""
        with self._changed:
            if not self._closed:
                self._bodies.append(body)
                self._changed.notify_all()


class MemoryTransport:
    """Implements `Transport` for the threads of one process.

    ``location`` is ignored; it exists so that settings name every driver in the same way. ``clock`` returns the
    seconds that leases are measured by, ``allocate`` divides the queues among the members of a group. `close` keeps
    the messages.

    For example::

        transport = MemoryTransport()
        transport.create_topic("orders", 4)
        assert transport.send("orders", {0: [b"3 apples"]}) == {0: 0}
    """

    max_send = 64 * 1024 * 1024

    def __init__(
        self, location: str = "", *, clock: Callable[[], float] = time.monotonic, allocate: Allocate = divide
    ) -> None:
        self.location = location
        self._clock = clock
        self._coordinator = Coordinator(allocate)
        self._queues: dict[str, list[_Queue]] = {}
        self._sends = KnownSends()
        self._changed = threading.Condition()
        self._inboxes: dict[str, MemoryInbox] = {}
        self._woken: set[int] = set()
        self._timeline = uuid.uuid4().hex

    # -- topics ---------------------------------------------------------------------------------------------------

    def topics(self) -> Sequence[str]:
        with self._changed:
            return sorted(self._coordinator.topics)

    def create_topic(self, topic: str, queues: int) -> int:
        with self._changed:
            return self._grow(topic, self._coordinator.create_topic(topic, queues))

    def queue_count(self, topic: str) -> int:
        with self._changed:
            return self._coordinator.topic(topic).queues

    def queues(self, topic: str) -> Mapping[int, QueueState]:
        with self._changed:
            return self._coordinator.topic(topic).shown(self._bounds(topic))

    def route(self, topic: str) -> Route:
        with self._changed:
            return self._coordinator.topic(topic).route

    def add_queues(self, topic: str, queues: int, *, unordered: bool = False) -> int:
        with self._changed:
            bounds = self._bounds(topic)
            return self._grow(topic, self._coordinator.add_queues(topic, queues, unordered=unordered, bounds=bounds))

    def show(
        self,
        topic: str,
        queue: int,
        *,
        to_producers: bool | None = None,
        to_consumers: bool | None = None,
        unordered: bool = False,
    ) -> None:
        with self._changed:
            self._coordinator.show(
                topic,
                queue,
                to_producers=to_producers,
                to_consumers=to_consumers,
                unordered=unordered,
                bounds=self._bounds(topic),
            )

    def _grow(self, topic: str, count: int) -> int:
        queues = self._queues.setdefault(topic, [])
        queues += (_Queue() for _ in range(len(queues), count))
        return count

    def _of(self, topic: str) -> Sequence[_Queue]:
        """Return the topic's queues. A deleted topic of the same name may have had more, whose ends are kept."""
        count = self._coordinator.topic(topic).queues
        return self._queues[topic][:count]

    def _bounds(self, topic: str) -> Bounds:
        return {number: (queue.first, queue.end) for number, queue in enumerate(self._of(topic))}

    def delete_topic(self, topic: str, *, force: bool = False) -> None:
        with self._changed:
            bounds = self._bounds(topic)
            if not force:
                check_unused(topic, self._coordinator.groups(topic, now=self._clock()), bounds)
            self._coordinator.delete_topic(topic)
            for queue in self._queues[topic]:
                queue.trim(queue.end)
            self._sends.forget_topic(topic)
            self._changed.notify_all()

    def delete_queue(self, topic: str, queue: int, *, force: bool = False) -> None:
        with self._changed:
            state = self._coordinator.topic(topic, (queue,)).shown(self._bounds(topic))[queue]
            groups = self._coordinator.groups(topic, now=self._clock())
            check_deletable_queue(topic, queue, state, groups, force=force)
            self._coordinator.delete_queue(topic, queue, state.end)
            self._queues[topic][queue].trim(state.end)

    def announce(self, topic: str, producer: str) -> None:
        with self._changed:
            self._coordinator.topic(topic).producers.hear(producer, now=self._clock())

    def producers(self, topic: str) -> Mapping[str, float]:
        with self._changed:
            return self._coordinator.topic(topic).producers.seconds(now=self._clock())

    # -- messages -------------------------------------------------------------------------------------------------

    def send(
        self, topic: str, bodies: Mapping[int, Sequence[bytes]], *, route: int | None = None, once: Once | None = None
    ) -> Mapping[int, int]:
        check_size(bodies, self.max_send)
        with self._changed:
            known = self._coordinator.topic(topic, bodies)
            sent = (topic, bytes.fromhex(once.producer), once.sequence) if once is not None else None
            if sent is not None and (answer := self._sends.answer(*sent)) is not None:
                return answer
            check_route(topic, route, known.version)
            queues = self._queues[topic]
            first = {number: queues[number].add(added) for number, added in bodies.items() if added}
            if sent is not None:
                self._sends.add(*sent, first, self._clock())
            self._changed.notify_all()
        return first

    def pull(
        self, topic: str, offsets: Mapping[int, int], *, limit: int, wait: float = LONG_POLL
    ) -> Sequence[PulledBatch]:
        check_limit(limit)
        with self._changed:
            self._coordinator.topic(topic, offsets)
            if offsets and wait > 0:
                self._wait(topic, offsets, wait)
            route = self._coordinator.topic(topic, offsets).version
            found = ((number, self._queues[topic][number].read(at, limit)) for number, at in offsets.items())
            return [PulledBatch(number, places, bodies, route) for number, (places, bodies) in found if bodies]

    def look(self, topic: str, offsets: Mapping[int, int]) -> Sequence[PulledBatch]:
        return self.pull(topic, offsets, limit=1, wait=0)

    def _wait(self, topic: str, offsets: Mapping[int, int], seconds: float) -> None:
        """Wait until a message comes, the topic is deleted, or the thread is woken."""
        thread, queues = threading.get_ident(), self._queues[topic]

        def is_over() -> bool:
            ends_early = thread in self._woken or topic not in self._coordinator.topics
            return ends_early or any(queues[number].holds_after(at) for number, at in offsets.items())

        self._changed.wait_for(is_over, timeout=seconds)
        self._woken.discard(thread)

    def wake(self, thread: int) -> None:
        with self._changed:
            self._woken.add(thread)
            self._changed.notify_all()

    def end_offsets(self, topic: str) -> Mapping[int, int]:
        with self._changed:
            return {number: end for number, (_, end) in self._bounds(topic).items()}

    def offsets_at(self, topic: str, time: float) -> Mapping[int, int]:
        with self._changed:
            return {number: queue.offset_at(time) for number, queue in enumerate(self._of(topic))}

    def timelines(self, topic: str) -> Mapping[int, str]:
        with self._changed:
            return dict.fromkeys(range(self._coordinator.topic(topic).queues), self._timeline)

    # -- groups ---------------------------------------------------------------------------------------------------

    def join(self, group: str, topic: str, member: str, session: float) -> Membership:
        with self._changed:
            return self._coordinator.join(group, topic, member, session, now=self._clock())

    def leave(self, group: str, topic: str, member: str) -> None:
        with self._changed:
            self._coordinator.leave(group, topic, member, now=self._clock())

    def bury(self, group: str, topic: str, member: str, deaths: Collection[tuple[int, int]] = ()) -> None:
        with self._changed:
            self._coordinator.bury(group, topic, member, deaths, now=self._clock())

    def acquire(
        self, group: str, topic: str, queue: int, owner: str, lease: float, *, start: Start | int = Start.FIRST
    ) -> Lease:
        with self._changed:
            self._coordinator.topic(topic, (queue,))
            bounds = self._bounds(topic)[queue]
            return self._coordinator.acquire(group, topic, queue, owner, lease, start, bounds=bounds, now=self._clock())

    def renew(self, group: str, topic: str, owner: str, epochs: Mapping[int, int], lease: float) -> AbstractSet[int]:
        with self._changed:
            return self._coordinator.renew(group, topic, owner, epochs, lease, now=self._clock())

    def release(self, group: str, topic: str, owner: str, epochs: Mapping[int, int]) -> None:
        with self._changed:
            self._coordinator.release(group, topic, owner, epochs)

    def commit(self, group: str, topic: str, commits: Mapping[int, Commit]) -> AbstractSet[int]:
        with self._changed:
            return self._coordinator.commit(group, topic, commits)

    def receipts(self, group: str, topic: str, queue: int) -> Sequence[bytes]:
        with self._changed:
            return self._coordinator.receipts(group, topic, queue)

    def committed(self, group: str, topic: str) -> Mapping[int, int]:
        with self._changed:
            return self._coordinator.committed(group, topic)

    def set_offset(self, group: str, topic: str, queue: int, offset: int) -> None:
        with self._changed:
            self._coordinator.topic(topic, (queue,))
            self._coordinator.set_offset(group, topic, queue, offset, bounds=self._bounds(topic)[queue])

    def groups(self, topic: str) -> Mapping[str, GroupState]:
        with self._changed:
            return self._coordinator.groups(topic, now=self._clock())

    def delete_group(self, group: str, topic: str) -> None:
        with self._changed:
            self._coordinator.delete_group(group, topic)

    def retire_group(self, group: str, topic: str) -> None:
        with self._changed:
            self._coordinator.retire_group(group, topic)

    def pause_group(self, group: str, topic: str, *, paused: bool = True) -> None:
        with self._changed:
            self._coordinator.pause_group(group, topic, paused)

    def paused_groups(self, topic: str) -> Sequence[str]:
        with self._changed:
            return self._coordinator.paused_groups(topic)

    def trim(self, topic: str) -> None:
        with self._changed:
            known = self._coordinator.topic(topic)
            for number, queue in enumerate(self._of(topic)):
                aged = queue.end if known.max_age is None else queue.offset_at(time.time() - known.max_age)
                queue.trim(min(known.lowest_committed(number), aged))

    def set_retention(self, topic: str, max_age: float | None) -> None:
        with self._changed:
            self._coordinator.set_retention(topic, max_age)

    def retention(self, topic: str) -> float | None:
        with self._changed:
            return self._coordinator.topic(topic).max_age

    # -- answers --------------------------------------------------------------------------------------------------

    def open_inbox(self) -> MemoryInbox:
        inbox = MemoryInbox(uuid.uuid4().hex, lambda address: self._inboxes.pop(address, None))
        self._inboxes[inbox.address] = inbox
        return inbox

    def reply(self, replies: Sequence[tuple[str, bytes]]) -> None:
        for address, body in replies:
            inbox = self._inboxes.get(address)
            if inbox is not None:
                inbox.deliver(body)

    def close(self) -> None:
        pass
