"""The Redis driver on a cluster of three masters, which share the keys."""

from __future__ import annotations

import contextlib
import threading
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from typing import Any

import pytest

from chaos.redis_servers import SLOTS, RedisCluster, ask
from enode_django.equeue.messages import PulledBatch
from enode_django.equeue.producer import Producer
from enode_django.equeue.redis import reading as redis_reading
from enode_django.equeue.redis.keys import Keys
from enode_django.equeue.transport import Transport
from enode_django.equeue.transports.redis_streams import RedisStreamsTransport
from enode_django.exceptions import ConfigurationError, TransportUnavailable
from enode_django.repository.redis_states import RedisStates
from enode_django.repository.store import Snapshot
from enode_django.testing.transport_contract import TransportContract
from enode_django.testing.transport_lease_contract import DEADLINE, QUEUES, eventually, messages
from tests.equeue.outdated_node import OutdatedNode
from tests.equeue.redis_servers import wait_for


@pytest.fixture(scope="module")
def cluster() -> Iterator[RedisCluster]:
    # No master dies here, and on a busy machine none must believe that another one has died.
    with contextlib.closing(RedisCluster(3, more={"cluster-node-timeout": "60000"})) as cluster:
        yield cluster


@pytest.fixture
def transport(cluster: RedisCluster) -> Iterator[RedisStreamsTransport]:
    with contextlib.closing(RedisStreamsTransport(cluster.url, timeout=DEADLINE)) as transport:
        yield transport


class TestRedisCluster(TransportContract):
    @pytest.fixture
    def transport(self, cluster: RedisCluster) -> Iterator[Transport]:
        with contextlib.closing(RedisStreamsTransport(cluster.url, timeout=DEADLINE)) as transport:
            yield transport

    @pytest.fixture
    def another(self, cluster: RedisCluster) -> Iterator[Transport]:
        with contextlib.closing(RedisStreamsTransport(cluster.url, timeout=DEADLINE)) as transport:
            yield transport


def test_queues_lie_on_all_servers(cluster: RedisCluster) -> None:
    keys = Keys("enode")
    assert {cluster.master_of(keys.log("topic", queue)).port for queue in range(12)} == {
        server.port for server in cluster.servers
    }


def topic_with_an_empty_slot(cluster: RedisCluster) -> tuple[str, int, Any]:
    """Return a topic's name, the slot of its queue 1, and the master of that slot. The slot must have no keys of other
    tests, since it could not be moved."""
    while True:
        topic = f"topic-{uuid.uuid4().hex}"
        key = Keys("enode").log(topic, 1)
        slot, old = ask(cluster.servers[0], "CLUSTER KEYSLOT", key), cluster.master_of(key)
        if not ask(old, "CLUSTER COUNTKEYSINSLOT", slot):
            return topic, slot, old


def test_slot_that_was_moved_is_found(cluster: RedisCluster, transport: RedisStreamsTransport) -> None:
    topic, slot, old = topic_with_an_empty_slot(cluster)
    transport.create_topic(topic, 2)
    transport.send(topic, {0: [b"x"]})  # the client reads the map of slots
    new = next(server for server in cluster.servers if server is not old)
    for server in (new, old, *cluster.servers):
        ask(server, "CLUSTER SETSLOT", slot, "NODE", ask(new, "CLUSTER MYID"))
    assert transport.send(topic, {1: [b"a", b"b"]}) == {1: 0}
    assert transport.pull(topic, {0: 1, 1: 0}, limit=5, wait=DEADLINE)[0].bodies == [b"a", b"b"]


def test_a_node_that_knows_only_who_had_the_slots_before_keeps_nobody_from_them(cluster: RedisCluster) -> None:
    topic = f"topic-{uuid.uuid4().hex}"
    with OutdatedNode(cluster.servers[0].port) as cut_off:
        login, _, nodes = cluster.url.rpartition("@")
        with contextlib.closing(
            RedisStreamsTransport(f"{login}@{cut_off.address},{nodes}", timeout=DEADLINE)
        ) as transport:
            assert transport.create_topic(topic, 12) == 12
            assert transport.send(topic, {queue: [b"x"] for queue in range(12)}) == dict.fromkeys(range(12), 0)
            assert cut_off.asked == 1, "then another one is asked"


def test_what_refuses_is_believed_though_no_other_node_can_be_asked(cluster: RedisCluster) -> None:
    """All maps of slots that the client can get before the first refusal are outdated."""
    topic = f"topic-{uuid.uuid4().hex}"
    login, _, _ = cluster.url.rpartition("@")
    with (
        OutdatedNode(cluster.servers[0].port) as one,
        OutdatedNode(cluster.servers[0].port) as other,
        contextlib.closing(
            RedisStreamsTransport(f"{login}@{one.address},{other.address}", timeout=DEADLINE)
        ) as transport,
    ):
        assert transport.create_topic(topic, 12) == 12
        for _ in range(3):
            transport.send(topic, {queue: [b"x"] for queue in range(12)})
        assert transport.end_offsets(topic) == dict.fromkeys(range(12), 3)


def test_waiting_pull_is_answered_from_every_server(cluster: RedisCluster, transport: RedisStreamsTransport) -> None:
    topic = f"topic-{uuid.uuid4().hex}"
    transport.create_topic(topic, 12)
    offsets = dict.fromkeys(range(12), 0)
    with ThreadPoolExecutor(1) as pool:
        for queue in range(12):
            waiting = pool.submit(transport.pull, topic, offsets, limit=5, wait=3 * DEADLINE)
            eventually(lambda: _waiting_clients(cluster) >= 12 or None)
            transport.send(topic, {queue: [b"x"]})
            (batch,) = waiting.result(DEADLINE)
            assert (batch.queue, list(batch.bodies)) == (queue, [b"x"])
            offsets[queue] = 1
    assert _waiting_clients(cluster) == 0


