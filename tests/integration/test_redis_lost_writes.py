"""The machine of a Redis crashes and its last second is lost, as ``appendfsync everysec`` allows."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from enode_django.equeue.consumer.queue_consumer import QueueConsumer
from enode_django.equeue.subscribing import Consumer, Limits, Mode
from enode_django.equeue.transports.redis_streams import RedisStreamsTransport
from sample_project.embedded import Redis
from tests.equeue.consuming import Handled, eventually, texts
from tests.equeue.redis_servers import persist
from tests.redis_logs import crash, written_log

DEADLINE = 60.0


@pytest.fixture
def transport(private_redis: Redis) -> Iterator[RedisStreamsTransport]:
    transport = RedisStreamsTransport(private_redis.url, timeout=DEADLINE)
    transport.create_topic("topic", 1)
    yield transport
    transport.close()


def finish_all(consumer: QueueConsumer) -> list[bytes]:
    finished = []
    consumer.acquire_missing()
    for pulled in consumer.pull(1_000, 0.1):
        finished += pulled.bodies
        pulled.window.finish_many(pulled.offsets)
    return finished


@pytest.mark.parametrize("new", [3, 50], ids=["the queue stays shorter", "the queue gets longer again"])
@pytest.mark.parametrize("first", ["renew", "commit"])
def test_what_is_sent_after_the_crash_is_delivered_to_consumers_from_before(
    private_redis: Redis, transport: RedisStreamsTransport, new: int, first: str
) -> None:
    consumer = QueueConsumer(transport, group="group", topic="topic", owner="worker", lease=60)
    consumer.assign([0])
    consumer.acquire_missing()
    transport.send("topic", {0: [b"kept"] * 10})
    assert finish_all(consumer) == [b"kept"] * 10
    consumer.commit()
    log = written_log(private_redis)
    transport.send("topic", {0: [b"lost"] * 5})
    assert finish_all(consumer) == [b"lost"] * 5

    crash(private_redis, log)
    sent = [b"new %d" % number for number in range(new)]
    assert persist(lambda: transport.send("topic", {0: sent})) == {0: 10}

    persist(getattr(consumer, first))
    delivered: list[bytes] = []
    deadline = time.monotonic() + DEADLINE
    while len(delivered) < len(sent) and time.monotonic() < deadline:
        delivered += persist(lambda: finish_all(consumer))
    consumer.commit()
    assert delivered == sent
    assert transport.committed("group", "topic") == {0: 10 + new}


def test_what_is_sent_after_the_crash_is_handled_by_who_gets_all_messages(
    private_redis: Redis, transport: RedisStreamsTransport, tmp_path: Path
) -> None:
    handled = Handled()
    transport.send("topic", {0: texts("kept")})
    limits = Limits(lease=2.0, commit_interval=0.05, pull_wait=0.05)
    given = {"group": "group", "topics": ["topic"], "mode": Mode.BROADCASTING, "limits": limits}
    consumer = Consumer(transport, handle=handled, directory=tmp_path / "offsets", **given)
    consumer.start()
    try:
        eventually(lambda: handled.bodies == ["kept"])
        log = written_log(private_redis)
        transport.send("topic", {0: texts("lost", "lost")})
        eventually(lambda: handled.bodies == ["kept", "lost", "lost"])
        crash(private_redis, log)
        assert persist(lambda: transport.send("topic", {0: texts(*range(5))})) == {0: 1}
        eventually(lambda: handled.bodies[-5:] == ["0", "1", "2", "3", "4"])
    finally:
        consumer.stop(60)
