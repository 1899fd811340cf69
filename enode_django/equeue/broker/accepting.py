"""Store each send once, and hold sends back while the disk does not keep up."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from enode_django.equeue.broker.batches import NewBatch
from enode_django.equeue.broker.calls import LATER, Call, Later
from enode_django.equeue.broker.pulling import Pulling
from enode_django.equeue.broker.state import BrokerState
from enode_django.equeue.broker.store import MessageStore
from enode_django.equeue.refusals import check_route
from enode_django.exceptions import EnodeError, QueueFull


class Send(NamedTuple):
    topic: str
    batches: Sequence[NewBatch]
    route: int | None
    producer: bytes
    sequence: int

    @property
    def size(self) -> int:
        return sum(len(batch.body) for batch in self.batches)


class Accepting:
    """Stores sends, or holds them back while more than ``limit`` bytes are not flushed. Held sends have up to ``limit``
    bytes together, or are one of any size. A send that was held for ``patience`` seconds fails with `QueueFull`."""

    def __init__(
        self,
        store: MessageStore,
        state: BrokerState,
        pulling: Pulling,
        *,
        limit: int,
        patience: float,
        flush: Callable[[], None],
    ) -> None:
        self._store = store
        self._state = state
        self._pulling = pulling
        self._limit = limit
        self._patience = patience
        self._flush = flush
        self._held: dict[Call, Send] = {}
        """In order of arrival. A held send counts in ``_held_bytes`` until it is stored or its call has ended."""
        self._held_bytes = 0
        self.sent_bytes: Counter[str] = Counter()
        """The bytes of the bodies stored since the start, by topic."""

    def send(self, call: Call, send: Send) -> Mapping[int, int] | Later:
        """Return the offset of the first message per queue, or `LATER`. Raises what `Transport.send` raises.

        A send that is stored already gets its earlier answer, however full the disk is: after a refusal the producer
        would send the messages again as another send.
        """
        if not self._held and self._store.unflushed_bytes <= self._limit:
            return self.store(send)
        known = self._state.sends.answer(send.topic, send.producer, send.sequence)
        if known is not None:
            return known
        self._state.coordinator.topic(send.topic, {batch.queue for batch in send.batches})
        return self._hold(call, send)

    def store(self, send: Send) -> Mapping[int, int]:
        known = self._state.sends.answer(send.topic, send.producer, send.sequence)
        if known is not None:
            return known
        topic = self._state.coordinator.topic(send.topic, {batch.queue for batch in send.batches})
        check_route(send.topic, send.route, topic.version)
        self._state.ensure_written()
        firsts = self._store.append(send.topic, send.batches, producer=send.producer, sequence=send.sequence)
        self.sent_bytes[send.topic] += send.size
        self._state.sends.add(send.topic, send.producer, send.sequence, firsts, self._store.now())
        self._pulling.wake(send.topic, firsts)
        return firsts

    def retry(self) -> None:
        """Store held sends, in order, while there is room."""
        while self._held and self._store.unflushed_bytes <= self._limit:
            call, send = next(iter(self._held.items()))
            assert call.on_end is not None
            call.on_end()  # it is not refused for lateness, however long the disk takes now
            call.on_end = None
            try:
                firsts = self.store(send)
            except EnodeError as error:
                call.fail(error)
            else:
                call.answer_when_safe(firsts)

    def _hold(self, call: Call, send: Send) -> Later:
        if self._held and self._held_bytes + send.size > self._limit:
            raise self._full()
        self._flush()
        self._held[call] = send
        self._held_bytes += send.size
        timer = asyncio.get_running_loop().call_later(self._patience, call.fail, self._full())

        def let_go() -> None:
            timer.cancel()
            self._held_bytes -= self._held.pop(call).size

        call.on_end = let_go
        return LATER

    def _full(self) -> QueueFull:
        return QueueFull(
            f"{self._store.unflushed_bytes} bytes wait for the broker's disk, which does not keep up; send again later"
        )
