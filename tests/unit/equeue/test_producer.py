from __future__ import annotations

import os
import socket
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest

from enode_django.equeue.messages import Once, Route
from enode_django.equeue.producer import Persist, Producer, select_by_hash
from enode_django.equeue.transports.memory import MemoryTransport
from enode_django.exceptions import PartlyUnavailable, QueueError, StaleRoute, TransportUnavailable, UnknownTopic


@pytest.fixture
def transport() -> MemoryTransport:
    return MemoryTransport()


def bodies(transport: MemoryTransport, topic: str, queue: int) -> list[bytes]:
    return [body for batch in transport.pull(topic, {queue: 0}, limit=10_000, wait=0) for body in batch.bodies]


def test_first_use_creates_the_topic(transport: MemoryTransport) -> None:
    result = Producer(transport, queues=3).send("orders", "key", b"x")
    assert transport.queue_count("orders") == 3
    assert bodies(transport, "orders", result.queue) == [b"x"]


def test_topic_is_not_created_unless_a_number_of_queues_is_given(transport: MemoryTransport) -> None:
    producer = Producer(transport)
    with pytest.raises(UnknownTopic, match="'orders'"):
        producer.send("orders", "key", b"x")
    with pytest.raises(UnknownTopic, match="'orders'"):
        producer.send_batch("orders", [("key", b"x")])
    transport.create_topic("orders", 1)
    assert producer.send("orders", "key", b"x") == ("orders", 0, 0)


def test_topic_that_exists_keeps_its_number_of_queues(transport: MemoryTransport) -> None:
    transport.create_topic("orders", 2)
    assert Producer(transport, queues=8).queue_count("orders") == 2


def test_key_decides_the_queue_for_ever() -> None:
    # Written down: if these change, messages of one key are handled out of order during an upgrade.
    assert [select_by_hash(key, 1_000) for key in ("", "account-1", "account-2", "ключ")] == [236, 25, 557, 16]


def test_keys_spread_over_the_queues() -> None:
    places = Counter(select_by_hash(f"account-{number}", 8) for number in range(8_000))
    assert set(places) == set(range(8))
    assert max(places.values()) < 1_200


def test_batch_results_say_where_each_message_lies_in_the_order_given(transport: MemoryTransport) -> None:
    producer = Producer(transport, queues=4)
    first = producer.send("orders", "key-0", b"before")
    batch = [(f"key-{number % 10}", b"%d" % number) for number in range(200)]
    results = producer.send_batch("orders", batch)
    assert len(results) == 200
    for (key, body), result in zip(batch, results, strict=True):
        assert result.queue == producer.send("orders", key, b"after").queue
        assert bodies(transport, "orders", result.queue)[result.offset] == body
    assert results[0].queue == first.queue
    assert producer.send_batch("orders", []) == []


def test_messages_of_a_key_stay_in_order(transport: MemoryTransport) -> None:
    producer = Producer(transport, queues=4)
    results = producer.send_batch("orders", [("one", b"%d" % number) for number in range(50)])
    assert bodies(transport, "orders", results[0].queue) == [b"%d" % number for number in range(50)]


def test_selector_chooses_and_is_checked(transport: MemoryTransport) -> None:
    transport.create_topic("orders", 4)
    last = Producer(transport, selector=lambda key, count: count - 1)
    assert last.send("orders", "key", b"x") == ("orders", 3, 0)
    assert last.send_batch("orders", [("a", b"x"), ("b", b"y")]) == [("orders", 3, 1), ("orders", 3, 2)]
    with pytest.raises(QueueError, match="place 4"):
        Producer(transport, selector=lambda key, count: count).send("orders", "key", b"x")


def test_queues_are_asked_for_again_after_a_while_and_when_they_have_changed(transport: MemoryTransport) -> None:
    now = 0.0
    transport.create_topic("orders", 1)
    producer = Producer(transport, refresh_after=30, clock=lambda: now, selector=lambda key, count: count - 1)
    assert producer.queue_count("orders") == 1
    transport.add_queues("orders", 64)
    now = 29.9
    assert producer.queue_count("orders") == 1
    assert producer.send("orders", "key", b"x").queue == 63, "the transport refused what went another way"
    transport.show("orders", 63, to_producers=False, unordered=True)
    assert producer.queue_count("orders") == 64
    now = 60.0
    assert producer.queue_count("orders") == 63


def test_process_is_announced_when_it_asks_where_to_send(transport: MemoryTransport) -> None:
    now = 0.0
    producer = Producer(transport, queues=1, refresh_after=30, clock=lambda: now)
    announced = []
    transport.announce = lambda topic, name: announced.append((topic, name))  # type: ignore[method-assign]
    producer.send("orders", "key", b"x")
    now = 29.9
    producer.send("orders", "key", b"x")
    assert len(announced) == 1
    now = 30.0
    producer.send("orders", "key", b"x")
    assert announced == [("orders", f"{socket.gethostname()}-{os.getpid()}")] * 2


