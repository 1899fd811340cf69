"""A Redis without free memory: sends are refused, and consumers make room."""

from __future__ import annotations

import contextlib
import time
import uuid
from collections.abc import Iterable, Iterator
from typing import Any

import pytest
import redis

from enode_django.bus.command_bus import QueueCommandBus
from enode_django.domain.metadata import Metadata
from enode_django.equeue.consumer.failing import FailureTopics
from enode_django.equeue.messages import Commit, Once, PulledBatch, Receipt
from enode_django.equeue.portions import PORTION_BYTES
from enode_django.equeue.producer import Producer
from enode_django.equeue.redis import reading as redis_reading
from enode_django.equeue.redis import topics as redis_topics
from enode_django.equeue.redis.topic_scripts import CLOSED
from enode_django.equeue.retrying import Message, RetryPolicy, retry_topic
from enode_django.equeue.transports.redis_streams import RedisStreamsTransport
from enode_django.exceptions import QueueFull, StaleRoute
from sample_project.bank.domain import OpenAccount
from sample_project.embedded_servers import Redis

QUEUES = 4
MEMORY = 20 * 1024 * 1024
BODY = bytes(8_000)
LEASE = 60.0


@pytest.fixture(scope="module")
def server() -> Iterator[Redis]:
    # While Redis rewrites its append-only file, a buffer for it would count as used memory.
    settings = {"maxmemory": str(MEMORY), "maxmemory-policy": "noeviction", "appendonly": "no"}
    with Redis(settings) as server:
        yield server


@pytest.fixture
def client(server: Redis) -> Iterator[Any]:
    with redis.Redis.from_url(server.url) as client:
        yield client
        client.config_set("maxmemory", MEMORY)
        client.flushall()


@pytest.fixture
def transport(server: Redis, client: Any) -> Iterator[RedisStreamsTransport]:
    with contextlib.closing(
        RedisStreamsTransport(server.url, prefix=f"full-{uuid.uuid4().hex}", timeout=60)
    ) as transport:
        transport.create_topic("topic", QUEUES)
        yield transport


def fill(transport: RedisStreamsTransport) -> dict[int, int]:
    """Send until the server refuses even a small message. Return the number of messages of each queue."""
    for body in (BODY * 20, BODY, b"x"):
        with contextlib.suppress(QueueFull):
            while True:
                for queue in range(QUEUES):
                    transport.send("topic", {queue: [body]})
    return dict(transport.end_offsets("topic"))


def drain(transport: RedisStreamsTransport, epochs: dict[int, int]) -> dict[int, list[int]]:
    """Pull, commit, renew and trim as a consumer does, until nothing is left. Return the pulled offsets by queue."""
    at, came = dict.fromkeys(epochs, 0), {queue: list[int]() for queue in epochs}
    while batches := transport.pull("topic", at, limit=100, wait=0):
        for queue, offsets, *_ in batches:
            came[queue] += offsets
            at[queue] = offsets[-1] + 1
        commits = {
            queue: Commit(epochs[queue], at[queue], [Receipt(at[queue] - 1, b"receipt")], 10) for queue, *_ in batches
        }
        assert transport.commit("group", "topic", commits) == set()
        assert transport.renew("group", "topic", "owner", epochs, LEASE) == set()
        assert len(transport.join("group", "topic", "owner", LEASE).queues) == QUEUES
        transport.trim("topic")
    return came


def test_consumers_drain_a_server_that_is_full_of_what_nobody_has_read(
    client: Any, transport: RedisStreamsTransport
) -> None:
    ends = fill(transport)
    assert client.info("memory")["used_memory"] >= MEMORY * 0.95, "what calls take for a moment counts, too"
    assert len(transport.join("group", "topic", "owner", LEASE).queues) == QUEUES
    epochs = {queue: transport.acquire("group", "topic", queue, "owner", LEASE).epoch for queue in range(QUEUES)}
    assert drain(transport, epochs) == {queue: list(range(end)) for queue, end in ends.items()}
    assert client.info("memory")["used_memory"] < MEMORY / 2
    assert transport.send("topic", {queue: [BODY] for queue in range(QUEUES)}) == ends


