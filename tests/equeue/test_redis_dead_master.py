"""One of the three masters of a Redis Cluster is dead or paused: the queues of the others go on.

The cluster is configured to go on without some of its slots, and the dead master has no replica.
"""

from __future__ import annotations

import contextlib
import itertools
import time
import uuid
from collections.abc import Callable, Iterator, Mapping

import pytest

from chaos.redis_servers import RedisCluster, ask
from enode_django.equeue.consumer.queue_consumer import QueueConsumer
from enode_django.equeue.messages import Commit
from enode_django.equeue.producer import Producer
from enode_django.equeue.redis.keys import Keys
from enode_django.equeue.subscribing import Limits
from enode_django.equeue.transports.redis_streams import RedisStreamsTransport
from enode_django.exceptions import PartlyUnavailable, TransportUnavailable
from enode_django.testing.transport_lease_contract import messages
from sample_project.embedded_servers import Redis
from tests.equeue.consuming import Handled, consuming
from tests.equeue.redis_servers import persist, wait_for

QUEUES = 12
DEADLINE = 60.0
TIMEOUT = 15.0
"""Seconds for an answer: more than a living server needs on a busy machine."""
KILLED, STANDING_STILL = "killed", "standing still"
KEYS = Keys("enode")


@pytest.fixture(scope="module")
def cluster() -> Iterator[RedisCluster]:
    # The long timeout keeps masters on a busy machine from believing that a living one is dead.
    settings = {"cluster-require-full-coverage": "no", "cluster-node-timeout": "60000", "appendfsync": "always"}
    with contextlib.closing(RedisCluster(3, more=settings)) as cluster:
        yield cluster


@pytest.fixture
def transport(cluster: RedisCluster) -> Iterator[RedisStreamsTransport]:
    with contextlib.closing(RedisStreamsTransport(cluster.url, timeout=TIMEOUT)) as transport:
        yield transport


@pytest.fixture
def dead(cluster: RedisCluster) -> Redis:
    return cluster.servers[1]


@pytest.fixture
def topic(cluster: RedisCluster, transport: RedisStreamsTransport, dead: Redis) -> str:
    """A topic whose own keys are on a living master. Its queues are on all masters."""
    names = (f"topic-{uuid.uuid4().hex}" for _ in itertools.count())
    topic = next(name for name in names if cluster.master_of(KEYS.topic(name)) is not dead)
    persist(lambda: transport.create_topic(topic, QUEUES))
    return topic


@pytest.fixture
def lost(cluster: RedisCluster, topic: str, dead: Redis) -> set[int]:
    """The queues of the master that dies."""
    return {queue for queue in range(QUEUES) if cluster.master_of(KEYS.log(topic, queue)) is dead}


@pytest.fixture
def dying(request: pytest.FixtureRequest, cluster: RedisCluster, dead: Redis) -> Iterator[Callable[[], None]]:
    """A function that kills the master, or pauses it if the test says so. It is revived when the test ends."""
    yield dead.pause if getattr(request, "param", "") == STANDING_STILL else dead.kill
    revive(cluster, dead)


def revive(cluster: RedisCluster, dead: Redis) -> None:
    dead.resume()
    dead.start()
    wait_for(cluster.is_whole, "the cluster is whole")


def partly(call: Callable[[], object]) -> Mapping[int, object]:
    with pytest.raises(PartlyUnavailable) as failed:
        call()
    return failed.value.answers


