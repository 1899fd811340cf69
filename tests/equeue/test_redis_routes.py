"""Interrupted changes of a topic's queues, and servers that have lost data that others still have."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any

import pytest
import redis

from enode_django.equeue.messages import Commit, Once
from enode_django.equeue.producer import Producer
from enode_django.equeue.redis import topics as redis_topics
from enode_django.equeue.redis import trimming as redis_trimming
from enode_django.equeue.redis.keys import Keys
from enode_django.equeue.redis.scripts import CLOCK_STEP
from enode_django.equeue.transport import KNOWN_SENDS
from enode_django.equeue.transports.redis_streams import RedisStreamsTransport
from enode_django.exceptions import QueueBacklog, StaleRoute, TransportUnavailable
from enode_django.testing.transport_lease_contract import DEADLINE, eventually, messages

QUEUES = 4


class Crash(BaseException):
    pass


class CrashingTransport(RedisStreamsTransport):
    """A transport whose process crashes in the middle of a change."""

    def crash_before(self, step: str) -> None:
        def crash(*arguments: Any, **options: Any) -> None:
            raise Crash

        setattr(self._topics, step, crash)


@pytest.fixture
def transport(redis_url: str, prefix: str, client: redis.Redis) -> Iterator[RedisStreamsTransport]:
    transport = RedisStreamsTransport(redis_url, prefix=prefix, timeout=60)
    transport.create_topic("topic", QUEUES)
    yield transport
    transport.close()


def test_sends_and_other_changes_wait_while_the_queues_change_and_go_on_when_they_stay(
    redis_url: str, prefix: str, transport: RedisStreamsTransport, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redis_topics, "CHANGE_SECONDS", DEADLINE)
    transport.send("topic", {0: [b"backlog"]})
    route = transport.route("topic").version
    closed, look = threading.Event(), threading.Event()
    check = transport._topics._check_no_backlog

    def check_slowly(*arguments: Any) -> None:
        closed.set()
        assert look.wait(DEADLINE)
        check(*arguments)

    monkeypatch.setattr(transport._topics, "_check_no_backlog", check_slowly)
    with ThreadPoolExecutor(2) as pool:
        changing = pool.submit(transport.add_queues, "topic", QUEUES + 1)
        assert closed.wait(DEADLINE)
        sending = pool.submit(transport.send, "topic", {1: [b"x"]}, route=route)
        with (
            closing(RedisStreamsTransport(redis_url, prefix=prefix, timeout=60)) as other,
            monkeypatch.context() as soon,
        ):
            soon.setattr(redis_topics, "CHANGE_SECONDS", 0.1)
            soon.setattr(other._topics, "_timeout", 0.0)
            with pytest.raises(TransportUnavailable, match="are being changed"):
                other.add_queues("topic", QUEUES + 2, unordered=True)
        assert not sending.done()
        look.set()
        with pytest.raises(QueueBacklog):
            changing.result(DEADLINE)
        assert sending.result(DEADLINE) == {1: 0}


@pytest.mark.parametrize("step", ["_check_no_backlog", "_decide"])
def test_change_whose_maker_died_is_called_off(
    redis_url: str, prefix: str, transport: RedisStreamsTransport, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    monkeypatch.setattr(redis_topics, "CHANGE_SECONDS", 0.3)
    route = transport.route("topic").version
    dying = CrashingTransport(redis_url, prefix=prefix)
    dying.crash_before(step)
    dying.crash_before("_decide")
    with pytest.raises(Crash):
        dying.add_queues("topic", QUEUES + 1)
    dying.close()
    assert transport.send("topic", {0: [b"x"], 3: [b"y"]}, route=route) == {0: 0, 3: 0}
    assert transport.queue_count("topic") == QUEUES
    assert transport.add_queues("topic", QUEUES + 1, unordered=True) == QUEUES + 1


def test_change_whose_maker_died_after_it_was_decided_stays(
    redis_url: str, prefix: str, transport: RedisStreamsTransport
) -> None:
    route = transport.route("topic").version
    dying = CrashingTransport(redis_url, prefix=prefix)
    tell = dying._topics._tell

    def tell_no_new_route(topic: str, queues: Any, round_: int, version: int | str) -> list[Any]:
        if version != "closed":
            raise Crash
        return tell(topic, queues, round_, version)

    dying._topics._tell = tell_no_new_route  # type: ignore[method-assign]
    with pytest.raises(Crash):
        dying.add_queues("topic", QUEUES + 1)
    dying.close()
    with pytest.raises(StaleRoute):
        transport.send("topic", {0: [b"x"]}, route=route)
    newer = transport.route("topic")
    assert newer.queues == tuple(range(QUEUES + 1))
    assert transport.send("topic", {0: [b"y"], QUEUES: [b"z"]}, route=newer.version) == {0: 0, QUEUES: 0}


@pytest.mark.parametrize("by", ["a send", "another change"])
def test_maker_of_a_change_that_was_called_off_is_told(
    transport: RedisStreamsTransport, monkeypatch: pytest.MonkeyPatch, by: str
) -> None:
    monkeypatch.setattr(redis_topics, "CHANGE_SECONDS", 0.01)
    route = transport.route("topic").version

    def call_off(known: object) -> None:
        if by == "a send":
            eventually(lambda: transport.send("topic", {0: [b"x"]}, route=route))
        else:
            transport._topics._begin("topic")

    monkeypatch.setattr(transport._topics, "_check_no_backlog", call_off)
    with pytest.raises(TransportUnavailable, match="called off"):
        transport.add_queues("topic", QUEUES + 1)
    assert transport.queue_count("topic") == QUEUES
    assert messages(transport, "topic", 0) == ([(0, b"x")] if by == "a send" else [])


def test_topic_whose_server_lost_the_last_change_gets_ahead_of_its_queues(
    client: Any, prefix: str, transport: RedisStreamsTransport
) -> None:
    before = transport.route("topic").version
    key = Keys(prefix).topic("topic")
    saved = client.hgetall(key)
    transport.add_queues("topic", QUEUES + 2, unordered=True)
    lost = transport.route("topic").version
    transport.send("topic", {queue: [b"x"] for queue in range(QUEUES + 2)}, route=lost)
    client.delete(key)
    client.hset(key, mapping=saved)
    with pytest.raises(StaleRoute):  # the queues have a newer route than the topic, which now takes a new version
        transport.send("topic", {0: [b"y"]}, route=before)
    after = transport.route("topic").version
    assert after > lost
    assert transport.send("topic", {0: [b"y"]}, route=after) == {0: 1}
    with pytest.raises(StaleRoute):
        transport.send("topic", {0: [b"z"]}, route=lost)
    assert transport.add_queues("topic", QUEUES + 2, unordered=True) == QUEUES + 2


def test_send_that_only_some_queues_took_is_completed_by_the_new_route(
    transport: RedisStreamsTransport, monkeypatch: pytest.MonkeyPatch
) -> None:
    producer = Producer(transport, selector=lambda key, queues: int(key) % queues)
    producer.route("topic")
    append = transport._sender.append
    changed = iter([True])

    def change_in_between(topic: str, bodies: Any, route: int | None, once: Once | None) -> Any:
        first, failures = append(topic, {queue: bodies[queue] for queue in sorted(bodies)[:2]}, route, once)
        if next(changed, False):
            transport.add_queues("topic", QUEUES + 1, unordered=True)
        more, others = append(topic, {queue: bodies[queue] for queue in sorted(bodies)[2:]}, route, once)
        return first | more, failures | others

    monkeypatch.setattr(transport._sender, "append", change_in_between)
    sent = [(str(number), b"%d" % number) for number in range(8)]
    results = producer.send_batch("topic", sent)
    assert [result.queue for result in results] == [0, 1, 2, 3, 0, 1, 1, 2]  # 0, 1, 4, 5 by the old route
    for (_, body), (_, queue, offset) in zip(sent, results, strict=True):
        assert (offset, body) in messages(transport, "topic", queue)
    assert sum(transport.end_offsets("topic").values()) == len(sent)


def test_send_that_broke_off_between_two_chunks_is_completed(
    transport: RedisStreamsTransport, prefix: str, client: Any
) -> None:
    once = Once(uuid.uuid4().hex, 7)
    bodies = [b"%d" % number for number in range(1_201)]
    run_each = transport._connection.run_each
    transport._connection.run_each = lambda calls, **_: [*run_each(calls[:2]), 0]  # type: ignore[method-assign]
    transport.send("topic", {0: bodies}, once=once)
    transport._connection.run_each = run_each  # type: ignore[method-assign]
    assert transport.end_offsets("topic")[0] == 1_000
    assert 0 < client.ttl(Keys(prefix).sent("topic", 0, once.producer)) <= 600
    assert transport.send("topic", {0: bodies}, once=once) == {0: 0}
    assert [body for _, body in messages(transport, "topic", 0)] == bodies
    assert 0 < client.ttl(Keys(prefix).sent("topic", 0, once.producer)) <= 600


def test_a_send_of_several_chunks_is_forgotten_as_a_whole_and_takes_the_place_of_one(
    transport: RedisStreamsTransport, prefix: str, client: Any
) -> None:
    producer = uuid.uuid4().hex
    for sequence in range(KNOWN_SENDS + 1):
        count = 1_001 if sequence in (0, KNOWN_SENDS) else 1
        transport.send("topic", {0: [b""] * count}, once=Once(producer, sequence))
    fields = set(client.hkeys(Keys(prefix).sent("topic", 0, producer)))
    known = {field.partition(b":")[0] for field in fields if not field.startswith(b"turn")}
    assert known == {b"%d" % sequence for sequence in range(1, KNOWN_SENDS + 1)}


def test_a_change_is_made_to_the_queues_that_another_one_has_left(
    redis_url: str, prefix: str, transport: RedisStreamsTransport, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin = transport._topics._begin

    def begin_late(topic: str) -> int:
        with closing(RedisStreamsTransport(redis_url, prefix=prefix, timeout=60)) as other:
            other.add_queues("topic", QUEUES + 1, unordered=True)
        return begin(topic)

    monkeypatch.setattr(transport._topics, "_begin", begin_late)
    transport.show("topic", 0, to_producers=False, unordered=True)
    route = transport.route("topic")
    assert (route.version, route.queues) == (3, tuple(range(1, QUEUES + 1)))
    with pytest.raises(StaleRoute):
        transport.send("topic", {0: [b"x"]}, route=2)


def test_times_of_deleted_messages_are_deleted(
    redis_url: str, prefix: str, client: Any, transport: RedisStreamsTransport
) -> None:
    keys = Keys(prefix)
    for moment in range(1_200):  # entries as slow senders leave them
        client.xadd(keys.times("topic", 0), {"o": moment}, id=f"{moment + 1}-0")
    client.hset(keys.queue("topic", 0), "time", 10**15)  # so that the send leaves none
    transport.send("topic", {0: [b"x" * 200] * 1_200})
    cutting = RedisStreamsTransport(redis_url, prefix=prefix, max_length=100, timeout=60)
    cutting.trim("topic")
    cutting.close()
    first = messages(transport, "topic", 0)[0][0]
    assert first > 900
    oldest = client.xrange(keys.times("topic", 0), count=1)[0][1]
    assert int(oldest[b"o"]) == first
    assert transport.offsets_at("topic", 0.0)[0] == first


def test_the_offset_of_a_time_has_messages_after_it_that_have_no_time_of_their_own(
    client: Any, prefix: str, transport: RedisStreamsTransport
) -> None:
    keys = Keys(prefix)
    transport.send("topic", {0: [b"x"]})
    moment = int(client.hget(keys.queue("topic", 0), "time"))
    client.hset(keys.queue("topic", 0), "time", 10**15)  # so that the next send leaves no time, as within a step
    transport.send("topic", {0: [b"y"]})
    latest = (moment + CLOCK_STEP - 0.5) / 1000
    assert transport.offsets_at("topic", latest)[0] == 0
    assert transport.offsets_at("topic", latest + 0.001)[0] == 2


def test_unconsumed_messages_are_deleted_only_when_that_is_switched_on(
    redis_url: str, prefix: str, transport: RedisStreamsTransport
) -> None:
    transport.send("topic", {0: [b"x" * 200] * 2_000})
    transport.acquire("group", "topic", 0, "one", 60)
    for switched_on, left in ((False, 2_000), (True, 500)):
        cutting = RedisStreamsTransport(
            redis_url, prefix=prefix, max_length=500, delete_unconsumed=switched_on, timeout=60
        )
        cutting.trim("topic")
        cutting.close()
        assert left <= len(messages(transport, "topic", 0)) < left + 200


def test_consumed_messages_are_kept_for_their_age_and_others_deleted_by_it_only_when_that_is_switched_on(
    redis_url: str, prefix: str, transport: RedisStreamsTransport, monkeypatch: pytest.MonkeyPatch
) -> None:
    transport.send("topic", {0: [b"x" * 200] * 2_000})
    lease = transport.acquire("group", "topic", 0, "one", 60)
    transport.commit("group", "topic", {0: Commit(lease.epoch, 1_000)})

    def left(**options: Any) -> int:
        with closing(RedisStreamsTransport(redis_url, prefix=prefix, timeout=60, **options)) as trimming:
            trimming.trim("topic")
        return len(messages(transport, "topic", 0))

    assert left(max_age=3_600) == 2_000
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now + 7_200)
    assert 1_000 <= left(max_age=3_600) < 1_200
    assert left(max_age=3_600, delete_unconsumed=True) < 200


def test_a_long_trim_is_left_to_the_next_calls(
    transport: RedisStreamsTransport, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redis_trimming, "TRIM_SECONDS", 0.0)
    count = 25_000
    transport.send("topic", {0: [b"x"] * count})
    lease = transport.acquire("group", "topic", 0, "one", 60)
    transport.commit("group", "topic", {0: Commit(lease.epoch, count)})
    transport.trim("topic")
    first = transport.queues("topic")[0].first
    assert 0 < first < count - 1_000
    transport.trim("topic")
    assert transport.queues("topic")[0].first > first
