from __future__ import annotations

import os
import threading
import time
import uuid
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from enode_django.equeue.messages import Commit, Receipt
from enode_django.equeue.records import decode_records
from enode_django.equeue.transport import AT_ONCE
from enode_django.equeue.transports.broker import BrokerTransport
from enode_django.equeue.transports.broker_address import address_of
from enode_django.equeue.transports.broker_batches import BATCH_BYTES, BATCH_MESSAGES, batches_of, steps_of
from enode_django.equeue.transports.broker_connection import Pool, Wakes
from enode_django.equeue.transports.broker_rests import KEPT_BYTES, Rests
from enode_django.exceptions import TransportUnavailable
from enode_django.processors.observing import figures_of
from enode_django.testing.transport_lease_contract import messages
from tests.equeue.brokers import DEADLINE, RunningBroker
from tests.equeue.consuming import eventually
from tests.equeue.lossy_proxy import LossyProxy


@pytest.fixture
def topic(transport: BrokerTransport) -> str:
    name = f"topic-{uuid.uuid4().hex}"
    transport.create_topic(name, 2)
    return name


# Messages beyond those that were asked for


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 2), st.integers(1, 5)), max_size=6), st.integers(0, 12), st.integers(1, 7))
def test_cut_batches_come_back_as_the_same_messages(parts: list[tuple[int, int]], offset: int, limit: int) -> None:
    stored: dict[int, bytes] = {}
    batches: list[tuple[int, list[bytes]]] = []
    at = 0
    for lost, count in parts:  # messages between two batches may have been deleted, or be damaged
        at += lost
        bodies = [b"%d" % number for number in range(at, at + count)]
        stored |= dict(enumerate(bodies, at))
        batches.append((at, bodies))
        at += count
    batches = [batch for batch in batches if batch[0] + len(batch[1]) > offset]
    rests, found = Rests(), {}
    batch = rests.cut("t", 0, offset, limit, batches, run=0)
    while batch is not None and batch.bodies:
        assert len(batch.bodies) <= limit
        found |= dict(zip(batch.offsets, batch.bodies, strict=True))
        batch = rests.take("t", 0, batch.offsets[-1] + 1, limit)
    assert found == {number: body for number, body in stored.items() if number >= offset}
    assert rests._size == 0


def test_rests_of_an_earlier_run_are_forgotten() -> None:
    rests = Rests()
    rests.of_run(1)
    rests.cut("t", 0, 0, 1, [(0, [b"a", b"b"])], run=1)
    rests.of_run(2)
    assert rests.take("t", 0, 1, 1) is None


def test_rests_of_an_earlier_run_are_forgotten_after_a_send_to_the_next(own_broker: RunningBroker) -> None:
    with closing(own_broker.transport()) as transport, closing(own_broker.transport()) as other:
        transport.create_topic("t", 1)
        transport.send("t", {0: [b"a", b"lost"]})
        assert [batch.bodies for batch in transport.pull("t", {0: 0}, limit=1)] == [[b"a"]]
        for _ in ("first run", "second run"):  # runs are counted, and the lost directory was in its first one
            own_broker.kill()
            own_broker.start(directory=str(own_broker.directory.with_name("restored")))
        other.create_topic("t", 1)
        assert transport.send("t", {0: [b"a", b"new"]}) == {0: 0}
        assert [batch.bodies for batch in transport.pull("t", {0: 1}, limit=1)] == [[b"new"]]


