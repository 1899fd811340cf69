from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
import redis

from enode_django.equeue.transport import Transport
from enode_django.equeue.transports.broker import BrokerTransport
from enode_django.equeue.transports.memory import MemoryTransport
from enode_django.equeue.transports.redis_streams import RedisStreamsTransport
from tests.equeue.brokers import RunningBroker


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBroker]:
    """A broker that the tests of a module share. It is not stopped or killed before the end."""
    with RunningBroker(tmp_path_factory.mktemp("broker") / "data") as broker:
        yield broker
        assert broker.stop() == 0


@pytest.fixture
def transport(broker: RunningBroker) -> Iterator[BrokerTransport]:
    transport = broker.transport()
    yield transport
    transport.close()


@pytest.fixture
def prefix() -> str:
    """The prefix of the test's own keys in Redis."""
    return f"test-{uuid.uuid4().hex}"


@pytest.fixture
def client(redis_url: str, prefix: str) -> Iterator[redis.Redis]:
    """A Redis client for tests that look below the transport. Keys with the prefix are deleted afterwards."""
    with redis.Redis.from_url(redis_url) as client:
        yield client
        for key in client.scan_iter(f"{prefix}:*", count=1_000):
            client.delete(key)


@pytest.fixture
def own_broker(tmp_path: Path) -> Iterator[RunningBroker]:
    """A broker that the test may kill."""
    with RunningBroker(tmp_path / "data") as broker:
        yield broker


@pytest.fixture(params=["memory", "broker", "redis"])
def orders(request: pytest.FixtureRequest) -> Transport:
    """Return each of the transports in turn, with one topic, "orders", of two queues."""
    transport: Transport = request.getfixturevalue(f"{request.param}_queue")
    transport.create_topic("orders", 2)
    return transport


@pytest.fixture
def memory_queue() -> MemoryTransport:
    return MemoryTransport()


@pytest.fixture
def broker_queue(own_broker: RunningBroker) -> Iterator[BrokerTransport]:
    with closing(own_broker.transport()) as transport:
        yield transport


@pytest.fixture
def redis_queue(redis_url: str, prefix: str, client: redis.Redis) -> Iterator[RedisStreamsTransport]:
    with closing(RedisStreamsTransport(redis_url, prefix=prefix, timeout=60)) as transport:
        yield transport


@pytest.fixture
def memory() -> MemoryTransport:
    """A transport in memory with the topic "orders" of two queues."""
    transport = MemoryTransport()
    transport.create_topic("orders", 2)
    return transport