def test_a_full_server_does_all_that_consumers_ask_for(client: Any, transport: RedisStreamsTransport) -> None:
    transport.send("topic", {0: [b"1", b"2"]})
    client.config_set("maxmemory", 1)
    assert transport.create_topic("topic", QUEUES) == QUEUES
    assert transport.create_topic("retry", 1) == 1
    assert transport.topics() == ["retry", "topic"]
    transport.announce("topic", "worker")
    with contextlib.closing(transport.open_inbox()) as inbox:
        transport.reply([(inbox.address, b"answer")])
        assert inbox.receive(0) == [b"answer"]
    assert set(transport.join("group", "topic", "one", LEASE).queues) == set(range(QUEUES))
    epoch = transport.acquire("group", "topic", 0, "one", LEASE).epoch
    assert transport.commit("group", "topic", {0: Commit(epoch, 1, [Receipt(0, b"receipt")], 10)}) == set()
    assert transport.renew("group", "topic", "one", {0: epoch}, LEASE) == set()
    transport.bury("group", "topic", "one", [(0, 1)])
    assert set(transport.join("group", "topic", "two", LEASE).queues) == set(range(QUEUES))
    lease = transport.acquire("group", "topic", 0, "two", LEASE)
    assert (lease.committed, lease.previous_owner, lease.deaths) == (1, "one", {1: 1})
    assert transport.receipts("group", "topic", 0) == [b"receipt"]
    transport.release("group", "topic", "two", {0: lease.epoch})
    transport.leave("group", "topic", "two")


def test_operators_make_room_on_a_full_server(client: Any, transport: RedisStreamsTransport) -> None:
    transport.send("topic", {0: [b"1"] * 1_000})
    transport.acquire("gone", "topic", 0, "owner", 0.001)
    client.config_set("maxmemory", 1)
    transport.set_offset("group", "topic", 0, 1_000)
    transport.retire_group("gone", "topic")
    transport.trim("topic")
    assert transport.queues("topic")[0].first > 0
    transport.show("topic", 0, to_consumers=False)
    assert transport.mend("topic") == dict.fromkeys(range(QUEUES), 0)
    transport.delete_group("gone", "topic")
    assert transport.add_queues("topic", QUEUES + 1, unordered=True) == QUEUES + 1
    transport.set_retention("topic", 60)
    transport.pause_group("group", "topic")
    transport.show("topic", 0, to_producers=False, unordered=True)
    transport.delete_queue("topic", 0, force=True)
    transport.delete_topic("topic", force=True)
    assert transport.topics() == []


def test_queues_go_on_on_a_full_server_after_the_maker_of_a_change_died_or_the_topic_lost_one(
    client: Any, transport: RedisStreamsTransport, monkeypatch: pytest.MonkeyPatch
) -> None:
    topics, sending = transport._topics, transport.with_reserve()
    version = transport.route("topic").version
    with monkeypatch.context() as soon:
        soon.setattr(redis_topics, "CHANGE_SECONDS", 0.001)
        topics._tell("topic", range(QUEUES), topics._begin("topic"), CLOSED)
    client.config_set("maxmemory", 1)
    assert sending.send("topic", {0: [b"x"]}, route=version) == {0: 0}
    topics._tell("topic", range(QUEUES), 100, version + 1)
    with pytest.raises(StaleRoute):
        sending.send("topic", {0: [b"y"]}, route=version)
    newer = transport.route("topic").version
    assert sending.send("topic", {0: [b"y"]}, route=newer) == {0: 1}


def test_what_must_be_sent_before_a_message_is_done_with_is_stored_on_a_full_server(
    client: Any, transport: RedisStreamsTransport
) -> None:
    client.config_set("maxmemory", 1)
    message = Message("topic", 0, 0, b"body")
    failures = FailureTopics(transport, "group", RetryPolicy((1.0,)), for_all=False, clock=time.time)
    assert failures.set_aside(message, "failed") is None
    assert failures.set_aside(message, "failed", for_good=True) is None
    assert transport.end_offsets(retry_topic("group"))[0] == 1
    bus = QueueCommandBus(transport, Producer(transport, queues=1), "commands")
    bus.forward([(OpenAccount("1", owner="somebody"), Metadata())])
    assert transport.end_offsets("commands") == {0: 1}
    with pytest.raises(QueueFull):
        transport.send("commands", {0: [b"x"]})


def test_what_is_consumed_is_deleted_before_its_time_when_memory_is_nearly_full(
    server: Redis, client: Any, caplog: pytest.LogCaptureFixture
) -> None:
    with contextlib.closing(RedisStreamsTransport(server.url, timeout=60, max_age=3_600)) as transport:
        transport.create_topic("topic", 1)
        transport.send("topic", {0: [BODY] * 500})
        epoch = transport.acquire("group", "topic", 0, "owner", LEASE).epoch
        transport.commit("group", "topic", {0: Commit(epoch, 400)})
        transport.trim("topic")
        assert transport.queues("topic")[0].first == 0
        client.config_set("maxmemory", int(client.info("memory")["used_memory"] * 1.05))
        transport.trim("topic")
        assert 300 < transport.queues("topic")[0].first <= 400
    assert "nearly full" in caplog.text


