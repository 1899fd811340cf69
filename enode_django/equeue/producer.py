"""Send messages: a key selects the queue, so that messages of one key stay in order."""

from __future__ import annotations

import copy
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress

import mmh3

from enode_django.equeue.hosts import host_name
from enode_django.equeue.messages import Route, SendResult
from enode_django.equeue.portions import PORTION_BYTES, PORTION_ITEMS, portions
from enode_django.equeue.transport import ROOM_AROUND, Transport, with_reserve
from enode_django.exceptions import (
    MessageTooLarge,
    PartlyUnavailable,
    QueueError,
    StaleRoute,
    TopicDeleted,
    TransportUnavailable,
    UnknownTopic,
)

__all__ = ["Producer"]

QUEUE_SEED = 0x51EED
"""Part of the wire's contract: another seed would send a key to another queue, and break its order."""

Selector = Callable[[str, int], int]
"""(key, number of queues) → index of a queue, from 0. Called by many threads at once."""

ROUTES_ASKED = 5
"""One send asks at most this often for the route while the topic's queues keep changing and no message is stored."""
ASK_AGAIN = 1.0
"""Seconds until a route that could not be fetched is asked for again."""


Persist = Callable[[Callable[[], None]], None]
"""Makes a call, and repeats it at its discretion while it raises."""


def once(call: Callable[[], None]) -> None:
    call()


def select_by_hash(key: str, queue_count: int) -> int:
    # Hashes bytes, because a text that is not UTF-8 crashes the process in mmh3.
    return mmh3.hash(key.encode(errors="surrogatepass"), QUEUE_SEED, signed=False) % queue_count


class Producer:
    """Sends through a transport; thread-safe. Sending blocks until the transport has stored the messages.

    A topic that does not exist is created with ``queues`` queues on its first use, or raises `UnknownTopic` if
    ``queues`` is None. A deleted topic is not created, and raises `TopicDeleted`. The route of a topic is fetched
    again after ``refresh_after`` seconds of ``clock``, and when the transport says that it has changed. Each fetch
    announces this process as a producer of the topic, as ``host-pid``.

    For example::

        producer = Producer(MemoryTransport(), queues=4)
        sent = producer.send("orders", key="ada", body=b"3 apples")
        assert (sent.topic, sent.offset) == ("orders", 0)
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
        """Return the same producer for messages that must be sent even when the queue is full; see `HasReserve`."""
        other = copy.copy(self)
        other._transport = with_reserve(self._transport)
        return other

    def send(self, topic: str, key: str, body: bytes) -> SendResult:
        """Send a message. Raises `TransportUnavailable` (the message may be stored or not), `UnknownTopic`,
        `QueueError`, and `MessageTooLarge` for more than `max_message` bytes."""
        return self.send_batch(topic, ((key, body),))[0]

    def send_batch(
        self, topic: str, messages: Sequence[tuple[str, bytes]], *, persist: Persist = once
    ) -> list[SendResult]:
        """Send (key, body) pairs at once. Return their places in the order of ``messages``. Raises what `send` raises.

        More than `portions.PORTION_BYTES` are sent in portions, one after the other: when one fails, the earlier ones
        are stored. A message that is too large is refused before anything is sent. ``persist`` gets a call that it may
        repeat after a failure: stored messages are not sent again.
        """
        sent: list[SendResult] = []
        for some in self._portions(messages, self.max_message):
            sending = Sending(self, self._transport, topic, some)
            persist(sending.run)
            sent += sending.results()
        return sent

    def send_all(self, topic: str, messages: Sequence[tuple[str, bytes]], *, persist: Persist = once) -> None:
        """Send as `send_batch` does, without returning places. Each message may be as large as the transport's
        ``max_send``, since something may have been put around it."""
        for some in self._portions(messages, self._transport.max_send):
            persist(Sending(self, self._transport, topic, some).run)

    @property
    def max_message(self) -> int:
        """Return the most bytes of a message that can still be set aside with an error."""
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
        return portions(messages, lambda message: len(message[1]), most_bytes=most)

    def bodies_of(
        self, queues: Sequence[int], messages: Sequence[tuple[str, bytes]]
    ) -> tuple[dict[int, list[bytes]], list[tuple[int, int]]]:
        """Return the bodies by queue, and for each message its queue and its index there."""
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
        """Return the number of queues that keys are divided among, as this producer knows it. Creates the topic as
        sending does."""
        return len(self.route(topic).queues)

    def route(self, topic: str) -> Route:
        """Return the route of messages, as this producer knows it. Creates the topic as sending does."""
        known = self._routes.get(topic)
        now = self._clock()
        if known is not None and now < known[1]:
            return known[0]
        try:
            route, ask_after = self._ask(topic), self._refresh_after
        except TransportUnavailable:
            if known is None:
                raise
            # The servers of its queues may be reachable though that of the topic is not; they know whether the route
            # is valid.
            route, ask_after = known[0], ASK_AGAIN
        self._routes[topic] = (route, self._clock() + ask_after)
        return route

    def forget_route(self, topic: str) -> None:
        """Fetch the topic's route before the next send."""
        self._routes.pop(topic, None)

    def _ask(self, topic: str) -> Route:
        """Fetch the route. Also announce this process: here that delays no send."""
        try:
            route = self._transport.route(topic)
        except UnknownTopic as unknown:
            if self._queues is None or isinstance(unknown, TopicDeleted):
                raise
            self._transport.create_topic(topic, self._queues)
            route = self._transport.route(topic)
        with suppress(QueueError):  # only for people: an older broker does not know this request
            self._transport.announce(topic, f"{host_name()}-{os.getpid()}")
        return route