@pytest.mark.parametrize("dying", [KILLED, STANDING_STILL], indirect=True)
def test_calls_about_all_queues_are_made_at_the_masters_that_live(
    transport: RedisStreamsTransport, topic: str, lost: set[int], dying: Callable[[], None]
) -> None:
    everything = range(QUEUES)
    living = set(everything) - lost
    epochs = {queue: transport.acquire("group", topic, queue, "me", 60).epoch for queue in everything}
    transport.send(topic, {queue: [b"a"] for queue in everything})
    dying()
    assert partly(lambda: transport.send(topic, {queue: [b"b"] for queue in everything})) == dict.fromkeys(living, 1)
    assert partly(lambda: transport.renew("group", topic, "me", epochs, 60)) == dict.fromkeys(living, True)
    commits = {queue: Commit(epoch, 1) for queue, epoch in epochs.items()}
    assert partly(lambda: transport.commit("group", topic, commits)) == dict.fromkeys(living, True)
    pulled = transport.pull(topic, dict.fromkeys(everything, 0), limit=9, wait=0)
    assert {batch.queue: list(batch.bodies) for batch in pulled} == {queue: [b"a", b"b"] for queue in living}
    pulled = transport.pull(topic, dict.fromkeys(everything, 1), limit=9, wait=DEADLINE)
    assert {batch.queue for batch in pulled} <= living
    assert transport.pull(topic, dict.fromkeys(everything, 2), limit=9, wait=0.1) == []
    assert set(partly(lambda: transport.release("group", topic, "me", epochs))) == living
    with pytest.raises(PartlyUnavailable):
        transport.acquire("group", topic, min(lost), "you", 60)
    assert transport.acquire("group", topic, min(living), "you", 60).committed == 1


@pytest.mark.parametrize("dying", [STANDING_STILL], indirect=True)
def test_nobody_waits_again_for_a_master_that_stands_still(
    cluster: RedisCluster, topic: str, lost: set[int], dying: Callable[[], None], dead: Redis
) -> None:
    timeout, calls = 1.0, round(2 * DEADLINE)
    with contextlib.closing(RedisStreamsTransport(cluster.url, timeout=timeout)) as transport:
        transport.send(topic, {queue: [b"x"] for queue in range(QUEUES)})
        dying()
        began = time.monotonic()
        for _ in range(calls):
            with pytest.raises(PartlyUnavailable):
                transport.send(topic, {queue: [b"x"] for queue in range(QUEUES)})
        assert time.monotonic() - began < DEADLINE, f"each of {calls} sends would wait {timeout} s"
        revive(cluster, dead)
        persist(lambda: transport.send(topic, {min(lost): [b"x"]}))


def test_what_living_masters_have_stored_is_not_sent_again(
    cluster: RedisCluster,
    transport: RedisStreamsTransport,
    topic: str,
    lost: set[int],
    dead: Redis,
    dying: Callable[[], None],
) -> None:
    producer = Producer(transport, selector=lambda key, count: int(key) % count)
    bodies = [(str(number % QUEUES), b"%d" % number) for number in range(5 * QUEUES)]
    producer.route(topic)
    dying()
    tries = 0

    def again(call: Callable[[], None], /) -> None:
        nonlocal tries
        for _ in range(3):
            with pytest.raises(TransportUnavailable):
                call()
            tries += 1
        revive(cluster, dead)
        persist(call)

    results = producer.send_batch(topic, bodies, persist=again)
    assert tries == 3
    assert [result.queue for result in results] == [number % QUEUES for number in range(5 * QUEUES)]
    for queue in set(range(QUEUES)) - lost:
        assert messages(transport, topic, queue) == [(place, b"%d" % (queue + place * QUEUES)) for place in range(5)], (
            "once"
        )
    stored = {queue: dict(messages(transport, topic, queue)) for queue in range(QUEUES)}
    assert [stored[result.queue][result.offset] for result in results] == [body for _, body in bodies]


def test_a_producer_goes_on_though_the_master_of_its_topic_is_dead(
    cluster: RedisCluster, transport: RedisStreamsTransport, dead: Redis, dying: Callable[[], None]
) -> None:
    names = (f"topic-{uuid.uuid4().hex}" for _ in itertools.count())
    topic = next(name for name in names if cluster.master_of(KEYS.topic(name)) is dead)
    persist(lambda: transport.create_topic(topic, QUEUES))
    alive = next(queue for queue in range(QUEUES) if cluster.master_of(KEYS.log(topic, queue)) is not dead)
    producer = Producer(transport, selector=lambda key, count: alive, refresh_after=0.0)
    producer.send(topic, "key", b"a")
    dying()
    assert producer.send(topic, "key", b"b").offset == 1


