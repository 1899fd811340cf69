from __future__ import annotations

from collections.abc import Iterator

import pytest
import redis

from chaos.faults.failovers import client_of
from chaos.faults.room import fill, make_room
from sample_project.embedded import Redis


@pytest.fixture
def server() -> Iterator[Redis]:
    with Redis() as server:
        yield server


def test_a_full_redis_refuses_writes_until_it_has_room(server: Redis) -> None:
    with client_of(server) as client:
        fill(server)
        with pytest.raises(redis.OutOfMemoryError):
            client.set("a", 1)
        make_room(server)
        assert client.set("a", 1)


def test_a_server_that_another_fault_has_paused_gets_room_all_the_same(server: Redis) -> None:
    fill(server)
    server.pause()
    make_room(server)
    with client_of(server) as client:
        assert client.set("a", 1)


def test_a_server_that_is_away_has_room_when_it_is_back(server: Redis) -> None:
    fill(server)
    server.kill()
    with pytest.raises(redis.RedisError):
        fill(server)
    make_room(server)
    server.start()
    with client_of(server) as client:
        assert client.set("a", 1)