def test_rest_is_not_kept_if_another_thread_has_met_the_next_run_since_the_pull(
    transport: BrokerTransport, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    transport.send(topic, {0: [b"a", b"b"]})
    transport.end_offsets(topic)
    pool, rests = transport._pool, transport._rests
    call = pool.call

    def call_and_meet(*arguments: Any, **options: Any) -> Any:
        answer = call(*arguments, **options)
        rests.of_run(1_000)  # as another thread does when it calls a broker that was started again
        return answer

    monkeypatch.setattr(pool, "call", call_and_meet)
    (batch,) = transport.pull(topic, {0: 0}, limit=1)
    assert batch.bodies == [b"a"]
    assert rests.take(topic, 0, 1, 1) is None


def test_rests_take_no_more_than_their_share_of_memory() -> None:
    rests = Rests()
    body = b"x" * (KEPT_BYTES // 4)
    for queue in range(6):
        rests.cut("t", queue, 0, 1, [(0, [b"first", body])], run=0)
    kept = [queue for queue in range(6) if rests.take("t", queue, 1, 1)]
    assert kept == [2, 3, 4, 5]


def test_a_look_at_one_message_keeps_none_and_takes_none_of_those_kept(transport: BrokerTransport, topic: str) -> None:
    transport.send(topic, {0: [b"a", b"b", b"c"]})
    (looked,) = transport.look(topic, {0: 0})
    assert (looked.bodies, dict(transport._rests._rests), transport._rests._size) == ([b"a"], {}, 0)
    (pulled,) = transport.pull(topic, {0: 0}, limit=1)
    kept = dict(transport._rests._rests)
    (looked,) = transport.look(topic, {0: 1})
    assert (pulled.bodies, looked.bodies, len(kept)) == ([b"a"], [b"b"], 1)
    assert dict(transport._rests._rests) == kept


@pytest.mark.parametrize("wait", [0.0, AT_ONCE])
def test_pulls_of_single_messages_fetch_their_batch_with_one_request(
    transport: BrokerTransport, topic: str, wait: float
) -> None:
    bodies = [b"%d" % number for number in range(30)]
    transport.send(topic, {0: bodies})
    before = transport.status()["ring_reads"]
    found = [transport.pull(topic, {0: at}, limit=1, wait=wait)[0].bodies for at in range(len(bodies))]
    assert found == [[body] for body in bodies]
    assert transport.status()["ring_reads"] - before == 1  # each request reads the batch once


def test_small_pulls_do_not_fetch_a_batch_again_and_again(
    broker: RunningBroker, transport: BrokerTransport, topic: str
) -> None:
    bodies = [os.urandom(1_000) for _ in range(BATCH_MESSAGES)]
    transport.send(topic, {0: bodies})
    with LossyProxy(broker.location) as proxy:
        pulling = BrokerTransport(proxy.location)
        found: list[bytes] = []
        while len(found) < len(bodies):
            (batch,) = pulling.pull(topic, {0: len(found)}, limit=7, wait=0)
            found += batch.bodies
        assert found == bodies
        assert proxy.passed["down"] < 2 * 1_000 * len(bodies)
        pulling.close()


def test_rest_of_one_queue_does_not_keep_the_others_from_being_pulled(transport: BrokerTransport, topic: str) -> None:
    transport.send(topic, {0: [b"a"] * 3})
    transport.pull(topic, {0: 0, 1: 0}, limit=2, wait=0)
    transport.send(topic, {1: [b"b"]})
    assert {batch.queue for batch in transport.pull(topic, {0: 2, 1: 0}, limit=2, wait=0)} == {0, 1}


def test_rests_wait_for_no_index_of_another_queue(
    transport: BrokerTransport, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pull of 0 s waits in the broker while a damaged index is rebuilt, and may outlast the client's timeout."""
    transport.send(topic, {0: [b"a"] * 3})
    transport.pull(topic, {0: 0, 1: 0}, limit=2, wait=0)
    call, waits = transport._pool.call, list[float]()

    def noting(name: str, arguments: Any, *more: Any, **options: Any) -> Any:
        waits.append(arguments[3])
        return call(name, arguments, *more, **options)

    monkeypatch.setattr(transport._pool, "call", noting)
    for wait in (0.0, DEADLINE):
        (batch,) = transport.pull(topic, {0: 2, 1: 0}, limit=1, wait=wait)
        assert batch.bodies == [b"a"]
        transport._rests.cut(topic, 0, 1, 1, [(1, [b"a", b"a"])], run=transport._rests.run)
    assert waits == [AT_ONCE, AT_ONCE]


# Batches of a send


@settings(deadline=None, max_examples=15)
@given(st.lists(st.integers(0, 3), max_size=6))
def test_batches_are_bounded_and_hold_all(sizes: list[int]) -> None:
    bodies = [b"x" * (size * BATCH_BYTES // 2) for size in sizes]
    found: list[bytes] = []
    for _, count, body in batches_of({0: bodies}):
        records = decode_records(body)
        assert len(records) == count == 1 or sum(map(len, records)) <= BATCH_BYTES
        found += records
    assert found == bodies


def test_batches_have_a_limited_number_of_messages() -> None:
    assert [count for _, count, _ in batches_of({3: [b""] * (2 * BATCH_MESSAGES + 1)})] == [BATCH_MESSAGES] * 2 + [1]


@settings(deadline=None)
@given(st.dictionaries(st.integers(0, 3), st.integers(0, 25), max_size=3))
def test_commits_of_many_receipts_are_made_in_steps(counts: dict[int, int]) -> None:
    commits = {
        queue: Commit(1, count + 5, [Receipt(at, b"") for at in range(count)], 9) for queue, count in counts.items()
    }
    receipts: dict[int, list[Receipt]] = {queue: [] for queue in counts}
    offsets: dict[int, int] = {}
    for step in steps_of(commits, 7):
        assert sum(len(commit.receipts) for commit in step.values()) <= 7
        for queue, commit in step.items():
            receipts[queue] += commit.receipts
            assert commit.offset > offsets.get(queue, 0)
            assert all(receipt.offset < commit.offset for receipt in commit.receipts)
            offsets[queue] = commit.offset
    assert receipts == {queue: list(commit.receipts) for queue, commit in commits.items()}
    assert offsets == {queue: commit.offset for queue, commit in commits.items()}


@settings(deadline=None)
@given(st.dictionaries(st.integers(0, 3), st.lists(st.integers(0, 9), max_size=12), max_size=3))
def test_commits_of_large_receipts_are_made_in_steps(sizes: dict[int, list[int]]) -> None:
    commits = {
        queue: Commit(1, 20, [Receipt(at, bytes(size)) for at, size in enumerate(some)], 20)
        for queue, some in sizes.items()
    }
    receipts: dict[int, list[Receipt]] = {queue: [] for queue in sizes}
    for step in steps_of(commits, 100, 5):
        taken = [receipt for commit in step.values() for receipt in commit.receipts]
        assert sum(receipt.size for receipt in taken) <= 5 or len([one for one in taken if one.size]) == 1
        for queue, commit in step.items():
            receipts[queue] += commit.receipts
            assert all(receipt.offset < commit.offset for receipt in commit.receipts)
    assert receipts == {queue: list(commit.receipts) for queue, commit in commits.items()}


# Threads and processes


def test_forked_child_has_connections_and_sends_of_its_own(transport: BrokerTransport, topic: str) -> None:
    transport.send(topic, {0: [b"parent 0"]})
    child = os.fork()
    if not child:  # pragma: no cover
        try:
            for number in range(20):
                transport.send(topic, {0: [b"child %d" % number]})
            os._exit(0)
        finally:
            os._exit(1)
    for number in range(1, 20):
        transport.send(topic, {0: [b"parent %d" % number]})
    assert os.waitpid(child, 0)[1] == 0
    stored = [body for _, body in messages(transport, topic, 0)]
    for name in (b"parent", b"child"):
        assert [body for body in stored if body.startswith(name)] == [b"%s %d" % (name, n) for n in range(20)]


def test_closing_ends_a_call_of_another_thread(broker: RunningBroker, topic: str) -> None:
    waiting, watching = broker.transport(), broker.transport()

    def pull() -> None:
        with pytest.raises(TransportUnavailable):
            waiting.pull(topic, {0: 0}, limit=1, wait=10 * DEADLINE)

    with ThreadPoolExecutor(1) as pool:
        pulling = pool.submit(pull)
        deadline = time.monotonic() + DEADLINE
        while watching.status()["waiting_pulls"] != 1:
            assert time.monotonic() < deadline
        waiting.close()
        pulling.result(DEADLINE)
    while watching.status()["waiting_pulls"]:
        assert time.monotonic() < deadline
    watching.close()


def test_the_broker_says_what_its_ring_holds_and_where_reads_came_from(tmp_path: Path) -> None:
    with RunningBroker(tmp_path / "data", ring_batches=2) as broker, closing(broker.transport()) as transport:
        transport.create_topic("topic", 1)
        for number in range(5):
            transport.send("topic", {0: [b"%d" % number]})
        assert [body for _, body in messages(transport, "topic", 0)] == [b"%d" % number for number in range(5)]
        status = transport.status()
        assert (status["ring_batches"], status["ring_reads"]) == (2, 2)
        assert status["ring_bytes"] > 0
        assert status["memory_reads"] + status["file_reads"] == 3
        reads = {"ring": 2, "memory": status["memory_reads"], "file": status["file_reads"]}
        assert figures_of(transport, ["topic"]) == {"backlog": {"topic": {}}, "broker_reads": reads}


def test_many_threads_share_a_transport(transport: BrokerTransport, topic: str) -> None:
    barrier = threading.Barrier(20)

    def send(number: int) -> Sequence[int]:
        barrier.wait()
        return [transport.send(topic, {1: [b"x"]})[1] for _ in range(20)]

    with ThreadPoolExecutor(20) as pool:
        offsets = [offset for found in pool.map(send, range(20)) for offset in found]
    assert sorted(offsets) == list(range(400))


def test_a_wake_ends_no_call_that_another_thread_makes_over_the_same_connection(own_broker: RunningBroker) -> None:
    wakes, pool = Wakes(), Pool(address_of(own_broker.location, None, None), DEADLINE)
    with closing(own_broker.transport()) as transport, closing(pool), ThreadPoolExecutor(1) as threads:
        transport.create_topic("topic", 1)
        pull = ("topic", {0: 0}, 1, DEADLINE)
        transport.send("topic", {0: [b"first"]})
        pool.call("pull", pull, within=wakes.waiting)  # the connection is idle again, and nobody has called `forget`
        pulling = threads.submit(pool.call, "pull", ("topic", {0: 1}, 1, DEADLINE), wait=DEADLINE)
        eventually(lambda: transport.status()["waiting_pulls"])
        wakes.wake(threading.get_ident())
        transport.send("topic", {0: [b"second"]})
        ((queue, batches, *_),) = pulling.result(DEADLINE)[0]
        assert (queue, [decode_records(body) for _, body in batches]) == (0, [[b"second"]])
