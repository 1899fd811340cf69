"""Entries in the streams of a queue that another program has written."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import pytest
import redis

from enode_django.equeue import administration
from enode_django.equeue.messages import PulledBatch
from enode_django.equeue.redis.keys import Keys
from enode_django.equeue.redis.trimming import COPIED_PER_CALL, MENDED_PER_CALL
from enode_django.equeue.transports.memory import MemoryTransport
from enode_django.equeue.transports.redis_streams import RedisStreamsTransport
from enode_django.exceptions import ForeignEntries, QueueError
from sample_project.embedded_servers import Redis, Valkey
from tests.services import private


@pytest.fixture(scope="module", params=[Redis, Valkey])
def redis_url(request: pytest.FixtureRequest) -> Iterator[str]:
    """Redis 6.2 lets a stream go on from a lower entry after a deletion; Redis 7 and Valkey refuse that."""
    for server in private(request.param()):
        yield server.url


def shown(batches: Sequence[PulledBatch]) -> dict[int, list[tuple[int, bytes]]]:
    return {batch.queue: list(zip(batch.offsets, batch.bodies, strict=True)) for batch in batches}


@pytest.fixture
def transport(redis_url: str, prefix: str, client: redis.Redis) -> Iterator[RedisStreamsTransport]:
    transport = RedisStreamsTransport(redis_url, prefix=prefix, timeout=60)
    transport.create_topic("topic", 2)
    transport.send("topic", {0: [b"1", b"2"], 1: [b"other"]})
    yield transport
    transport.close()


@pytest.fixture
def intrude(client: redis.Redis, prefix: str) -> Callable[[str], bytes]:
    log = Keys(prefix).log("topic", 0)
    return lambda id: client.xadd(log, {"x": "y", "z": "!"}, id=id)


@pytest.mark.parametrize("id", ["*", "1700000000000-12", "2-1", "77-0"])
def test_they_are_named_and_deleted(
    transport: RedisStreamsTransport, intrude: Callable[[str], object], prefix: str, id: str
) -> None:
    intrude(id)
    if id != "2-1":  # above the end, but below the next message
        with pytest.raises(ForeignEntries, match=rf"{prefix}:\{{topic:0\}}:log .* manage.py enode queue mend topic"):
            transport.send("topic", {0: [b"3"]})
        assert transport.end_offsets("topic") == {0: 2, 1: 1}
    assert administration.mend(transport) == {"topic": {0: 1, 1: 0}}
    assert transport.send("topic", {0: [b"3", b"4"], 1: [b"more"]}) == {0: 2, 1: 1}
    assert shown(transport.pull("topic", {0: 0, 1: 0}, limit=10)) == {
        0: [(0, b"1"), (1, b"2"), (2, b"3"), (3, b"4")],
        1: [(0, b"other"), (1, b"more")],
    }
    assert administration.mend(transport, ["topic"]) == {"topic": {0: 0, 1: 0}}


def test_nobody_is_given_one_and_whoever_finds_nothing_else_is_told(
    transport: RedisStreamsTransport, intrude: Callable[[str], object]
) -> None:
    intrude("*")
    assert shown(transport.pull("topic", {0: 0}, limit=10)) == {0: [(0, b"1"), (1, b"2")]}
    assert shown(transport.pull("topic", {0: 2, 1: 0}, limit=10)) == {1: [(0, b"other")]}
    with pytest.raises(ForeignEntries, match="hold entries of somebody else"):
        transport.pull("topic", {0: 2, 1: 1}, limit=10, wait=5.0)


def test_one_between_two_messages_is_passed_over(
    transport: RedisStreamsTransport, intrude: Callable[[str], object]
) -> None:
    intrude("2-5")
    transport.send("topic", {0: [b"3"]})
    assert shown(transport.pull("topic", {0: 0}, limit=10)) == {0: [(0, b"1"), (1, b"2"), (2, b"3")]}


def test_many_between_two_messages_hold_up_nobody_who_pulls_one_at_a_time(
    transport: RedisStreamsTransport, intrude: Callable[[str], object]
) -> None:
    for place in range(1, 4):
        intrude(f"2-{place}")
    assert not transport.pull("topic", {0: 2}, limit=1, wait=0)
    transport.send("topic", {0: [b"3"]})
    assert shown(transport.pull("topic", {0: 2}, limit=1, wait=0)) == {0: [(2, b"3")]}


def test_one_that_somebody_has_deleted_by_hand_is_still_named_and_mended(
    transport: RedisStreamsTransport, intrude: Callable[[str], bytes], client: redis.Redis, prefix: str
) -> None:
    client.xdel(Keys(prefix).log("topic", 0), intrude("*"))
    with pytest.raises(ForeignEntries, match=r"manage\.py enode queue mend topic"):
        transport.send("topic", {0: [b"3"]})
    assert administration.mend(transport) == {"topic": {0: 0, 1: 0}}
    assert transport.send("topic", {0: [b"3"]}) == {0: 2}


def test_many_are_deleted(transport: RedisStreamsTransport, client: redis.Redis, prefix: str) -> None:
    pipeline = client.pipeline()
    for _ in range(MENDED_PER_CALL + 1):
        pipeline.xadd(Keys(prefix).log("topic", 0), {"x": "y"})
    pipeline.execute()
    assert transport.mend("topic") == {0: MENDED_PER_CALL + 1, 1: 0}
    assert transport.send("topic", {0: [b"3"]}) == {0: 2}


def test_a_long_queue_is_mended_with_all_its_messages(
    transport: RedisStreamsTransport, intrude: Callable[[str], object], client: redis.Redis, prefix: str
) -> None:
    more = [b"%d" % number for number in range(3, 2 * COPIED_PER_CALL + 1)]
    transport.send("topic", {0: more})
    intrude("*")
    assert administration.mend(transport) == {"topic": {0: 1, 1: 0}}
    assert transport.send("topic", {0: [b"last"]}) == {0: 2 * COPIED_PER_CALL}
    found = shown(transport.pull("topic", {0: 0}, limit=1_000))[0]
    assert found == list(enumerate([b"1", b"2", *more, b"last"]))
    assert client.ttl(Keys(prefix).log("topic", 0)) == -1
    assert not client.exists(Keys(prefix).copy("topic", 0))


def test_a_queue_whose_messages_are_all_trimmed_goes_on_from_its_end(
    transport: RedisStreamsTransport, intrude: Callable[[str], object], client: redis.Redis, prefix: str
) -> None:
    client.xtrim(Keys(prefix).log("topic", 0), maxlen=0, approximate=False)
    intrude("*")
    assert administration.mend(transport) == {"topic": {0: 1, 1: 0}}
    assert transport.send("topic", {0: [b"3"]}) == {0: 2}


def test_a_mend_that_broke_off_is_begun_again(
    transport: RedisStreamsTransport, intrude: Callable[[str], object], client: redis.Redis, prefix: str
) -> None:
    client.xadd(Keys(prefix).copy("topic", 0), {"b": "of a topic that was deleted since"}, id="1-0")
    intrude("*")
    assert administration.mend(transport) == {"topic": {0: 1, 1: 0}}
    assert shown(transport.pull("topic", {0: 0}, limit=10)) == {0: [(0, b"1"), (1, b"2")]}


def test_a_queue_without_messages_is_mended_too(transport: RedisStreamsTransport, client: redis.Redis) -> None:
    transport.create_topic("empty", 1)
    log = transport._keys.log("empty", 0)
    client.xadd(log, {"x": "y"})
    assert transport.mend("empty") == {0: 1}
    assert transport.send("empty", {0: [b"1"]}) == {0: 0}


def test_where_nobody_else_can_write_there_is_nothing_to_mend() -> None:
    with pytest.raises(QueueError, match="nobody else can write into the queues of MemoryTransport"):
        administration.mend(MemoryTransport())