class Sending:
    """Messages that one thread sends to one topic. `run` may be called again after an error."""

    def __init__(
        self, producer: Producer, transport: Transport, topic: str, messages: Sequence[tuple[str, bytes]]
    ) -> None:
        self._producer = producer
        self._transport = transport
        self._topic = topic
        self._messages = messages
        self._left: Sequence[int] = range(len(messages))
        self._stored: list[tuple[Sequence[int], Sequence[tuple[int, int]], Mapping[int, int]]] = []

    def run(self) -> None:
        """Send the messages that are not known to be stored. Raises what the transport raises."""
        asked = 0
        while True:
            left = len(self._left)
            try:
                return self._send()
            except StaleRoute:
                asked = asked + 1 if len(self._left) == left else 0
                if asked == ROUTES_ASKED:
                    raise

    def _send(self) -> None:
        route = self._producer.route(self._topic)
        messages = self._messages
        if len(self._left) < len(messages):
            messages = [messages[index] for index in self._left]
        bodies, places = self._producer.bodies_of(route.queues, messages)
        try:
            first = self._transport.send(self._topic, bodies, route=route.version)
        except StaleRoute as stale:
            self._producer.forget_route(self._topic)
            self._note(places, stale.stored)
            raise
        except UnknownTopic:
            self._producer.forget_route(self._topic)
            raise
        except PartlyUnavailable as some:
            self._note(places, some.answers)
            raise
        self._stored.append((self._left, places, first))
        self._left = ()

    def _note(self, places: Sequence[tuple[int, int]], first: Mapping[int, int]) -> None:
        """Note the queues that have stored their messages when others have not."""
        self._stored.append((self._left, places, first))
        self._left = [index for index, (queue, _) in zip(self._left, places, strict=True) if queue not in first]

    def results(self) -> list[SendResult]:
        """Return the places of the messages, in their order, when all of them are stored."""
        if len(self._stored) == 1:
            ((_, places, first),) = self._stored
            return [SendResult(self._topic, queue, first[queue] + place) for queue, place in places]
        found: dict[int, SendResult] = {}
        for left, places, first in self._stored:
            for index, (queue, place) in zip(left, places, strict=True):
                if queue in first:
                    found[index] = SendResult(self._topic, queue, first[queue] + place)
        return [found[index] for index in range(len(self._messages))]
