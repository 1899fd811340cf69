"""Event workers drain, and hand queues over to one another."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Mapping, Sequence

import pytest

from enode_django.equeue.consumer.queue_consumer import PulledMessages
from enode_django.equeue.transport import Transport
from enode_django.eventstore.memory import MemoryEventStore
from enode_django.eventstore.shard_map import ShardMap
from enode_django.eventstore.sharding import ShardedEventStore
from enode_django.exceptions import PartlyUnavailable, QueueHeld, StoreUnavailable, TransportUnavailable
from tests.unit.processors.event_workers import (
    CONF,
    QUEUES,
    SOON,
    DividedByHand,
    Worker,
    committed,
    prepared,
    running,
    send,
    wait_for,
)


def can_be_had(transport: Transport, name: str) -> bool:
    leases = [transport.acquire(name, CONF.SUBSCRIBERS.TOPIC, queue, "test", 1) for queue in range(QUEUES)]
    return all(lease.previous_owner is None for lease in leases)


def test_a_drain_finishes_the_batch_in_hand_and_gives_the_queues_back(transport: DividedByHand) -> None:
    worker = Worker(transport)
    begun, go_on = threading.Event(), threading.Event()

    def hold_up() -> None:
        begun.set()
        go_on.wait(SOON)

    worker.notebooks["a"].before = hold_up
    send(transport, b"1")
    worker.start(0, 1)
    assert begun.wait(SOON)
    threading.Timer(0.05, go_on.set).start()
    assert worker.pipeline.drain(SOON)
    worker.pipeline.close(SOON)
    assert worker.notebooks["a"].bodies == [b"1"]
    assert committed(transport, "a") == 1
    assert can_be_had(transport, "a")
    assert can_be_had(transport, "b")


def test_a_drain_releases_the_queues_of_one_subscriber_while_another_is_busy(transport: DividedByHand) -> None:
    worker = Worker(transport)
    begun, go_on = threading.Event(), threading.Event()

    def hold_up() -> None:
        begun.set()
        go_on.wait(3 * SOON)

    worker.notebooks["a"].before = hold_up
    send(transport, b"1")
    worker.start(0, 1)
    worker.wait_bodies("b", b"1")
    assert begun.wait(SOON)
    drain = threading.Thread(target=worker.pipeline.drain, args=(3 * SOON,))
    drain.start()

    def is_free() -> bool:
        with contextlib.suppress(QueueHeld):
            return can_be_had(transport, "b")
        return False

    try:
        wait_for(is_free, "b has given its queues up")
    finally:
        go_on.set()
        drain.join(3 * SOON)
        worker.pipeline.close(SOON)


def test_a_drain_leaves_in_the_queue_what_is_to_be_tried_again(transport: DividedByHand) -> None:
    worker = Worker(transport)
    send(transport, b"1", b"bad", b"2")
    worker.start(0)
    worker.wait_bodies("a", b"1", b"bad", b"2")
    worker.wait_bodies("b", b"1", b"bad", b"2")
    assert worker.pipeline.drain(SOON)
    worker.pipeline.close(SOON)
    assert committed(transport, "a") == 1
    with running(Worker(transport, "successor"), 0) as successor:
        successor.wait_bodies("a", b"bad", b"2")


def test_a_drain_that_takes_too_long_says_so_and_what_is_left_comes_again(transport: DividedByHand) -> None:
    worker = Worker(transport)
    begun, go_on = threading.Event(), threading.Event()

    def hang() -> None:
        begun.set()
        go_on.wait(SOON)

    worker.notebooks["a"].before = hang
    send(transport, b"1")
    worker.start(0)
    assert begun.wait(SOON)
    assert not worker.pipeline.drain(0.01)
    assert committed(transport, "a") == 0
    with running(Worker(transport, "successor"), 0) as successor:
        successor.wait_bodies("a", b"1")
    go_on.set()
    worker.pipeline.close(SOON)


def test_a_drain_while_a_database_is_away_ends_its_threads_and_what_is_left_comes_again(
    transport: DividedByHand,
) -> None:
    worker = Worker(transport)
    begun = threading.Event()

    def cannot() -> None:
        begun.set()
        raise StoreUnavailable("gone")

    for notebook in worker.notebooks.values():
        notebook.before = lambda: worker.persist(cannot)
    send(transport, b"1")
    worker.start(0)
    assert begun.wait(SOON)
    assert not worker.pipeline.drain(0.01)
    assert not any(thread.is_alive() for thread in worker.pipeline._threads)
    with running(Worker(transport, "successor"), 0) as successor:
        successor.wait_bodies("a", b"1")


class CannotRelease(DividedByHand):
    def release(self, group: str, topic: str, owner: str, epochs: Mapping[int, int]) -> None:
        raise TransportUnavailable("gone")


def test_worker_that_cannot_give_its_queues_back_says_that_it_has_not_drained() -> None:
    worker = Worker(prepared(CannotRelease()))
    worker.start(0)
    assert not worker.pipeline.drain(0.1)


class CannotReleaseForA(DividedByHand):
    def release(self, group: str, topic: str, owner: str, epochs: Mapping[int, int]) -> None:
        if group == "a":
            raise PartlyUnavailable("a server is away")
        super().release(group, topic, owner, epochs)


def test_the_queues_of_one_subscriber_are_given_back_while_those_of_another_cannot_be() -> None:
    transport = prepared(CannotReleaseForA())
    worker = Worker(transport)
    begun = threading.Event()

    def cannot() -> None:
        begun.set()
        raise StoreUnavailable("gone")

    worker.notebooks["b"].before = lambda: worker.persist(cannot)  # else its thread gives them back before it ends
    send(transport, b"1")
    worker.start(0)
    assert begun.wait(SOON)
    assert not worker.pipeline.drain(0.01)
    worker.pipeline.close(SOON)
    assert can_be_had(transport, "b")


# -- handing over -------------------------------------------------------------------------------------------------


def test_a_queue_that_is_assigned_no_more_is_finished_and_released(transport: DividedByHand, worker: Worker) -> None:
    send(transport, b"1", queue=1)
    worker.wait_bodies("a", b"1")
    worker.wait_bodies("b", b"1")  # what "b" has not pulled yet would be the other worker's
    worker.give(0)
    with running(Worker(transport, "other"), 1) as other:
        wait_for(lambda: other.owned == {1}, "the other owns the queue, for both subscribers")
        send(transport, b"2", queue=1)
        other.wait_bodies("a", b"2")
        other.wait_bodies("b", b"2")
    assert worker.notebooks["a"].bodies == [b"1"]


def test_a_queue_that_is_assigned_no_more_is_released_between_portions_of_a_batch(transport: DividedByHand) -> None:
    worker, other = Worker(transport), Worker(transport, "other")
    send(transport, b"1", queue=0)
    send(transport, b"2", queue=1)
    taken = threading.Event()

    def hand_over() -> None:
        worker.give(0)
        wait_for(lambda: worker.hand_over["a"]() or taken.is_set(), "the other has the queue in the middle of a batch")

    def take(pulled: Sequence[PulledMessages]) -> None:
        hand_over()
        for messages in pulled:
            messages.window.finish_many(messages.offsets)

    worker.notebooks["a"].handle = take  # type: ignore[method-assign]
    other.notebooks["a"].before = taken.set
    with running(worker, 0, 1), running(other, 1):
        wait_for(taken.is_set, "the other handles what was left")
        wait_for(lambda: committed(transport, "a") == 2, "both queues are committed")
    assert other.notebooks["a"].bodies == [b"2"]


def test_a_follower_is_told_at_what_workers_died(transport: DividedByHand) -> None:
    transport.bury("a", CONF.SUBSCRIBERS.TOPIC, "dead", [(1, 7)])
    with running(Worker(transport), 0, 1) as worker:
        wait_for(lambda: worker.owned == {0, 1}, "the queues are owned")
        wait_for(lambda: worker.notebooks["a"].deaths == {0: {}, 1: {7: 1}}, "a knows of the death")
        assert worker.notebooks["b"].deaths == {0: {}, 1: {}}


class NotesSessions(MemoryEventStore):
    def __init__(self) -> None:
        super().__init__()
        self.ended: list[str] = []
        self.failures = 1

    def end_sessions(self, owner: str) -> int:
        if self.failures:
            self.failures -= 1
            raise StoreUnavailable("gone")
        self.ended.append(owner)
        return 0


def test_a_queue_is_given_to_the_next_owner_with_what_is_to_be_tried_again(
    transport: DividedByHand, worker: Worker
) -> None:
    send(transport, b"one", b"bad", b"two")
    worker.wait_bodies("a", b"one", b"bad", b"two")
    worker.give(1)
    with running(Worker(transport, "other"), 0) as other:
        other.wait_bodies("a", b"bad", b"two")
        assert len(worker.notebooks["a"].aside) == 1


@pytest.mark.django_db(transaction=True)
def test_who_takes_a_queue_over_does_not_wait_for_one_shard_of_several(transport: DividedByHand) -> None:
    send(transport, b"1")
    transport.acquire("a", CONF.SUBSCRIBERS.TOPIC, 0, "dead", 60)
    here, away = NotesSessions(), NotesSessions()
    here.failures, away.failures = 0, 1_000_000
    worker = Worker(transport, store=ShardedEventStore([here, away], ShardMap([])))
    transport.bury("a", CONF.SUBSCRIBERS.TOPIC, "dead")
    worker.start(0, 1)
    worker.wait_bodies("a", b"1")
    assert (here.ended, away.ended) == (["dead"], [])
    assert worker.pipeline.drain(SOON)
    worker.pipeline.close(SOON)


@pytest.mark.django_db(transaction=True)
def test_who_takes_a_queue_over_ends_the_sessions_of_its_owner_before_it_handles_anything(
    transport: DividedByHand,
) -> None:
    send(transport, b"1")
    for queue in range(QUEUES):
        transport.acquire("a", CONF.SUBSCRIBERS.TOPIC, queue, "dead", 60)
    store = NotesSessions()
    worker = Worker(transport, store=store)
    ended_before: list[Sequence[str]] = []
    worker.notebooks["a"].before = lambda: ended_before.append(list(store.ended))
    transport.bury("a", CONF.SUBSCRIBERS.TOPIC, "dead")
    worker.start(0, 1)
    worker.wait_bodies("a", b"1")
    assert ended_before == [["dead"]], "once for all queues"
    assert worker.pipeline.drain(SOON)
    worker.pipeline.close(SOON)
