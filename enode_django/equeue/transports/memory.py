"""Queues in this process's memory: for tests, for `inline` runs, and for trying things out.

Every other driver behaves like this one; only what it holds ends with the process, and a forked child has a copy.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Collection, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field

from enode_django.equeue.messages import Commit, Lease, PulledBatch
from enode_django.equeue.transports.base import check_limit, check_new_topic, check_queues
from enode_django.exceptions import QueueHeld, UnknownTopic


@dataclass(slots=True)
class _Queue:
    first: int = 0
    bodies: list[bytes] = field(default_factory=list)

    @property
    def end(self) -> int:
        return self.first + len(self.bodies)

    def read(self, offset: int, limit: int) -> tuple[range, list[bytes]]:
        start = max(offset, self.first)
        bodies = self.bodies[start - self.first : start - self.first + limit]
        return range(start, start + len(bodies)), bodies

    def holds_after(self, offset: int) -> bool:
        return self.end > max(offset, self.first)

    def trim(self, offset: int) -> None:
        if offset > self.first:
            del self.bodies[: offset - self.first]
            self.first = offset


@dataclass(slots=True)
class _Claim:
    """What one group knows of one queue. ``owner`` is None when the lease was released."""

    owner: str | None = None
    until: float = 0.0
    epoch: int = 0
    offset: int = 0
    receipts: list[bytes] = field(default_factory=list)

    def commit(self, commit: Commit) -> None:
        if commit.offset <= self.offset:
            return
        self.receipts += (receipt.body for receipt in commit.receipts if receipt.offset >= self.offset)
        if commit.receipts:
            del self.receipts[: max(0, len(self.receipts) - commit.keep)]
        self.offset = commit.offset


class _Topic:
    """The queues of a topic, and per group the claims on them; all of it under ``changed``."""

    def __init__(self, queues: int) -> None:
        self.queues = [_Queue() for _ in range(queues)]
        self.groups: dict[str, dict[int, _Claim]] = {}
        self.retired: set[str] = set()
        self.changed = threading.Condition()

    def pull(self, offsets: Mapping[int, int], limit: int) -> list[PulledBatch]:
        pulled = []
        for queue, offset in offsets.items():
            found, bodies = self.queues[queue].read(offset, limit)
            if bodies:
                pulled.append(PulledBatch(queue, found, bodies))
        return pulled

    def has_messages(self, offsets: Mapping[int, int]) -> bool:
        return any(self.queues[queue].holds_after(offset) for queue, offset in offsets.items())

    def claim(self, group: str, queue: int) -> _Claim:
        self.retired.discard(group)
        return self.groups.setdefault(group, {}).setdefault(queue, _Claim())

    def ruled_by(self, group: str, queue: int, epoch: int) -> _Claim | None:
        claim = self.groups.get(group, {}).get(queue)
        return claim if claim is not None and claim.epoch == epoch else None


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
        """Called by the thread that replies."""
        with self._changed:
            if not self._closed:
                self._bodies.append(body)
                self._changed.notify_all()


class MemoryTransport:
    """Implements `Transport` for the threads of one process.

    ``location`` means nothing here; it is taken so that settings can name any driver in the same way. ``clock``
    gives the seconds that leases are measured by. `close` keeps the messages: there is nothing to let go of.
    """

    def __init__(self, location: str = "", *, clock: Callable[[], float] = time.monotonic) -> None:
        self.location = location
        self._clock = clock
        self._lock = threading.Lock()
        self._topics: dict[str, _Topic] = {}
        self._inboxes: dict[str, MemoryInbox] = {}

    def create_topic(self, topic: str, queues: int) -> int:
        check_new_topic(topic, queues)
        with self._lock:
            if topic not in self._topics:
                self._topics[topic] = _Topic(queues)
            return len(self._topics[topic].queues)

    def queue_count(self, topic: str) -> int:
        return len(self._topic(topic).queues)

    def send(self, topic: str, bodies: Mapping[int, Sequence[bytes]]) -> Mapping[int, int]:
        target = self._topic(topic, bodies)
        first = {}
        with target.changed:
            for number, added in bodies.items():
                if added:
                    queue = target.queues[number]
                    first[number] = queue.end
                    queue.bodies.extend(added)
            target.changed.notify_all()
        return first

    def pull(self, topic: str, offsets: Mapping[int, int], *, limit: int, wait: float) -> Sequence[PulledBatch]:
        check_limit(limit)
        source = self._topic(topic, offsets)
        if not offsets:
            return []
        with source.changed:
            source.changed.wait_for(lambda: source.has_messages(offsets), timeout=wait)
            return source.pull(offsets, limit)

    def end_offsets(self, topic: str) -> Mapping[int, int]:
        source = self._topic(topic)
        with source.changed:
            return {number: queue.end for number, queue in enumerate(source.queues)}

    def acquire(
        self, group: str, topic: str, queue: int, owner: str, lease: float, *, replaces: Collection[str] = ()
    ) -> Lease:
        source = self._topic(topic, (queue,))
        with source.changed:
            claim = source.claim(group, queue)
            now = self._clock()
            previous = claim.owner if claim.owner != owner else None
            if previous is not None and previous not in replaces and claim.until > now:
                raise QueueHeld(
                    f"queue {queue} of topic {topic!r} is held by {previous!r}; try again when its lease has ended",
                    owner=previous,
                    seconds=claim.until - now,
                )
            claim.owner, claim.until, claim.epoch = owner, now + lease, claim.epoch + 1
            return Lease(claim.epoch, claim.offset, source.queues[queue].end, previous)

    def renew(self, group: str, topic: str, owner: str, epochs: Mapping[int, int], lease: float) -> AbstractSet[int]:
        source = self._topic(topic, epochs)
        lost = set()
        with source.changed:
            for queue, epoch in epochs.items():
                claim = source.ruled_by(group, queue, epoch)
                if claim is None or claim.owner != owner:
                    lost.add(queue)
                else:
                    claim.until = self._clock() + lease
        return lost

    def release(self, group: str, topic: str, owner: str, epochs: Mapping[int, int]) -> None:
        source = self._topic(topic, epochs)
        with source.changed:
            for queue, epoch in epochs.items():
                claim = source.ruled_by(group, queue, epoch)
                if claim is not None and claim.owner == owner:
                    claim.owner = None

    def commit(self, group: str, topic: str, commits: Mapping[int, Commit]) -> AbstractSet[int]:
        source = self._topic(topic, commits)
        refused = set()
        with source.changed:
            for queue, commit in commits.items():
                claim = source.ruled_by(group, queue, commit.epoch)
                if claim is None:
                    refused.add(queue)
                else:
                    claim.commit(commit)
        return refused

    def receipts(self, group: str, topic: str, queue: int) -> Sequence[bytes]:
        source = self._topic(topic, (queue,))
        with source.changed:
            claim = source.groups.get(group, {}).get(queue)
            return list(claim.receipts) if claim is not None else []

    def committed(self, group: str, topic: str) -> Mapping[int, int]:
        source = self._topic(topic)
        with source.changed:
            claims = source.groups.get(group, {})
            return {queue: claims[queue].offset if queue in claims else 0 for queue in range(len(source.queues))}

    def trim(self, topic: str) -> None:
        source = self._topic(topic)
        with source.changed:
            for number, queue in enumerate(source.queues):
                counting = [claims for group, claims in source.groups.items() if group not in source.retired]
                committed = (claims.get(number, _Claim()).offset for claims in counting)
                queue.trim(min(min(committed, default=0), queue.end))

    def retire_group(self, group: str, topic: str) -> None:
        source = self._topic(topic)
        with source.changed:
            source.retired.add(group)

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

    def _topic(self, name: str, queues: Collection[int] = ()) -> _Topic:
        topic = self._topics.get(name)
        if topic is None:
            raise UnknownTopic(f"topic {name!r} does not exist; create it with create_topic")
        check_queues(name, queues, len(topic.queues))
        return topic