def test_process_is_announced_by_a_name_that_can_be_encoded_whatever_its_host_is_called(
    transport: MemoryTransport, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(socket, "gethostname", lambda: "h\udcff\u0436")  # as of the bytes b"h\xff\xd0\xb6"
    announced = []
    transport.announce = lambda topic, name: announced.append(name.encode())  # type: ignore[method-assign]
    Producer(transport, queues=1).send("orders", "key", b"x")
    assert announced == [f"h\\xff\u0436-{os.getpid()}".encode()]


class KnowsNoProducers(MemoryTransport):
    def announce(self, topic: str, producer: str) -> None:
        raise QueueError("the broker knows no request 'announce'; is it older than its client?")


def test_process_that_cannot_be_announced_sends_all_the_same() -> None:
    transport = KnowsNoProducers()
    Producer(transport, queues=1).send("orders", "key", b"x")
    assert bodies(transport, "orders", 0) == [b"x"]


class EverNew(MemoryTransport):
    def route(self, topic: str) -> Route:
        route = super().route(topic)
        self.show(topic, 0, to_producers=0 not in route.queues, unordered=True)
        return route


def test_queues_that_change_all_the_time_are_an_error_in_the_end() -> None:
    transport = EverNew()
    transport.create_topic("orders", 2)
    with pytest.raises(StaleRoute):
        Producer(transport).send("orders", "key", b"x")


def test_messages_sent_without_asking_where_lie_where_a_batch_would_put_them(transport: MemoryTransport) -> None:
    messages = [(f"key-{n % 7}", str(n).encode()) for n in range(50)]
    producer = Producer(transport, queues=4)
    producer.send_batch("asked", messages)
    producer.send_all("unasked", messages)
    producer.send_all("unasked", [])
    assert [bodies(transport, "unasked", queue) for queue in range(4)] == [
        bodies(transport, "asked", queue) for queue in range(4)
    ]


def test_many_threads_may_send_at_once(transport: MemoryTransport) -> None:
    producer = Producer(transport, queues=4)

    def send(thread: int) -> list[tuple[str, int, int]]:
        return [*producer.send_batch("orders", [(f"{thread}-{n}", b"x") for n in range(100)])]

    with ThreadPoolExecutor(8) as pool:
        placed = [place for places in pool.map(send, range(8)) for place in places]
    assert len(set(placed)) == 800
    assert sum(transport.end_offsets("orders").values()) == 800


def test_a_key_that_is_not_utf8_has_a_queue_too(transport: MemoryTransport) -> None:
    assert Producer(transport, queues=4).send("orders", "\udc80", b"x").queue in range(4)


class Servers(MemoryTransport):
    """Queues lie on several servers. Those of ``lost`` cannot be used, nor the topics, if ``has_topics`` is False."""

    lost: frozenset[int] = frozenset()
    has_topics = True

    def route(self, topic: str) -> Route:
        if not self.has_topics:
            raise PartlyUnavailable("the server of the topic is away")
        return super().route(topic)

    def send(
        self, topic: str, bodies: Mapping[int, Sequence[bytes]], *, route: int | None = None, once: Once | None = None
    ) -> Mapping[int, int]:
        usable = {queue: added for queue, added in bodies.items() if queue not in self.lost}
        stored = super().send(topic, usable, route=route, once=once)
        if len(usable) < len(bodies):
            raise PartlyUnavailable("a server is away", answers=stored)
        return stored


def three_tries(transport: Servers) -> Persist:
    """The third one finds all servers."""

    def persist(call: Callable[[], None], /) -> None:
        for _ in range(2):
            with pytest.raises(PartlyUnavailable):
                call()
        transport.lost = frozenset()
        call()

    return persist


@pytest.mark.parametrize("asks_where", [True, False])
def test_only_what_is_not_stored_is_sent_again(asks_where: bool) -> None:
    transport = Servers()
    producer = Producer(transport, queues=3, selector=lambda key, count: int(key))
    messages = [(str(number % 3), b"%d" % number) for number in range(9)]
    transport.lost = frozenset({1})
    if asks_where:
        results = producer.send_batch("orders", messages, persist=three_tries(transport))
        assert results == [("orders", number % 3, number // 3) for number in range(9)]
    else:
        producer.send_all("orders", messages, persist=three_tries(transport))
    assert bodies(transport, "orders", 0) == [b"0", b"3", b"6"]
    assert bodies(transport, "orders", 1) == [b"1", b"4", b"7"]
    assert bodies(transport, "orders", 2) == [b"2", b"5", b"8"]


def test_what_is_left_goes_where_the_route_leads_by_then() -> None:
    transport = Servers()
    producer = Producer(transport, queues=2, selector=lambda key, count: int(key) % count)
    transport.lost = frozenset({1})

    def persist(call: Callable[[], None], /) -> None:
        with pytest.raises(PartlyUnavailable):
            call()
        transport.add_queues("orders", 4, unordered=True)
        transport.lost = frozenset()
        call()

    results = producer.send_batch("orders", [(str(number), b"%d" % number) for number in range(4)], persist=persist)
    assert [result.queue for result in results] == [0, 1, 0, 3]
    assert [bodies(transport, "orders", queue) for queue in range(4)] == [[b"0", b"2"], [b"1"], [], [b"3"]]


def test_a_route_stays_in_use_while_it_cannot_be_asked_for() -> None:
    transport, now = Servers(), 0.0
    producer = Producer(transport, queues=1, refresh_after=30.0, clock=lambda: now)
    producer.send("orders", "key", b"a")
    transport.has_topics = False
    now = 31.0
    assert producer.send("orders", "key", b"b").offset == 1
    transport.add_queues("orders", 2, unordered=True)
    with pytest.raises(TransportUnavailable):
        producer.send("orders", "key", b"c")
    transport.has_topics = True
    assert producer.send("orders", "key", b"c").topic == "orders"
    assert producer.queue_count("orders") == 2
