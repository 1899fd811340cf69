from __future__ import annotations

import uuid
from collections.abc import Iterator

import pytest
import redis

from enode_django.equeue.transport import Transport
from enode_django.equeue.transports.memory import MemoryTransport
from enode_django.equeue.transports.redis_streams import RedisStreamsTransport
from enode_django.testing.transport_contract import TransportContract
from enode_django.testing.transport_lease_contract import DEADLINE


@pytest.fixture(scope="module")
def prefix(redis_url: str) -> Iterator[str]:
    prefix = f"contract-{uuid.uuid4().hex}"
    yield prefix
    with redis.Redis.from_url(redis_url) as client:
        for key in client.scan_iter(f"{prefix}:*", count=1_000):
            client.delete(key)


class TestMemoryTransport(TransportContract):
    @pytest.fixture
    def transport(self) -> Transport:
        return MemoryTransport()


class TestRedisStreamsTransport(TransportContract):
    @pytest.fixture
    def transport(self, redis_url: str, prefix: str) -> Iterator[Transport]:
        transport = RedisStreamsTransport(redis_url, prefix=prefix, timeout=DEADLINE)
        yield transport
        transport.close()

    @pytest.fixture
    def another(self, redis_url: str, prefix: str) -> Iterator[Transport]:
        transport = RedisStreamsTransport(redis_url, prefix=prefix, timeout=DEADLINE)
        yield transport
        transport.close()
