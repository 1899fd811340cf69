"""Figures of the broker for monitoring: rates, backlogs and their age, the disk, the event loop, connections."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from enode_django.equeue.broker.calls import Background, Call, Later
from enode_django.equeue.broker.segments import UnreadTime
from enode_django.equeue.broker.state import BrokerState
from enode_django.equeue.broker.store import MessageStore
from enode_django.equeue.histograms import SECONDS, Histogram

if TYPE_CHECKING:
    from enode_django.equeue.broker.sessions import Session

LOOK_INTERVAL = 0.25
"""Seconds between two measurements of the loop's delay."""
QUEUES_AT_ONCE = 200
"""Queues of groups that are measured before the loop runs other tasks."""
MOST_READS = 64
"""Index files that are read for one set of figures; the missing figures follow with the next ones."""
MOST_CLIENTS = 100
OTHERS = "others"

Figures = Mapping[str, Any]
"""Numbers, texts, and lists and dictionaries of them, which fit into a frame."""


class Measuring:
    """Makes the figures. Lives in the event loop; another thread reads from the disk."""

    def __init__(
        self,
        store: MessageStore,
        state: BrokerState,
        sessions: Collection[Session],
        sent_bytes: Mapping[str, int],
        waiting: Callable[[], Mapping[str, int]],
    ) -> None:
        self._store = store
        self._state = state
        self._sessions = sessions
        self._sent_bytes = sent_bytes
        self._waiting = waiting
        self._delays = Histogram(SECONDS)
        self._looked = time.monotonic()
        self._times: dict[tuple[str, int, int], int] = {}
        """By topic, queue and offset: when the batch there was stored, in milliseconds since 1970."""
        self._background = Background()

    async def look(self) -> None:
        """Measure the delay of the loop: the time since the last call, less `LOOK_INTERVAL`."""
        now = time.monotonic()
        self._delays.add(max(now - self._looked - LOOK_INTERVAL, 0.0))
        self._looked = now

    def begin(self, call: Call) -> Later:
        return self._background.answer(call, "figures", self.figures())

    async def figures(self) -> Figures:
        groups, unread = await self._groups()
        found, free = await asyncio.to_thread(self._from_disk, unread[:MOST_READS])
        if found:
            self._times |= found
            groups, _ = await self._groups()
        return {
            "measured_at": time.time(),
            "topics": self._topics(),
            "groups": groups,
            "fsync_seconds": self._store.sync_seconds.as_map(),
            "loop_delay_seconds": self._delays.as_map(),
            "connections": self._connections(),
            "free_bytes": free,
            "stored_bytes": self._store.size,
            "since_checkpoint_bytes": self._store.since_checkpoint,
            "reads": asdict(self._store.reader.counts),
            **self._stored_and_waiting(),
        }

    def status(self) -> Figures:
        """Return figures about the broker, for people."""
        return {
            "run": self._state.run,
            "bytes": self._store.size,
            "since_checkpoint": self._store.since_checkpoint,
            **{f"{place}_reads": count for place, count in asdict(self._store.reader.counts).items()},
            "free_bytes": self._store.space.free,
            **self._stored_and_waiting(),
        }

    def _from_disk(self, unread: Sequence[UnreadTime]) -> tuple[dict[tuple[str, int, int], int], int]:
        """Return the times that were read, and the free bytes. Blocks; runs in another thread."""
        times = {each.key: each.read() for each in unread}
        return {key: value for key, value in times.items() if value is not None}, self._store.space.free

    def _topics(self) -> dict[str, dict[str, int]]:
        """``messages`` counts all that a topic ever took: the sum of its queues' ends."""
        return {
            name: {
                "messages": sum(self._known_bounds(name, queue)[1] for queue in range(topic.queues)),
                "bytes": self._sent_bytes.get(name, 0),
            }
            for name, topic in self._state.coordinator.topics.items()
        }

    async def _groups(self) -> tuple[list[Any], list[UnreadTime]]:
        """Return for each topic and group the sum of its offsets and, per queue, its number, its backlog, and the age
        of that in seconds; and the reads that complete the ages."""
        groups: list[Any] = []
        unread: list[UnreadTime] = []
        used: dict[tuple[str, int, int], int] = {}
        looked = 0
        for name, topic in list(self._state.coordinator.topics.items()):
            for group, record in list(topic.groups.items()):
                if not record.counts:
                    continue
                committed = {q: claim.committed for q, claim in record.claims.items()}
                rows: list[Any] = []
                for queue in range(topic.queues):
                    rows.append(self._row(name, queue, committed.get(queue, 0), used, unread))
                    looked += 1
                    if looked % QUEUES_AT_ONCE == 0:
                        await asyncio.sleep(0)
                groups.append([name, group, sum(committed.values()), rows])
        self._times = used
        return groups, unread

    def _row(
        self, topic: str, queue: int, committed: int, used: dict[tuple[str, int, int], int], unread: list[UnreadTime]
    ) -> tuple[int, int, float | None]:
        """Return queue, backlog and age (None: unknown). Add a known time to ``used``, a missing one to ``unread``."""
        first, end = self._known_bounds(topic, queue)
        offset = max(first, committed)
        if offset >= end:
            return queue, 0, 0.0
        key = topic, queue, offset
        at = self._times.get(key) or self._store.queues.time_at(topic, queue, offset)
        if isinstance(at, UnreadTime):
            unread.append(at)
            return queue, end - offset, None
        if at is None:
            return queue, end - offset, None
        used[key] = at
        return queue, end - offset, max(self._store.now() - at / 1000, 0.0)

    def _known_bounds(self, topic: str, queue: int) -> tuple[int, int]:
        """Return a queue's first offset and end. Waits for no file: a first offset that only a file holds is 0."""
        index = self._store.queues.get(topic, queue)
        return (index.known_first, index.end) if index is not None else (0, 0)

    def _stored_and_waiting(self) -> Figures:
        store = self._store
        return {
            "unflushed_bytes": store.unflushed_bytes,
            "held_bytes": store.held_bytes,
            "ring_batches": len(store.ring),
            "ring_bytes": store.ring.held_bytes,
            "uses_reserve": store.space.refuses_sends,
            "deleted_early": store.deletion.early,
            "damaged_batches": len(store.reader.damaged),
            **self._waiting(),
        }

    def _connections(self) -> dict[str, int]:
        """Return the number of connections by client address; `OTHERS` are those beyond `MOST_CLIENTS` addresses."""
        counts = Counter(session.client for session in list(self._sessions))
        shown = dict(counts.most_common(MOST_CLIENTS))
        rest = counts.total() - sum(shown.values())
        return {**shown, OTHERS: rest} if rest else shown
