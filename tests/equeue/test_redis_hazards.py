"""`manage.py check --deploy` names what in the configuration of a Redis may lose messages that it has accepted."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest
import redis
from django.core.checks import run_checks
from django.test import override_settings

from chaos.redis_servers import SLOTS, RedisCluster, ask
from enode_django.conf.groups import REDIS_STREAMS
from enode_django.equeue.redis.keys import Keys
from enode_django.equeue.transports.redis_streams import RedisStreamsTransport
from enode_django.exceptions import TransportUnavailable
from enode_django.testing.transport_lease_contract import eventually
from sample_project.embedded_servers import Redis


@pytest.fixture(scope="module")
def cache() -> Iterator[Redis]:
    with Redis({"maxmemory-policy": "allkeys-lru", "appendonly": "no"}) as server:
        yield server


def warnings(location: str) -> list[str]:
    with override_settings(ENODE={"QUEUE": {"BACKEND": REDIS_STREAMS, "LOCATION": location}}):
        return [found.msg for found in run_checks(include_deployment_checks=True) if found.id == "enode_django.W037"]


def test_a_server_that_keeps_its_messages_is_fine(private_redis: Redis) -> None:
    assert warnings(private_redis.url) == []


def test_a_cache_is_no_queue(cache: Redis) -> None:
    evicts, forgets = warnings(cache.url)
    assert "maxmemory-policy allkeys-lru" in evicts
    assert "appendonly no" in forgets
    assert cache.password not in evicts + forgets


def test_whoever_may_not_ask_is_told_nothing(cache: Redis) -> None:
    with redis.Redis.from_url(cache.url) as client:
        client.acl_setuser("worker", enabled=True, passwords=["+secret"], keys=["*"], commands=["+@all", "-info"])
    assert warnings(cache.url.replace(f":{cache.password}@", "worker:secret@")) == []


def test_what_the_servers_of_many_queues_have_in_common_is_told_once(cache: Redis) -> None:
    with contextlib.closing(RedisStreamsTransport(cache.url, prefix="hazards")) as transport:
        transport.create_topic("one", 3)
        assert len(transport.hazards()) == 2


def test_a_cluster_that_does_not_serve_all_slots_tells_the_hazards_of_the_others() -> None:
    alone = RedisCluster.alone()
    with contextlib.closing(alone), contextlib.closing(RedisStreamsTransport(alone.url, timeout=30.0)) as transport:
        (server,) = alone.servers
        for setting in (("cluster-require-full-coverage", "no"), ("maxmemory-policy", "allkeys-lru")):
            ask(server, "CONFIG SET", *setting)
        ask(server, "CLUSTER ADDSLOTS", *range(SLOTS))
        eventually(lambda: _created(transport, "served"))
        transport.create_topic("gone", 1)
        ask(server, "CLUSTER DELSLOTS", ask(server, "CLUSTER KEYSLOT", Keys("enode").topic("gone")))
        assert [hazard.partition(" ")[0] for hazard in transport.hazards()] == ["deletes"]


def _created(transport: RedisStreamsTransport, topic: str) -> int | None:
    with contextlib.suppress(TransportUnavailable):
        return transport.create_topic(topic, 1)
    return None
