"""A master is killed and its replica takes over: in a cluster, and with Sentinels.

Replication is asynchronous, so messages that were acknowledged just before may be lost. The rest must be consistent.
"""

from __future__ import annotations

import contextlib
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest

from chaos.proxy import Proxy
from chaos.redis_servers import NOTICED_DEAD, PATIENT, RedisCluster, Servers, ask, is_master, says
from enode_django.equeue.consumer.queue_consumer import QueueConsumer
from enode_django.equeue.messages import Commit, Once
from enode_django.equeue.redis.keys import Keys
from enode_django.equeue.transports.redis_streams import RedisStreamsTransport
from enode_django.exceptions import TransportUnavailable
from enode_django.testing.transport_lease_contract import DEADLINE, eventually, messages
from sample_project.embedded_servers import Redis, Valkey
from tests.equeue.redis_servers import RedisWithSentinels, persist, wait_for

QUEUES = 12


@pytest.fixture(params=["cluster", "sentinel"])
def servers(request: pytest.FixtureRequest) -> Iterator[Servers]:
    patient = {"cluster-node-timeout": str(PATIENT)}
    servers = RedisCluster(3, replicas=1, more=patient) if request.param == "cluster" else RedisWithSentinels()
    with contextlib.closing(servers):
        yield servers


@pytest.fixture
def transport(servers: Servers) -> Iterator[RedisStreamsTransport]:
    with contextlib.closing(RedisStreamsTransport(servers.url, timeout=DEADLINE)) as transport:
        transport.create_topic("topic", QUEUES)
        yield transport


@pytest.fixture
def queue(servers: Servers, transport: RedisStreamsTransport) -> int:
    """A queue of the master that has the replica."""
    return next(queue for queue in range(QUEUES) if servers.holds(Keys("enode").log("topic", queue)))


class Load:
    """A sender that sends until stopped. It keeps the acknowledged messages, and those with an unknown outcome."""

    def __init__(self, transport: RedisStreamsTransport, queue: int) -> None:
        self.acknowledged: list[tuple[int, bytes]] = []
        self.unknown: set[bytes] = set()
        self.stop = threading.Event()
        self._transport = transport
        self._queue = queue

    def run(self) -> None:
        number = 0
        while not self.stop.is_set():
            bodies = [b"%d" % (number + index) for index in range(20)]
            number += 20
            try:
                first = self._transport.send("topic", {self._queue: bodies})[self._queue]
            except TransportUnavailable:
                self.unknown.update(bodies)
                self.stop.wait(0.02)
            else:
                self.acknowledged.extend(enumerate(bodies, first))


def test_killed_master_is_replaced_under_load(servers: Servers, transport: RedisStreamsTransport, queue: int) -> None:
    load = Load(transport, queue)
    with ThreadPoolExecutor(1) as pool:
        sending = pool.submit(load.run)
        try:
            eventually(lambda: len(load.acknowledged) >= 400 or None)
            before = len(load.acknowledged)
            servers.notice_dead(NOTICED_DEAD)
            servers.master.kill()
            eventually(lambda: load.unknown or None)
            killed_at = len(load.acknowledged)
            eventually(lambda: len(load.acknowledged) >= killed_at + 400 or None)
            servers.notice_dead(PATIENT)
        finally:
            load.stop.set()
        sending.result(DEADLINE)
    stored = messages(transport, "topic", queue)
    assert [offset for offset, _ in stored] == list(range(len(stored))), "no gap, and none twice"
    lost = set(load.acknowledged) - set(stored)
    assert lost <= set(load.acknowledged[:killed_at]), "what the new master has acknowledged stays"
    assert before > 0
    assert {body for _, body in stored} <= {body for _, body in load.acknowledged} | load.unknown


def test_master_that_stands_still_is_replaced(servers: Servers, transport: RedisStreamsTransport, queue: int) -> None:
    transport.send("topic", {queue: [b"before"]})
    wait_for(lambda: _has_all(servers), "the replica has it all")
    master = servers.master
    servers.notice_dead(NOTICED_DEAD)
    with contextlib.closing(RedisStreamsTransport(servers.url, timeout=2.0)) as hasty:
        master.pause()
        try:
            once = Once(uuid.uuid4().hex, 1)  # repeating the send after a late answer must not store it twice
            assert persist(lambda: hasty.send("topic", {queue: [b"after"]}, once=once)) == {queue: 1}
            assert persist(lambda: messages(hasty, "topic", queue)) == [(0, b"before"), (1, b"after")]
        finally:
            master.resume()


