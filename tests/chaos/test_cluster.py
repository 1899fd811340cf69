"""The Redis Cluster of the driver: clients reach its nodes through proxies, and the checker reads all of them."""

from __future__ import annotations

import contextlib
import time
import uuid
from collections.abc import Iterator

import pytest

from chaos.checker.reading.problems import Problems
from chaos.checker.reading.queue import Topics
from chaos.checker.reading.redis_streams import read_redis
from chaos.proxy import Proxy
from chaos.redis_servers import PATIENT, RedisCluster, ask, told_port
from chaos.waiting import wait_until
from enode_django.equeue.transports.redis_streams import RedisStreamsTransport
from enode_django.exceptions import TransportUnavailable

DEADLINE = 60.0
QUEUES = 12


@pytest.fixture(scope="module")
def proxies() -> Iterator[dict[int, Proxy]]:
    """Yield the proxies by the port that each leads to."""
    proxies: dict[int, Proxy] = {}
    yield proxies
    for proxy in proxies.values():
        proxy.close()


@pytest.fixture(scope="module")
def cluster(proxies: dict[int, Proxy]) -> Iterator[RedisCluster]:
    def tell(port: int) -> int:
        return proxies.setdefault(port, Proxy(port)).port

    settings = {"appendfsync": "always", "cluster-node-timeout": str(PATIENT)}
    with contextlib.closing(RedisCluster(3, more=settings, tell=tell)) as cluster:
        yield cluster


@pytest.fixture
def prefix() -> str:
    """Of the keys of one test."""
    return f"chaos-{uuid.uuid4().hex}"


@pytest.fixture
def transport(cluster: RedisCluster, prefix: str) -> Iterator[RedisStreamsTransport]:
    with contextlib.closing(RedisStreamsTransport(cluster.url, prefix=prefix, timeout=DEADLINE)) as transport:
        transport.create_topic("events", QUEUES)
        transport.acquire("group", "events", 3, "owner", 60.0)
        yield transport


def send(transport: RedisStreamsTransport, queue: int) -> None:
    """Send a message, again and again until the queue has it."""
    deadline = time.monotonic() + DEADLINE
    while True:
        try:
            transport.send("events", {queue: [b"none"]})
            return
        except TransportUnavailable:
            assert time.monotonic() < deadline, "the cluster did not come back"


def test_clients_are_told_proxies(
    cluster: RedisCluster, proxies: dict[int, Proxy], transport: RedisStreamsTransport
) -> None:
    told = {owner[1] for _, _, owner in ask(cluster.servers[0], "CLUSTER SLOTS")}
    assert told == {proxy.port for proxy in proxies.values()} == set(map(told_port, cluster.servers))
    for queue in range(QUEUES):
        send(transport, queue)
    assert all(proxy.cut() for proxy in proxies.values()), "every node was asked through its proxy"


def test_a_node_that_dies_comes_back_with_all_that_it_has_taken(
    cluster: RedisCluster, transport: RedisStreamsTransport
) -> None:
    for queue in range(QUEUES):
        send(transport, queue)
    node = cluster.servers[1]
    node.kill()
    with pytest.raises(TransportUnavailable):
        transport.send("events", {queue: [b"lost"] for queue in range(QUEUES)})
    node.start()
    wait_until(cluster.is_whole, "the cluster is whole", DEADLINE)
    for queue in range(QUEUES):
        send(transport, queue)
    ends = transport.end_offsets("events")
    assert all(ends[queue] >= 2 for queue in range(QUEUES))


def test_the_checker_reads_all_nodes(cluster: RedisCluster, transport: RedisStreamsTransport, prefix: str) -> None:
    for queue in range(QUEUES):
        send(transport, queue)
    problems = Problems()
    url = f"redis://:{cluster.servers[0].password}@127.0.0.1:{told_port(cluster.servers[0])}/0"
    found = read_redis(url, prefix, Topics(garbage=frozenset({"events"})), problems, is_cluster=True)
    assert list(problems) == []
    assert {(record.queue, record.count) for record in found.log} == {(queue, 1) for queue in range(QUEUES)}
    assert found.garbage == QUEUES
    assert [sample.consumption for sample in found.samples] == [("group", "events", 3)]
