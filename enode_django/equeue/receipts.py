"""The newest receipts of one queue, in a form that is cheap to copy and to pack. Pure.

A broker writes down its whole state again and again while it serves. 1,000 queues of 10,000 receipts are ten million
small objects; in blocks they are forty thousand, each packed once, when it is full.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgpack

BLOCK = 256


@dataclass(slots=True)
class Receipts:
    """Receipts, oldest first. Full ``blocks`` are packed and never change; the newest receipts are in ``loose``. The
    first ``dropped`` of all are not kept any longer. ``_taken_down`` caches the blocks for `plain`."""

    blocks: deque[bytes] = field(default_factory=deque)
    loose: list[bytes] = field(default_factory=list)
    dropped: int = 0
    _taken_down: tuple[bytes, ...] | None = field(default=None, init=False, compare=False, repr=False)

    def __len__(self) -> int:
        return len(self.blocks) * BLOCK + len(self.loose) - self.dropped

    def add(self, bodies: Iterable[bytes]) -> None:
        self.loose += bodies
        while len(self.loose) >= BLOCK:
            self.blocks.append(msgpack.packb(self.loose[:BLOCK]))
            self._taken_down = None
            del self.loose[:BLOCK]

    def keep(self, newest: int) -> None:
        """Drop all but the ``newest`` receipts."""
        self.dropped += max(0, len(self) - newest)
        while self.blocks and self.dropped >= BLOCK:
            self.blocks.popleft()
            self._taken_down = None
            self.dropped -= BLOCK
        if not self.blocks:
            del self.loose[: self.dropped]
            self.dropped = 0

    def since(self, first: int) -> list[bytes]:
        """Return the receipts from index ``first`` on."""
        place = first + self.dropped
        found: list[bytes] = []
        for number, block in enumerate(self.blocks):
            if (number + 1) * BLOCK > place:
                found += msgpack.unpackb(block)[max(0, place - number * BLOCK) :]
        return found + self.loose[max(0, place - len(self.blocks) * BLOCK) :]

    def plain(self) -> list[Any]:
        """Return a value for `restore`; later changes do not change it."""
        if self._taken_down is None:
            self._taken_down = tuple(self.blocks)
        return [self.dropped, self._taken_down, tuple(self.loose)]

    @classmethod
    def restore(cls, plain: Sequence[Any]) -> Receipts:
        dropped, blocks, loose = plain
        return cls(deque(blocks), list(loose), dropped)
