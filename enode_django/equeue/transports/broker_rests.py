"""Messages beyond those asked for: the broker returns whole batches, and a pull may want fewer."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence
from typing import NamedTuple

from enode_django.equeue.messages import PulledBatch

KEPT_BYTES = 32 * 1024 * 1024


class _Rest(NamedTuple):
    offsets: Sequence[int]
    bodies: list[bytes]
    size: int
    route: int | None


class Rests:
    """Messages by the offset that is asked for next. Thread-safe. The oldest are dropped to make room."""

    def __init__(self) -> None:
        self._rests: OrderedDict[tuple[str, int, int], _Rest] = OrderedDict()
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
            rest, run = self._rests.pop((topic, queue, offset), None), self.run
            if rest is None:
                return None
            self._size -= rest.size
        return self._given(topic, queue, rest.offsets, rest.bodies, limit, rest.route, run)

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
        return self._given(topic, queue, offsets, bodies, limit, route, run)

    def _given(
        self,
        topic: str,
        queue: int,
        offsets: Sequence[int],
        bodies: list[bytes],
        limit: int,
        route: int | None,
        run: int,
    ) -> PulledBatch:
        if len(bodies) > limit:
            rest = _Rest(offsets[limit:], bodies[limit:], sum(map(len, bodies[limit:])), route)
            self._keep((topic, queue, offsets[limit - 1] + 1), rest, run)
            offsets, bodies = offsets[:limit], bodies[:limit]
        return PulledBatch(queue, offsets, bodies, route)

    def _keep(self, key: tuple[str, int, int], rest: _Rest, run: int) -> None:
        with self._lock:
            if run != self.run:
                return
            replaced = self._rests.pop(key, None)
            if replaced is not None:
                self._size -= replaced.size
            self._rests[key] = rest
            self._size += rest.size
            while self._size > KEPT_BYTES and self._rests:
                self._size -= self._rests.popitem(last=False)[1].size
