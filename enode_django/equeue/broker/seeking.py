"""Find offsets by time."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

from enode_django.equeue.broker.calls import LATER, Call, Later
from enode_django.equeue.broker.index import NotInMemory
from enode_django.equeue.broker.index_loader import IndexLoader
from enode_django.equeue.broker.store import MessageStore
from enode_django.exceptions import EnodeError, QueueError

logger = logging.getLogger(__name__)


class Seeking:
    """Finds offsets by time. Lives in the event loop, which waits for no index file."""

    def __init__(self, store: MessageStore, indexes: IndexLoader) -> None:
        self._store = store
        self._indexes = indexes
        self._tasks: set[asyncio.Task[None]] = set()

    def offsets_at(self, call: Call, topic: str, queues: Sequence[int], at: float) -> Later:
        """Answer with the offset of each queue at a time in seconds since 1970."""
        task = asyncio.create_task(self._answer(call, topic, queues, at))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return LATER

    async def _answer(self, call: Call, topic: str, queues: Sequence[int], at: float) -> None:
        try:
            call.answer({queue: await self._offset_at(topic, queue, at) for queue in queues})
        except EnodeError as error:
            call.fail(error)
        except Exception:  # the client must get an answer even if this is a defect
            logger.exception("request offsets_at failed")
            call.fail(QueueError("the broker failed at offsets_at; its log says why"))

    async def _offset_at(self, topic: str, queue: int, at: float) -> int:
        while True:
            try:
                return self._store.offset_at(topic, queue, at)
            except NotInMemory as missing:
                await self._indexes.load_anyway(missing.load)
