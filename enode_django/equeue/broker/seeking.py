"""Find offsets by time."""

from __future__ import annotations

from collections.abc import Iterable

from enode_django.equeue.broker.index import NotInMemory
from enode_django.equeue.broker.index_loader import IndexLoader
from enode_django.equeue.broker.store import MessageStore


async def offsets_at(
    store: MessageStore, indexes: IndexLoader, topic: str, queues: Iterable[int], at: float
) -> dict[int, int]:
    """Return the offset of each queue at a time in seconds since 1970. The event loop waits for no index file."""
    return {queue: await _offset_at(store, indexes, topic, queue, at) for queue in queues}


async def _offset_at(store: MessageStore, indexes: IndexLoader, topic: str, queue: int, at: float) -> int:
    while True:
        try:
            return store.offset_at(topic, queue, at)
        except NotInMemory as missing:
            await indexes.load_anyway(missing.load)