def test_wake_ends_a_pull_that_waits_at_several_servers_and_leaves_nobody_waiting_there(
    cluster: RedisCluster, transport: RedisStreamsTransport
) -> None:
    topic = f"topic-{uuid.uuid4().hex}"
    transport.create_topic(topic, 12)
    offsets = dict.fromkeys(range(12), 0)
    threads: list[int] = []

    def pull() -> list[PulledBatch]:
        threads.append(threading.get_ident())
        return list(transport.pull(topic, offsets, limit=5, wait=30 * DEADLINE))

    with ThreadPoolExecutor(1) as pool:
        for wait in (True, False):
            waiting = pool.submit(pull)
            if wait:
                eventually(lambda: _waiting_clients(cluster) >= 12 or None)
            else:
                eventually(lambda: len(threads) == 2 or None)
            transport.wake(threads[-1])
            assert waiting.result(DEADLINE) == []
        eventually(lambda: _waiting_clients(cluster) == 0 or None)
        transport.send(topic, {7: [b"x"]})
        (batch,) = pool.submit(pull).result(DEADLINE)
        assert batch.bodies == [b"x"]


def test_close_ends_a_pull_that_waits_at_several_servers(
    cluster: RedisCluster, transport: RedisStreamsTransport
) -> None:
    topic = f"topic-{uuid.uuid4().hex}"
    transport.create_topic(topic, QUEUES)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(transport.pull, topic, dict.fromkeys(range(QUEUES), 0), limit=1, wait=3 * DEADLINE)
        eventually(lambda: _waiting_clients(cluster) >= QUEUES or None)
        transport.close()
        with pytest.raises(TransportUnavailable):
            waiting.result(DEADLINE)


@pytest.mark.parametrize("queues", [1, QUEUES], ids=["one queue", "several"])
def test_close_ends_a_pull_that_is_just_beginning_to_wait_again(
    transport: RedisStreamsTransport, monkeypatch: pytest.MonkeyPatch, queues: int
) -> None:
    topic = f"topic-{uuid.uuid4().hex}"
    transport.create_topic(topic, queues)

    def closing(wait: float, longest: float = DEADLINE) -> Iterator[tuple[str, int]]:
        yield "BLOCK", 1
        transport.close()
        yield "BLOCK", 1000 * round(wait)

    monkeypatch.setattr(redis_reading, "blocks", closing)
    with pytest.raises(TransportUnavailable, match="closed"):
        transport.pull(topic, dict.fromkeys(range(queues), 0), limit=1, wait=DEADLINE)


def test_order_of_keys_is_kept_while_queues_are_added_under_load(
    cluster: RedisCluster, transport: RedisStreamsTransport
) -> None:
    """No message is lost or stored twice, although the route changes when only some queues have taken a send."""
    topic = f"topic-{uuid.uuid4().hex}"
    transport.create_topic(topic, 3)
    done = threading.Event()

    def sends(sender: int) -> list[bytes]:
        producer, sent = Producer(transport), []
        while not done.is_set() or len(sent) < 200:
            bodies = [b"%d:%d" % (sender, len(sent) + number) for number in range(20)]
            results = producer.send_batch(topic, [(str(number), body) for number, body in enumerate(bodies)])
            sent += bodies
            assert {result.topic for result in results} == {topic}
        return sent

    with ThreadPoolExecutor(3) as pool:
        senders = [pool.submit(sends, sender) for sender in range(3)]
        for count in range(4, 12):
            assert transport.add_queues(topic, count, unordered=True) == count
        done.set()
        sent = [body for sender in senders for body in sender.result(DEADLINE)]
    stored = [body for queue in range(11) for _, body in messages(transport, topic, queue)]
    assert sorted(stored) == sorted(sent)
    wait_for(lambda: transport.route(topic).version == 9, "each change has raised the version")


def test_cluster_that_does_not_serve_all_slots_is_retriable(cluster: RedisCluster) -> None:
    alone = RedisCluster.alone()
    with contextlib.closing(alone), contextlib.closing(RedisStreamsTransport(alone.url, timeout=DEADLINE)) as transport:
        with pytest.raises(TransportUnavailable):
            transport.create_topic("topic", 1)
        ask(alone.servers[0], "CLUSTER ADDSLOTS", *range(SLOTS))
        eventually(lambda: _created(transport))


def test_shared_states_lie_on_all_servers(cluster: RedisCluster) -> None:
    states = RedisStates(cluster.url, secrets=["a secret"], timeout=5.0)
    saved = [
        Snapshot(f"id-{number}", "bank.BankAccount", number, "fingerprint", b"%d" % number, datetime.now(UTC))
        for number in range(1, 20)
    ]
    states.save(saved)
    assert states.load([state.aggregate_root_id for state in saved] + ["nobody"]) == {
        state.aggregate_root_id: state for state in saved
    }
    states.close()


def test_single_location_of_a_cluster_is_a_configuration_error(cluster: RedisCluster) -> None:
    topic = next(name for name in "abcdef" if cluster.master_of(Keys("enode").topic(name)) is not cluster.servers[0])
    with (
        contextlib.closing(RedisStreamsTransport(cluster.servers[0].url, timeout=DEADLINE)) as transport,
        pytest.raises(ConfigurationError, match=r"redis\+cluster"),
    ):
        transport.create_topic(topic, 1)


def _created(transport: RedisStreamsTransport) -> int | None:
    try:
        return transport.create_topic("topic", 1)
    except TransportUnavailable:
        return None


def _waiting_clients(cluster: RedisCluster) -> int:
    return sum("b" in client["flags"] for server in cluster.servers for client in ask(server, "CLIENT LIST"))
