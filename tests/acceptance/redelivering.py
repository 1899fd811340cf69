"""A queue that delivers everything twice, and hardly anything in order."""

from __future__ import annotations

import random
import threading
from collections import defaultdict
from collections.abc import Sequence

from enode_django.equeue.transport import Transport

WINDOW = 100
IDLE = 0.05


class Redelivery:
    """Feeds one topic from another: windows of `WINDOW` messages, each message twice, shuffled. Whoever follows the
    second topic meets events before those that came first, and again. ``with`` starts and stops it."""

    def __init__(self, transport: Transport, source: str, target: str, seed: int) -> None:
        self.delivered = 0
        self.out_of_order = 0
        self._transport = transport
        self._source = source
        self._target = target
        self._random = random.Random(seed)
        self._offsets = dict.fromkeys(transport.end_offsets(source), 0)
        self._stop = threading.Event()
        self._errors: list[BaseException] = []
        self._thread = threading.Thread(target=self._run, name="redelivery", daemon=True)

    def __enter__(self) -> Redelivery:
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._stop.set()
        self._thread.join(60)
        if self._errors and exception[0] is None:
            raise self._errors[0]

    def is_done(self) -> bool:
        """Return True if all messages of the source were delivered."""
        return self._offsets == self._transport.end_offsets(self._source)

    def _run(self) -> None:
        try:
            while not self._stop.is_set():
                self._deliver(self._next_window())
        except BaseException as error:
            self._errors.append(error)

    def _next_window(self) -> Sequence[tuple[int, int, bytes]]:
        """(queue, offset, body) of each message; fewer than a window where no more come for the moment."""
        window: list[tuple[int, int, bytes]] = []
        offsets = dict(self._offsets)
        while len(window) < WINDOW:
            batches = self._transport.pull(self._source, offsets, limit=WINDOW, wait=IDLE)
            if not batches:
                break
            for batch in batches:
                room = WINDOW - len(window)
                taken = list(zip(batch.offsets, batch.bodies, strict=True))[:room]
                window += [(batch.queue, offset, body) for offset, body in taken]
                offsets[batch.queue] = taken[-1][0] + 1 if taken else offsets[batch.queue]
        return window

    def _deliver(self, window: Sequence[tuple[int, int, bytes]]) -> None:
        if not window:
            return
        shuffled = [*window, *window]
        self._random.shuffle(shuffled)
        bodies: dict[int, list[bytes]] = defaultdict(list)
        last: dict[int, int] = {}
        for queue, offset, body in shuffled:
            bodies[queue].append(body)
            self.out_of_order += offset < last.get(queue, 0)
            last[queue] = offset
        self._transport.send(self._target, bodies)
        self.delivered += len(shuffled)
        self._offsets.update({queue: 1 + max(o for q, o, _ in window if q == queue) for queue, _, _ in window})
