"""Messages beyond those asked for: the broker returns whole batches, and a pull may want fewer."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence

from enode_django.equeue.messages import PulledBatch

KEPT_BYTES = 32 * 1024 * 1024


class Rests:
    """Messages by the offset that is asked for next. Thread-safe. The oldest are dropped to make room."""

    def __init__(self) -> None:
        self._rests: OrderedDict[tuple[str, int, int], tuple[PulledBatch, int]] = OrderedDict()
        """The messages behind those that were returned, with the size of their bodies."""
        self._size = 0
        self.run = 0
        """The newest run that was called."""
        self._lock = threading.Lock()

    def of_run(self, run: int) -> None:
        """Drop messages of another run of the broker: after a crash offsets may stand for other messages."""
        if run != self.run:
            with self._lock:
                self.run = run
                self._rests.clear()
                self._size = 0

    def take(self, topic: str, queue: int, offset: int, limit: int) -> PulledBatch | None:
        """Return up to ``limit`` messages from an offset on if they are kept here, else None."""
        if not self._rests:
            return None
        with self._lock:
            rest, size = self._rests.pop((topic, queue, offset), (None, 0))
            self._size -= size
            run = self.run
        return self._given(topic, rest, limit, run) if rest is not None else None

    def cut(
        self,
        topic: str,
        queue: int,
        offset: int,
        limit: int,
        batches: Sequence[tuple[int, list[bytes]]],
        route: int | None = None,
        *,
        run: int,
    ) -> PulledBatch:
        """Return up to ``limit`` messages from an offset on, of consecutive batches (first offset, bodies), read under
        a version of the route; keep the rest. Nothing is kept if the ``run`` that gave them is over: another thread has
        called the next one since then."""
        offsets: Sequence[int] = ()
        bodies: list[bytes] = []
        for first, messages in batches:
            skipped = max(offset - first, 0)
            more = range(first + skipped, first + len(messages))
            if not bodies:
                offsets, bodies = more, messages[skipped:] if skipped else messages
            elif isinstance(offsets, range) and offsets.stop == more.start:
                offsets, bodies = range(offsets.start, more.stop), bodies + messages
            else:
                offsets, bodies = [*offsets, *more], bodies + messages
        return self._given(topic, PulledBatch(queue, offsets, bodies, route), limit, run)

    def _given(self, topic: str, batch: PulledBatch, limit: int, run: int) -> PulledBatch:
        queue, offsets, bodies, route = batch
        if len(bodies) <= limit:
            return batch
        rest = PulledBatch(queue, offsets[limit:], bodies[limit:], route)
        self._keep((topic, queue, offsets[limit - 1] + 1), rest, run)
        return PulledBatch(queue, offsets[:limit], bodies[:limit], route)

    def _keep(self, key: tuple[str, int, int], rest: PulledBatch, run: int) -> None:
        size = sum(map(len, rest.bodies))
        with self._lock:
            if run != self.run:
                return
            _, replaced = self._rests.pop(key, (None, 0))
            self._rests[key] = (rest, size)
            self._size += size - replaced
            while self._size > KEPT_BYTES and self._rests:
                _, (_, dropped) = self._rests.popitem(last=False)
                self._size -= dropped