def test_leases_and_offsets_of_living_masters_are_kept_and_all_queues_are_taken_again(
    cluster: RedisCluster,
    transport: RedisStreamsTransport,
    topic: str,
    lost: set[int],
    dead: Redis,
    dying: Callable[[], None],
) -> None:
    living = set(range(QUEUES)) - lost
    consumer = QueueConsumer(transport, group="group", topic=topic, owner="me", lease=60)
    consumer.assign(living)
    consumer.acquire_missing()
    deadlines = {window.queue: window.deadline for window in consumer.open_windows}
    dying()
    consumer.assign(range(QUEUES))
    assert consumer.acquire_missing() == [], "it goes on with what it has"
    transport.send(topic, {queue: [b"a"] for queue in living})
    finish_all(consumer, len(living))
    consumer.commit()
    consumer.renew()
    assert all(window.deadline > deadlines[window.queue] for window in consumer.open_windows)
    assert {window.queue for window in consumer.open_windows if window.committed == 1} == living
    revive(cluster, dead)
    wait_for(lambda: consumer.acquire_missing() or consumer.owned == set(range(QUEUES)), "the others are taken")
    wait_for(lambda: consumer.acquire_missing() or consumer.owned == set(range(QUEUES)), "all are taken")


def test_queues_are_given_back_though_one_master_is_dead(
    transport: RedisStreamsTransport, topic: str, lost: set[int], dying: Callable[[], None]
) -> None:
    consumer = QueueConsumer(transport, group="group", topic=topic, owner="me", lease=60)
    consumer.assign(range(QUEUES))
    consumer.acquire_missing()
    transport.send(topic, {queue: [b"a"] for queue in range(QUEUES)})
    finish_all(consumer, QUEUES)
    dying()
    consumer.assign(lost)
    consumer.acquire_missing()
    consumer.release_drained()
    assert transport.acquire("group", topic, min(set(range(QUEUES)) - lost), "you", 60).committed == 1
    with pytest.raises(TransportUnavailable):
        consumer.commit()
    with pytest.raises(TransportUnavailable):
        consumer.abandon()
    assert consumer.is_idle


@pytest.mark.parametrize("dying", [KILLED, STANDING_STILL], indirect=True)
def test_a_consumer_handles_the_queues_of_living_masters_and_the_others_when_theirs_is_back(
    cluster: RedisCluster,
    transport: RedisStreamsTransport,
    topic: str,
    lost: set[int],
    dead: Redis,
    dying: Callable[[], None],
) -> None:
    handled = Handled()
    living = sorted(set(range(QUEUES)) - lost)
    group = next(
        name
        for name in map(str, itertools.count())
        if cluster.master_of(KEYS.topic(f"retry.{name}")) is not dead  # the topic does not exist yet
    )
    producer = Producer(transport, selector=lambda key, count: int(key))
    limits = Limits(pull_wait=1.0, commit_interval=0.05, lease=60.0)
    with consuming(transport, handled, topics=[topic], group=group, limits=limits):
        producer.send_batch(topic, [(str(queue), b"before") for queue in range(QUEUES)])
        wait_for(lambda: len(handled.messages) == QUEUES, "all are handled")
        dying()
        for number in range(20):
            producer.send_batch(topic, [(str(queue), b"%d" % number) for queue in living])
        wait_for(lambda: len(handled.messages) == QUEUES + 20 * len(living), "those of the living ones are handled")
        claims = [KEYS.claim(topic, queue, group) for queue in living]
        of_masters = [(cluster.master_of(key), key) for key in claims]
        wait_for(lambda: all(ask(at, "HGET", key, "offset") == "21" for at, key in of_masters), "and committed")
        revive(cluster, dead)
        for queue in lost:
            persist(lambda queue=queue: producer.send(topic, str(queue), b"after"))  # type: ignore[misc]
        wait_for(lambda: {m.queue for m in handled.messages if m.body == b"after"} == lost, "the others go on")
    assert handled.bodies.count("before") >= QUEUES
    for queue in living:
        own = [message.body for message in handled.messages if message.queue == queue]
        assert own == [b"before", *(b"%d" % number for number in range(20))], "once, in order"


