"""Deletions of topics on Redis that are interrupted by the death of the process."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from typing import Any

import pytest
import redis

from enode_django.equeue.messages import Commit, GroupState, Receipt
from enode_django.equeue.redis import topics as redis_topics
from enode_django.equeue.redis.keys import Keys
from enode_django.equeue.redis.topic_scripts import EMPTY
from enode_django.equeue.transports.redis_streams import RedisStreamsTransport
from enode_django.exceptions import QueueError, TopicDeleted, UnknownQueue
from enode_django.testing.transport_lease_contract import messages

QUEUES = 3


class Crash(BaseException):
    pass


@pytest.fixture
def transport(redis_url: str, prefix: str, client: redis.Redis) -> Iterator[RedisStreamsTransport]:
    transport = RedisStreamsTransport(redis_url, prefix=prefix, timeout=60)
    transport.create_topic("topic", QUEUES)
    transport.send("topic", {queue: [b"a"] for queue in range(QUEUES)})
    transport.join("group", "topic", "one", 60)
    lease = transport.acquire("group", "topic", 0, "one", 60)
    transport.commit("group", "topic", {0: Commit(lease.epoch, 1, [Receipt(0, b"r")], 5)})
    transport.announce("topic", "a process")
    yield transport
    transport.close()


def crashed_deletion(redis_url: str, prefix: str, crash_at: int) -> None:
    """Begin to delete the topic, and crash after ``crash_at`` runs of scripts."""
    dying = RedisStreamsTransport(redis_url, prefix=prefix, timeout=60)
    run_all, calls = dying._connection.run_all, iter(range(crash_at))

    def run_or_crash(*arguments: Any, **options: Any) -> list[Any]:
        if next(calls, None) is None:
            raise Crash
        return run_all(*arguments, **options)

    dying._connection.run_all = run_or_crash  # type: ignore[method-assign]
    with pytest.raises(Crash):
        dying.delete_topic("topic", force=True)
    dying.close()


@pytest.mark.parametrize("crash_at", range(5))
def test_topic_whose_deletion_broke_off_is_whole_or_gone_when_it_is_created_again(
    redis_url: str,
    prefix: str,
    client: redis.Redis,
    transport: RedisStreamsTransport,
    monkeypatch: pytest.MonkeyPatch,
    crash_at: int,
) -> None:
    monkeypatch.setattr(redis_topics, "CHANGE_SECONDS", 0.3)
    crashed_deletion(redis_url, prefix, crash_at)
    decided = crash_at >= 3
    if decided:
        with pytest.raises(TopicDeleted):
            transport.send("topic", {0: [b"b"]})
        with pytest.raises(TopicDeleted):
            transport.acquire("group", "topic", 1, "one", 60)
    else:
        assert transport.send("topic", {0: [b"b"]}, route=1) == {0: 1}
        transport.acquire("group", "topic", 1, "one", 60)
        transport.set_offset("group", "topic", 2, 0)
        routes = [client.hget(Keys(prefix).queue("topic", queue), "route") for queue in range(QUEUES)]
        assert routes == ([None, None, None] if crash_at < 2 else [b"1", b"1", b"1"])
    assert transport.create_topic("topic", QUEUES + 1) == (QUEUES + 1 if decided else QUEUES)
    assert transport.topics() == ["topic"]
    assert sorted(transport.groups("topic")) == ([] if decided else ["group"])
    firsts = transport.send("topic", {queue: [b"c"] for queue in range(QUEUES)})
    assert firsts == ({0: 1, 1: 1, 2: 1} if decided else {0: 2, 1: 1, 2: 1})
    pulled = transport.pull("topic", {0: 0, 1: 0}, limit=5, wait=0)
    assert [list(batch.bodies) for batch in pulled] == ([[b"c"]] * 2 if decided else [[b"a", b"b", b"c"], [b"a", b"c"]])
    transport.delete_topic("topic", force=True)
    kinds = {key: client.type(key) for key in client.scan_iter(f"{prefix}:*", count=1_000)}
    assert set(kinds.values()) == {b"hash"}
    assert len(kinds) == 1 + (QUEUES + 1 if decided else QUEUES)


def test_deletion_that_broke_off_is_finished_by_the_next_one(
    redis_url: str, prefix: str, client: redis.Redis, transport: RedisStreamsTransport
) -> None:
    crashed_deletion(redis_url, prefix, crash_at=3)
    transport.delete_topic("topic")
    assert transport.topics() == []
    assert len(list(client.scan_iter(f"{prefix}:*", count=1_000))) == 1 + QUEUES
    with pytest.raises(TopicDeleted):
        transport.delete_topic("topic")


def test_a_deletion_that_goes_on_late_deletes_nothing_of_the_successor(
    redis_url: str, prefix: str, transport: RedisStreamsTransport, monkeypatch: pytest.MonkeyPatch
) -> None:
    with closing(RedisStreamsTransport(redis_url, prefix=prefix, timeout=60)) as slow:
        run_all = slow._connection.run_all

        def run_late(calls: Any, **options: Any) -> list[Any]:
            if calls[0].script is EMPTY:
                transport.create_topic("topic", QUEUES)  # which finishes the deletion
                assert transport.send("topic", {0: [b"new"]}) == {0: 1}
            return run_all(calls, **options)

        monkeypatch.setattr(slow._connection, "run_all", run_late)
        slow.delete_topic("topic", force=True)
    assert messages(transport, "topic", 0) == [(1, b"new")]
    assert transport.topics() == ["topic"]


def test_a_deleted_queue_leaves_its_end_and_where_its_groups_go_on(
    prefix: str, client: redis.Redis, transport: RedisStreamsTransport
) -> None:
    """No lease, receipt or time of a deleted message is left."""
    transport.set_offset("idle", "topic", 0, 0)
    transport.show("topic", 0, to_producers=False, to_consumers=False, unordered=True)
    transport.delete_queue("topic", 0, force=True)
    keys = Keys(prefix)
    left = {key.decode(): client.hgetall(key) for key in client.scan_iter(f"{prefix}:{{topic:0}}:*", count=1_000)}
    assert left.pop(keys.queue("topic", 0)).keys() == {b"end", b"route", b"round", b"epoch", b"run"}
    assert left == {keys.claim("topic", 0, group): {b"offset": b"1"} for group in ("group", "idle")}
    transport.show("topic", 0, to_producers=True, to_consumers=True, unordered=True)
    assert transport.acquire("group", "topic", 0, "one", 60).committed == 1
    assert transport.send("topic", {0: [b"new"]}) == {0: 1}
    assert messages(transport, "topic", 0) == [(1, b"new")]


def test_a_queue_that_gets_a_message_while_it_is_checked_is_not_deleted(transport: RedisStreamsTransport) -> None:
    transport.leave("group", "topic", "one")
    transport.set_offset("group", "topic", 0, 1)
    transport.show("topic", 0, to_producers=False, to_consumers=False, unordered=True)
    late = iter([b"late"])

    def groups() -> Mapping[str, GroupState]:
        for body in late:
            transport.send("topic", {0: [body]})
        return transport.groups("topic")

    with pytest.raises(QueueError, match="1 messages left"):
        transport._topics.delete_queue("topic", 0, groups, force=False)
    assert messages(transport, "topic", 0)[-1] == (1, b"late")


def test_a_process_that_knew_a_deleted_topic_hides_no_queue_of_its_successor(
    redis_url: str, prefix: str, transport: RedisStreamsTransport
) -> None:
    with closing(RedisStreamsTransport(redis_url, prefix=prefix, timeout=60)) as other:
        other.delete_topic("topic", force=True)
        with pytest.raises(TopicDeleted):
            transport.show("topic", 0, to_consumers=False)
        other.create_topic("topic", 1)
        assert [state.to_consumers for state in other.queues("topic").values()] == [True]
        transport.queue_count("topic")
        other.delete_topic("topic", force=True)
        other.create_topic("topic", 2)
        transport.queue_count("topic")
        other.delete_topic("topic", force=True)
        other.create_topic("topic", 1)
        with pytest.raises(UnknownQueue):
            transport.show("topic", 1, to_consumers=False)
        other.add_queues("topic", 2)
        assert [state.to_consumers for state in other.queues("topic").values()] == [True, True]


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda slow: slow.add_queues("topic", QUEUES + 1), id="add queues"),
        pytest.param(lambda slow: slow.delete_topic("topic", force=True), id="delete"),
    ],
)
def test_a_change_that_begins_after_a_deletion_does_not_hold_up_the_successor(
    redis_url: str,
    prefix: str,
    client: redis.Redis,
    transport: RedisStreamsTransport,
    monkeypatch: pytest.MonkeyPatch,
    change: Callable[[RedisStreamsTransport], object],
) -> None:
    with closing(RedisStreamsTransport(redis_url, prefix=prefix, timeout=60)) as slow:
        begin = slow._topics._begin

        def begin_late(topic: str) -> int:
            transport.delete_topic(topic, force=True)
            return begin(topic)

        monkeypatch.setattr(slow._topics, "_begin", begin_late)
        with pytest.raises(TopicDeleted):
            change(slow)
    transport.create_topic("topic", QUEUES)
    assert not client.hexists(Keys(prefix).topic("topic"), "until"), "sends would wait for the end of the change"
    assert transport.send("topic", {0: [b"b"]}) == {0: 1}
