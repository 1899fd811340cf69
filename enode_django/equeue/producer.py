"""Sending messages: a key decides the queue, so that messages of one key stay in order."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import mmh3

from enode_django.equeue.messages import SendResult
from enode_django.equeue.transports.base import Transport

QUEUE_SEED = 0x51EED
"""Part of the wire's contract: another seed would send a key to another queue, and its order would be lost."""

Selector = Callable[[str, int], int]
"""(key, how many queues) → the queue's number. Called by many threads at once."""


def select_by_hash(key: str, queue_count: int) -> int:
    # Of the bytes, since mmh3 crashes the process at a text that is not UTF-8.
    return mmh3.hash(key.encode(errors="surrogatepass"), QUEUE_SEED, signed=False) % queue_count


class Producer:
    """Sends through a transport; safe for threads. Sending blocks until the transport has stored the messages.

    A topic that does not exist is created with ``queues`` queues on its first use, or, when ``queues`` is None,
    raises `UnknownTopic`. How many queues a topic has is asked again after ``refresh_after`` seconds of ``clock``.
    """

    def __init__(
        self,
        transport: Transport,
        *,
        queues: int | None = None,
        selector: Selector = select_by_hash,
        refresh_after: float = 30.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._transport = transport
        self._queues = queues
        self._selector = selector
        self._refresh_after = refresh_after
        self._clock = clock
        self._counts: dict[str, tuple[int, float]] = {}

    def send(self, topic: str, key: str, body: bytes) -> SendResult:
        """Raises `TransportUnavailable` (the message may be stored or not), `UnknownTopic`, `QueueError`."""
        queue = self._selector(key, self.queue_count(topic))
        return SendResult(topic, queue, self._transport.send(topic, {queue: (body,)})[queue])

    def send_batch(self, topic: str, messages: Sequence[tuple[str, bytes]]) -> list[SendResult]:
        """Send (key, body) pairs at once; the results are in the order of ``messages``. Raises what `send` raises."""
        if not messages:
            return []
        bodies, places = self._by_queue(topic, messages)
        first = self._transport.send(topic, bodies)
        return [SendResult(topic, queue, first[queue] + place) for queue, place in places]

    def send_all(self, topic: str, messages: Sequence[tuple[str, bytes]]) -> None:
        """As `send_batch`, for who does not ask where the messages lie."""
        if messages:
            self._transport.send(topic, self._by_queue(topic, messages)[0])

    def _by_queue(
        self, topic: str, messages: Sequence[tuple[str, bytes]]
    ) -> tuple[dict[int, list[bytes]], list[tuple[int, int]]]:
        """The bodies of each queue, and for each message its queue and its place among them."""
        select, count = self._selector, self.queue_count(topic)
        bodies: dict[int, list[bytes]] = {}
        places: list[tuple[int, int]] = []
        for key, body in messages:
            queue = select(key, count)
            mates = bodies.get(queue)
            if mates is None:
                mates = bodies[queue] = []
            places.append((queue, len(mates)))
            mates.append(body)
        return bodies, places

    def queue_count(self, topic: str) -> int:
        """How many queues the topic has, as far as this producer knows; creates the topic as sending does."""
        known = self._counts.get(topic)
        now = self._clock()
        if known is not None and now < known[1]:
            return known[0]
        count = self._ask(topic)
        self._counts[topic] = (count, now + self._refresh_after)
        return count

    def _ask(self, topic: str) -> int:
        if self._queues is None:
            return self._transport.queue_count(topic)
        return self._transport.create_topic(topic, self._queues)