def test_what_is_sent_after_a_failover_reaches_consumers_from_before(
    servers: Servers, transport: RedisStreamsTransport, queue: int
) -> None:
    consumer = QueueConsumer(transport, group="group", topic="topic", owner="worker", lease=60)
    consumer.assign([queue])
    consumer.acquire_missing()
    transport.send("topic", {queue: [b"kept"] * 10})
    assert finish_all(consumer) == [b"kept"] * 10
    consumer.commit()
    wait_for(lambda: _has_all(servers), "the replica has it all")
    replica = servers.cut_off_replica()
    transport.send("topic", {queue: [b"lost"] * 5})
    assert finish_all(consumer) == [b"lost"] * 5
    lost = transport.acquire("group", "topic", queue, "worker", 0.001)

    servers.notice_dead(NOTICED_DEAD)
    servers.master.kill()
    wait_for(lambda: is_master(replica), "the replica has taken over")
    servers.notice_dead(PATIENT)
    sent = [b"new %d" % number for number in range(20)]
    assert persist(lambda: transport.send("topic", {queue: sent})) == {queue: 10}

    other = persist(lambda: transport.acquire("other group", "topic", queue, "other", 60))
    assert other.epoch > lost.epoch, "no epoch is given out twice, though the last ones were lost"
    assert persist(lambda: transport.commit("group", "topic", {queue: Commit(lost.epoch, 15)})) == {queue}
    persist(consumer.renew)
    delivered: list[bytes] = []
    deadline = time.monotonic() + DEADLINE
    while len(delivered) < len(sent) and time.monotonic() < deadline:
        delivered += persist(lambda: finish_all(consumer))
    consumer.commit()
    assert delivered == sent
    assert transport.committed("group", "topic")[queue] == 30


def test_send_that_too_few_replicas_confirm_is_unknown_and_can_be_made_again(
    servers: Servers, transport: RedisStreamsTransport, queue: int
) -> None:
    once = Once(uuid.uuid4().hex, 1)
    with contextlib.closing(RedisStreamsTransport(servers.url, wait_replicas=1, wait_timeout=0.3)) as careful:
        for with_replica in range(QUEUES):
            if servers.holds(Keys("enode").log("topic", with_replica)):
                first = Once(uuid.uuid4().hex, 1)  # repeating it when the replica is slow must not store it twice
                assert persist(partial(careful.send, "topic", {with_replica: [b"x"]}, once=first))
        servers.cut_off_replica()
        with pytest.raises(TransportUnavailable, match="0 of 1 replicas"):
            careful.send("topic", {queue: [b"y"]}, once=once)
        assert messages(careful, "topic", queue) == [(0, b"x"), (1, b"y")]
        epoch = transport.acquire("group", "topic", queue, "one", 60).epoch
        with pytest.raises(TransportUnavailable, match="0 of 1 replicas"):
            careful.commit("group", "topic", {queue: Commit(epoch, 1)})
        servers.let_replica_come_back()
        assert persist(lambda: careful.send("topic", {queue: [b"y"]}, once=once)) == {queue: 1}
        assert messages(careful, "topic", queue) == [(0, b"x"), (1, b"y")]


def test_master_that_is_demoted_is_left(servers: Servers, transport: RedisStreamsTransport, queue: int) -> None:
    transport.send("topic", {queue: [b"a"]})
    with ThreadPoolExecutor(1) as pool, contextlib.ExitStack() as closing:
        given_up = threading.Event()
        closing.callback(given_up.set)
        waiting = pool.submit(pull_on, transport, queue, 1, given_up)
        servers.change_roles()
        # Until the old master has heard of the change, it acknowledges messages that will be lost.
        eventually(lambda: (persist(lambda: transport.send("topic", {queue: [b"b"]})) and waiting.done()) or None)
        assert waiting.result() == b"b"
    persist(lambda: transport.acquire("group", "topic", queue, "one", 60))


def pull_on(transport: RedisStreamsTransport, queue: int, offset: int, given_up: threading.Event) -> bytes:
    offsets = dict.fromkeys(range(QUEUES), 0) | {queue: offset}
    while not given_up.is_set():
        for batch in persist(lambda: transport.pull("topic", offsets, limit=1, wait=1.0)):
            return bytes(batch.bodies[0])
    return b""


def finish_all(consumer: QueueConsumer) -> list[bytes]:
    finished = []
    consumer.acquire_missing()
    for pulled in consumer.pull(1_000, 0.1):
        finished += pulled.bodies
        pulled.window.finish_many(pulled.offsets)
    return finished


def _has_all(servers: Servers) -> bool:
    replication = ask(servers.master, "INFO", "replication")
    return bool(replication["slave0"]["offset"] == replication["master_repl_offset"])


def test_a_name_that_leads_to_another_master_is_followed() -> None:
    """Of managed servers clients know one name. The demoted master keeps its connections, and refuses writes."""
    with contextlib.ExitStack() as running:
        master = running.enter_context(Redis({}))
        follows = {"replicaof": f"127.0.0.1 {master.port}", "masterauth": master.password}
        replica = Redis({**follows, "repl-diskless-sync-delay": "0", "appendonly": "no"})
        replica.password = master.password
        running.enter_context(replica)
        proxy = running.enter_context(contextlib.closing(Proxy(master.port)))
        wait_for(lambda: says(replica, "INFO", "replication")["master_link_status"] == "up", "the replica follows")
        location = f"redis://:{master.password}@127.0.0.1:{proxy.port}/0"
        transport = running.enter_context(contextlib.closing(RedisStreamsTransport(location, timeout=DEADLINE)))
        transport.create_topic("topic", 1)
        transport.send("topic", {0: [b"before"]})
        wait_for(lambda: says(replica, "EXISTS", Keys("enode").log("topic", 0)), "the replica has the message")
        ask(replica, "REPLICAOF", "NO", "ONE")
        proxy.target = replica.port
        ask(master, "REPLICAOF", "127.0.0.1", 1)
        with pytest.raises(TransportUnavailable):
            transport.send("topic", {0: [b"refused"]})
        assert transport.send("topic", {0: [b"behind"]}) == {0: 1}
        assert messages(transport, "topic", 0) == [(0, b"before"), (1, b"behind")]