def test_consumed_messages_of_living_masters_are_deleted(
    cluster: RedisCluster, transport: RedisStreamsTransport, topic: str, lost: set[int], dying: Callable[[], None]
) -> None:
    queue = min(set(range(QUEUES)) - lost)
    log = KEYS.log(topic, queue)
    master = cluster.master_of(log)
    lease = transport.acquire("group", topic, queue, "me", 60)
    transport.send(topic, {queue: [b"x"] * 500})
    transport.commit("group", topic, {queue: Commit(lease.epoch, 500)})
    dying()
    with pytest.raises(PartlyUnavailable):
        transport.trim(topic)
    assert ask(master, "XLEN", log) < 500


def test_answers_are_delivered_at_living_masters_once(
    cluster: RedisCluster, transport: RedisStreamsTransport, dead: Redis, dying: Callable[[], None]
) -> None:
    inboxes = [transport.open_inbox() for _ in range(QUEUES)]
    places = [place for place, inbox in enumerate(inboxes) if cluster.master_of(KEYS.inbox(inbox.address)) is not dead]
    replies = [(inbox.address, b"%d" % place) for place, inbox in enumerate(inboxes)]
    if len(places) == QUEUES:
        pytest.skip("no inbox lies on the master that dies")
    dying()
    assert set(partly(lambda: transport.reply(replies))) == set(places)
    for place in places:
        assert inboxes[place].receive(0) == [b"%d" % place]


def finish_all(consumer: QueueConsumer, count: int) -> None:
    deadline = time.monotonic() + DEADLINE
    while count > 0:
        assert time.monotonic() < deadline
        for pulled in consumer.pull(1_000, 0.1):
            pulled.window.finish_many(pulled.offsets)
            count -= len(pulled.offsets)


def test_a_dead_worker_is_buried_where_masters_live_and_once_when_it_is_tried_again(
    cluster: RedisCluster,
    transport: RedisStreamsTransport,
    topic: str,
    lost: set[int],
    dying: Callable[[], None],
    dead: Redis,
) -> None:
    everything = range(QUEUES)
    living = set(everything) - lost
    for queue in everything:
        transport.acquire("group", topic, queue, "the dead", 600)
    deaths = [(queue, 0) for queue in everything]
    dying()
    with pytest.raises(PartlyUnavailable):
        transport.bury("group", topic, "the dead", deaths)
    for queue in living:
        assert transport.acquire("group", topic, queue, "the next", 600).deaths == {0: 1}
    revive(cluster, dead)
    persist(lambda: transport.bury("group", topic, "the dead", deaths))
    for queue in everything:
        assert transport.acquire("group", topic, queue, "the next", 600).deaths == {0: 1}


def test_a_worker_that_ends_commits_and_gives_back_the_queues_of_living_masters(
    transport: RedisStreamsTransport, topic: str, lost: set[int], dying: Callable[[], None]
) -> None:
    consumer = QueueConsumer(transport, group="group", topic=topic, owner="me", lease=600)
    consumer.assign(range(QUEUES))
    consumer.acquire_missing()
    transport.send(topic, {queue: [b"a"] for queue in range(QUEUES)})
    finish_all(consumer, QUEUES)
    dying()
    with pytest.raises(PartlyUnavailable):
        consumer.abandon()
    for queue in set(range(QUEUES)) - lost:
        assert transport.acquire("group", topic, queue, "you", 60).committed == 1
