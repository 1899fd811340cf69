"""Find offsets by time."""

from __future__ import annotations

from collections.abc import Sequence

from enode_django.equeue.broker.calls import Background, Call, Later
from enode_django.equeue.broker.index import NotInMemory
from enode_django.equeue.broker.index_loader import IndexLoader
from enode_django.equeue.broker.store import MessageStore


class Seeking:
    """Finds offsets by time. Lives in the event loop, which waits for no index file."""

    def __init__(self, store: MessageStore, indexes: IndexLoader) -> None:
        self._store = store
        self._indexes = indexes
        self._background = Background()

    def offsets_at(self, call: Call, topic: str, queues: Sequence[int], at: float) -> Later:
        """Answer with the offset of each queue at a time in seconds since 1970."""
        return self._background.answer(call, "offsets_at", self._offsets_at(topic, queues, at))

    async def _offsets_at(self, topic: str, queues: Sequence[int], at: float) -> dict[int, int]:
        return {queue: await self._offset_at(topic, queue, at) for queue in queues}

    async def _offset_at(self, topic: str, queue: int, at: float) -> int:
        while True:
            try:
                return self._store.offset_at(topic, queue, at)
            except NotInMemory as missing:
                await self._indexes.load_anyway(missing.load)
