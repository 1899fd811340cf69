"""Sending messages: a key decides the queue, so that messages of one key stay in order."""

from __future__ import annotations

import copy
import os
import socket
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress

import mmh3

from enode_django.equeue.messages import Route, SendResult
from enode_django.equeue.portions import PORTION_BYTES, PORTION_ITEMS, portions
from enode_django.equeue.transports.base import ROOM_AROUND, Transport, with_reserve
from enode_django.exceptions import MessageTooLarge, QueueError, StaleRoute, TopicDeleted, UnknownTopic

QUEUE_SEED = 0x51EED
"""Part of the wire's contract: another seed would send a key to another queue, and its order would be lost."""

Selector = Callable[[str, int], int]
"""(key, how many queues) → which of them, counted from 0. Called by many threads at once."""

ROUTES_ASKED = 5
"""How often one send asks where to, when the queues of its topic change again and again."""


def select_by_hash(key: str, queue_count: int) -> int:
    # Of the bytes, since mmh3 crashes the process at a text that is not UTF-8.
    return mmh3.hash(key.encode(errors="surrogatepass"), QUEUE_SEED, signed=False) % queue_count


def _size(message: tuple[str, bytes]) -> int:
    return len(message[1])


class Producer:
    """Sends through a transport; safe for threads. Sending blocks until the transport has stored the messages.

    A topic that does not exist is created with ``queues`` queues on its first use, or, when ``queues`` is None,
    raises `UnknownTopic`. One that was deleted is not created, and raises `TopicDeleted`. Which queues a topic has is
    asked again after ``refresh_after`` seconds of ``clock``, and when the transport says that they have changed.
    Whoever asks is announced as a producer of the topic, as ``host-pid``.
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
        self._routes: dict[str, tuple[Route, float]] = {}

    def with_reserve(self) -> Producer:
        """The same producer, for what must be sent when the queue is full, too; see `HasReserve`."""
        other = copy.copy(self)
        other._transport = with_reserve(self._transport)
        return other

    def send(self, topic: str, key: str, body: bytes) -> SendResult:
        """Raises `TransportUnavailable` (the message may be stored or not), `UnknownTopic`, `QueueError`, and
        `MessageTooLarge` for more than `max_message` bytes."""
        return self.send_batch(topic, ((key, body),))[0]

    def send_batch(self, topic: str, messages: Sequence[tuple[str, bytes]]) -> list[SendResult]:
        """Send (key, body) pairs at once; the results are in the order of ``messages``. Raises what `send` raises.

        More than `portions.PORTION_BYTES` are sent one portion after the other: when one fails, those before it are
        stored. A message that is too large is refused before anything is sent.
        """
        sent: list[SendResult] = []
        for some in self._portions(messages, self.max_message):
            first, places = self._send(topic, some)
            sent += [SendResult(topic, queue, first[queue] + place) for queue, place in places]
        return sent

    def send_all(self, topic: str, messages: Sequence[tuple[str, bytes]]) -> None:
        """As `send_batch`, for who does not ask where the messages lie, and may have put something around a message:
        each may be as large as the transport's ``max_send``."""
        for some in self._portions(messages, self._transport.max_send):
            self._send(topic, some)

    @property
    def max_message(self) -> int:
        """How many bytes one message may have, so that it can still be set aside with the reason for that."""
        return self._transport.max_send - ROOM_AROUND

    def _portions(self, messages: Sequence[tuple[str, bytes]], largest: int) -> Iterable[Sequence[tuple[str, bytes]]]:
        sizes = [len(body) for _, body in messages]
        if sizes and max(sizes) > largest:
            raise MessageTooLarge(
                f"a message of {max(sizes)} bytes is above the {largest} that the queue takes; keep large values "
                "elsewhere and send a reference"
            )
        most = min(PORTION_BYTES, self._transport.max_send)
        if len(sizes) <= PORTION_ITEMS and sum(sizes) <= most:
            return (messages,) if messages else ()
        return portions(messages, _size, most_bytes=most)

    def _send(
        self, topic: str, messages: Sequence[tuple[str, bytes]]
    ) -> tuple[Mapping[int, int], list[tuple[int, int]]]:
        for asked in range(ROUTES_ASKED):
            route = self.route(topic)
            bodies, places = self._by_queue(route.queues, messages)
            try:
                return self._transport.send(topic, bodies, route=route.version), places
            except StaleRoute as stale:
                self._routes.pop(topic, None)
                if asked == ROUTES_ASKED - 1:
                    raise
                if stale.stored:
                    return self._rest_sent(topic, messages, places, stale.stored)
            except UnknownTopic:
                self._routes.pop(topic, None)
                raise
        raise AssertionError("the last one has returned or raised")

    def _rest_sent(
        self,
        topic: str,
        messages: Sequence[tuple[str, bytes]],
        places: Sequence[tuple[int, int]],
        stored: Mapping[int, int],
    ) -> tuple[Mapping[int, int], list[tuple[int, int]]]:
        """Send again what only some queues had taken when the route changed, without what those have."""
        left = [index for index, (queue, _) in enumerate(places) if queue not in stored]
        sent = [(queue, stored.get(queue, 0) + place) for queue, place in places]
        first, rest = self._send(topic, [messages[index] for index in left])
        for index, (queue, place) in zip(left, rest, strict=True):
            sent[index] = (queue, first[queue] + place)
        return dict.fromkeys((queue for queue, _ in sent), 0), sent

    def _by_queue(
        self, queues: Sequence[int], messages: Sequence[tuple[str, bytes]]
    ) -> tuple[dict[int, list[bytes]], list[tuple[int, int]]]:
        """The bodies of each queue, and for each message its queue and its place among them."""
        select, count = self._selector, len(queues)
        bodies: dict[int, list[bytes]] = {}
        places: list[tuple[int, int]] = []
        for key, body in messages:
            place = select(key, count)
            if not 0 <= place < count:
                raise QueueError(
                    f"the selector chose place {place!r} for key {key!r}; choose one from 0 to {count - 1}"
                )
            queue = queues[place]
            mates = bodies.get(queue)
            if mates is None:
                mates = bodies[queue] = []
            places.append((queue, len(mates)))
            mates.append(body)
        return bodies, places

    def queue_count(self, topic: str) -> int:
        """How many queues keys are divided among, as far as this producer knows; creates the topic as sending does."""
        return len(self.route(topic).queues)

    def route(self, topic: str) -> Route:
        """Where messages go, as far as this producer knows; creates the topic as sending does."""
        known = self._routes.get(topic)
        now = self._clock()
        if known is not None and now < known[1]:
            return known[0]
        route = self._ask(topic)
        self._routes[topic] = (route, now + self._refresh_after)
        return route

    def _ask(self, topic: str) -> Route:
        """Announces this process, too: here it costs no send anything."""
        try:
            route = self._transport.route(topic)
        except UnknownTopic as unknown:
            if self._queues is None or isinstance(unknown, TopicDeleted):
                raise
            self._transport.create_topic(topic, self._queues)
            route = self._transport.route(topic)
        with suppress(QueueError):  # only people look at it: a broker that is older than this knows no such request
            self._transport.announce(topic, f"{socket.gethostname()}-{os.getpid()}")
        return route