@pytest.mark.parametrize("once", [None, Once("0" * 32, 1)])
def test_a_full_server_stores_nothing_that_is_sent(client: Any, transport: RedisStreamsTransport, once: Any) -> None:
    client.config_set("maxmemory", 1)
    for bodies in ({0: [b"x"]}, {0: [b"x"] * 1_000, 1: [b"x"]}):
        with pytest.raises(QueueFull, match="no room"):
            transport.send("topic", bodies, once=once)
    assert set(transport.end_offsets("topic").values()) == {0}
    client.config_set("maxmemory", MEMORY)
    assert transport.send("topic", {0: [b"y"]}, once=once) == {0: 0}


def pulled(transport: RedisStreamsTransport, limit: int = 100_000) -> Iterator[list[PulledBatch]]:
    """Yield all batches of the topic, pull by pull."""
    at = dict.fromkeys(range(QUEUES), 0)
    while batches := list(transport.pull("topic", at, limit=limit, wait=0)):
        yield batches
        at |= {batch.queue: batch.offsets[-1] + 1 for batch in batches}


def size(batches: Iterable[PulledBatch]) -> int:
    return sum(len(body) for batch in batches for body in batch.bodies)


@pytest.mark.parametrize("ahead", [0, 3_000], ids=["large", "large after small"])
def test_an_answer_of_redis_is_bounded_by_bytes(client: Any, transport: RedisStreamsTransport, ahead: int) -> None:
    client.config_set("maxmemory", 0)
    sent = {queue: [b"x"] * ahead + [bytes(1_000_000)] * 7 for queue in range(QUEUES)}
    transport.send("topic", sent)
    some = list(pulled(transport))
    assert {
        queue: [body for batches in some for b in batches if b.queue == queue for body in b.bodies] for queue in sent
    } == sent
    assert max(map(size, some)) <= PORTION_BYTES
    assert len(some) < 7 + 2 * ahead / 1_000, "what is small is not read one by one"


def test_one_queue_of_large_messages_leaves_the_others_quick(client: Any, transport: RedisStreamsTransport) -> None:
    client.config_set("maxmemory", 0)
    transport.send("topic", {0: [bytes(2_500_000)] * 6, 1: [b"x"] * 900})
    first = next(pulled(transport))
    assert {batch.queue: len(batch.bodies) for batch in first} == {0: 1, 1: 500}


def test_small_messages_come_many_at_once(transport: RedisStreamsTransport) -> None:
    transport.send("topic", {queue: [b"x"] * 5_000 for queue in range(QUEUES)})
    assert [sum(len(batch.bodies) for batch in batches) for batches in pulled(transport)] == [5_000 * QUEUES]
    assert [len(batch.bodies) for batch in next(pulled(transport, limit=7))] == [7] * QUEUES


def test_a_message_larger_than_any_before_is_noticed(
    client: Any, transport: RedisStreamsTransport, monkeypatch: pytest.MonkeyPatch
) -> None:
    client.config_set("maxmemory", 0)
    transport.send("topic", {0: [b"x"]})
    assert size(next(pulled(transport))) == 1
    monkeypatch.setattr(redis_reading, "LARGEST_KNOWN_SECONDS", 0.0)
    transport.send("topic", {0: [bytes(1_000_000)] * 20})
    assert max(map(size, pulled(transport))) <= PORTION_BYTES


def test_a_large_message_that_is_deleted_slows_no_pull(
    transport: RedisStreamsTransport, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redis_reading, "LARGEST_KNOWN_SECONDS", 0.0)
    epoch = transport.acquire("group", "topic", 0, "owner", LEASE).epoch

    def pulled_after(bodies: list[bytes], committed: int | None = None) -> int:
        """Send the bodies, delete messages up to ``committed`` (None: all), and send more. Return how many of the later
        ones one pull gets."""
        transport.send("topic", {0: [*bodies, *[b"x"] * 500]})
        begin = transport.end_offsets("topic")[0]
        transport.commit("group", "topic", {0: Commit(epoch, begin if committed is None else committed)})
        transport.trim("topic")
        transport.send("topic", {0: [b"x"] * (redis_reading.MOST_SUMMED + 500)})
        (batch,) = transport.pull("topic", {0: begin}, limit=10_000, wait=0)
        return len(batch.bodies)

    assert pulled_after([bytes(100_000)], committed=0) == redis_reading.MOST_SUMMED
    assert pulled_after([], committed=0) == redis_reading.MOST_SUMMED
    pulled_after([])
    assert pulled_after([]) == redis_reading.MOST_SUMMED + 500