@contextlib.contextmanager
def replicated(service: type[Redis]) -> Iterator[tuple[Redis, Redis]]:
    """A master and its replica, which may change roles."""
    # With an append-only file, a new replica writes the whole file first, and does not end before that.
    settings = {"repl-diskless-sync-delay": "0", "appendonly": "no"}
    master, replica = service(settings), service(settings)
    replica.password = master.password
    for server in (master, replica):
        server.settings["masterauth"] = server.password
    with master, replica:
        follow(replica, master)
        yield master, replica


def follow(server: Redis, master: Redis) -> None:
    ask(server, "REPLICAOF", "127.0.0.1", master.port)
    wait_for(lambda: says(server, "INFO", "replication").get("master_link_status") == "up", "the replica follows")


@pytest.mark.parametrize("service", [Redis, Valkey])
def test_what_is_repeated_by_another_connection_is_confirmed_too(service: type[Redis]) -> None:
    """Since Redis 7.2 ``WAIT`` asks for the last write of its own connection, so a call that writes nothing is at once
    confirmed."""
    with contextlib.ExitStack() as running:
        master, replica = running.enter_context(replicated(service))
        changes = confirmed_changes(master)
        replica.pause()
        try:
            for change in changes:
                for _ in range(2):
                    with careful(master) as transport, pytest.raises(TransportUnavailable, match="0 of 1 replicas"):
                        change(transport)
        finally:
            replica.resume()
        with careful(master) as transport:
            answers = [persist(partial(change, transport)) for change in changes]
        assert answers == [{0: 1}, set(), None, None, 1, None, None, None]


def careful(master: Redis) -> contextlib.closing[RedisStreamsTransport]:
    return contextlib.closing(RedisStreamsTransport(master.url, wait_replicas=1, wait_timeout=0.1))


def confirmed_changes(master: Redis) -> list[Callable[[RedisStreamsTransport], object]]:
    """Changes that replicas must confirm, each for a transport."""
    with careful(master) as transport:
        for topic in ("topic", "emptied"):
            persist(partial(transport.create_topic, topic, 2))
        persist(partial(transport.send, "topic", {0: [b"confirmed"]}, once=Once(uuid.uuid4().hex, 1)))
        persist(lambda: transport.show("emptied", 0, to_producers=False, to_consumers=False, unordered=True))
        persist(lambda: transport.acquire("retired", "topic", 1, "one", 60))
        transport.retire_group("retired", "topic")
        epoch = persist(lambda: transport.acquire("group", "topic", 0, "one", 60)).epoch
        persist(lambda: transport.set_retention("topic", 60))
        persist(lambda: transport.pause_group("group", "topic"))
    once = Once(uuid.uuid4().hex, 1)
    return [
        lambda queue: queue.send("topic", {0: [b"not confirmed"]}, once=once),
        lambda queue: queue.commit("group", "topic", {0: Commit(epoch, 1)}),
        lambda queue: queue.bury("group", "topic", "one", [(0, 5)]),
        lambda queue: queue.set_offset("retired", "topic", 1, 0),
        lambda queue: queue.create_topic("new", 1),
        lambda queue: queue.set_retention("topic", None),
        lambda queue: queue.pause_group("group", "topic", paused=False),
        lambda queue: queue.delete_queue("emptied", 0),
    ]


@pytest.mark.parametrize("service", [Redis, Valkey])
def test_nothing_is_passed_over_if_the_first_master_takes_over_again(service: type[Redis]) -> None:
    with contextlib.ExitStack() as running:
        first, second = running.enter_context(replicated(service))
        of_first, of_second = (
            running.enter_context(contextlib.closing(RedisStreamsTransport(server.url, timeout=DEADLINE)))
            for server in (first, second)
        )
        of_first.create_topic("topic", 1)
        timeline = of_first.timelines("topic")
        epoch = of_first.acquire("group", "topic", 0, "one", 600).epoch
        wait_for(lambda: says(second, "EXISTS", Keys("enode").claim("topic", 0, "group")), "the replica has the lease")
        ask(second, "REPLICAOF", "NO", "ONE")
        of_first.send("topic", {0: [b"lost"]})
        of_second.send("topic", {0: [b"kept"]})
        follow(first, second)
        ask(first, "REPLICAOF", "NO", "ONE")
        assert messages(of_first, "topic", 0) == [(0, b"kept")]
        assert persist(lambda: of_first.commit("group", "topic", {0: Commit(epoch, 1)})) == {0}
        assert of_first.renew("group", "topic", "one", {0: epoch}, 600) == {0}
        assert of_first.timelines("topic") != timeline
