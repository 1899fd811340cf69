"""`manage.py check --deploy` names what in the configuration of a Redis may lose messages that it has accepted."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest
import redis
from django.core.checks import run_checks
from django.test import override_settings

from enode_django.conf.groups import REDIS_STREAMS
from enode_django.equeue.transports.redis_streams import RedisStreamsTransport
from sample_project.embedded_servers import Redis


@pytest.fixture(scope="module")
def server() -> Iterator[Redis]:
    with Redis({"maxmemory-policy": "noeviction"}) as server:
        yield server


@pytest.fixture
def client(server: Redis) -> Iterator[Any]:
    with redis.Redis.from_url(server.url) as client:
        yield client
        configure(client, policy="noeviction", appends="yes")


def configure(client: Any, *, policy: str, appends: str) -> None:
    client.config_set("maxmemory-policy", policy)
    client.config_set("appendonly", appends)


def warnings(location: str) -> list[str]:
    with override_settings(ENODE={"QUEUE": {"BACKEND": REDIS_STREAMS, "LOCATION": location}}):
        return [found.msg for found in run_checks(include_deployment_checks=True) if found.id == "enode_django.W037"]


def test_a_server_that_keeps_its_messages_is_fine(server: Redis, client: Any) -> None:
    assert warnings(server.url) == []


def test_a_cache_is_no_queue(server: Redis, client: Any) -> None:
    configure(client, policy="allkeys-lru", appends="no")
    evicts, forgets = warnings(server.url)
    assert "maxmemory-policy allkeys-lru" in evicts
    assert "appendonly no" in forgets
    assert server.password not in evicts + forgets


def test_whoever_may_not_ask_is_told_nothing(server: Redis, client: Any) -> None:
    configure(client, policy="allkeys-lru", appends="no")
    client.acl_setuser("worker", enabled=True, passwords=["+secret"], keys=["*"], commands=["+@all", "-info"])
    location = server.url.replace(f":{server.password}@", "worker:secret@")
    assert warnings(location) == []


def test_every_server_of_the_topics_is_asked_once(server: Redis, client: Any) -> None:
    with contextlib.closing(RedisStreamsTransport(server.url, prefix="hazards")) as transport:
        transport.create_topic("one", 3)
        assert transport.hazards() == []
        client.config_set("appendonly", "no")
        assert len(transport.hazards()) == 1
