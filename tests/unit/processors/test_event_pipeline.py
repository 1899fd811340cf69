from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from datetime import UTC, datetime

import pytest

from enode_django.concurrency.backoff import Persist
from enode_django.conf import Conf
from enode_django.equeue.consumer import PulledMessages
from enode_django.equeue.messages import Membership, PulledBatch
from enode_django.equeue.offsets import OffsetWindow
from enode_django.equeue.transports.base import Transport
from enode_django.equeue.transports.memory import MemoryTransport
from enode_django.eventing.event_handlers import EventHandlerGroup
from enode_django.eventing.in_flight import InFlight
from enode_django.eventing.messages import encode_published
from enode_django.eventing.registry import subscribers
from enode_django.eventing.subscribers import Subscriber
from enode_django.eventstore.base import EventStore, StreamRecord
from enode_django.eventstore.memory import MemoryEventStore
from enode_django.eventstore.shard_map import ShardMap
from enode_django.eventstore.sharding import ShardedEventStore
from enode_django.exceptions import QueueHeld, StoreUnavailable, TransportUnavailable
from enode_django.processors.event_pipeline import EventPipeline, oldest_of
from enode_django.processors.statistics import Statistics

SOON = 60.0
QUEUES = 2
CONF = Conf(LEASE=1.2, COMMIT_INTERVAL=0.02)


class DividedByHand(MemoryTransport):
    """Gives each member the queues that a test says, and deletes nothing: what one subscriber has committed before
    another has begun would be gone for that one."""

    def __init__(self) -> None:
        super().__init__()
        self.given: dict[str, frozenset[int]] = {}

    def join(self, group: str, topic: str, member: str, session: float) -> Membership:
        return Membership(1, self.given.get(member, frozenset()), ())

    def trim(self, topic: str) -> None:
        pass


def wait_for(condition: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + SOON
    while not condition():
        assert time.monotonic() < deadline, f"waited in vain: {what}"
        time.sleep(0.002)


class Notebook:
    """A follower that notes what it gets. It sets aside what begins with ``bad``, and does what ``before`` says
    ahead of each batch."""

    def __init__(self) -> None:
        self.before: Callable[[], None] = lambda: None
        self.bodies: list[bytes] = []
        self.aside: list[tuple[PulledMessages, int]] = []
        self.ticks: list[frozenset[int]] = []
        self.handled = 0
        self.parked = 0
        self.next_retry: float | None = None
        self.deaths: dict[int, Mapping[int, int]] = {}

    @property
    def held(self) -> int:
        return len(self.aside)

    def held_in(self, window: OffsetWindow) -> int:
        return sum(messages.window is window for messages, _ in self.aside)

    def suspect(self, queue: int, deaths: Mapping[int, int]) -> None:
        self.deaths[queue] = deaths

    def handle(self, pulled: Sequence[PulledMessages]) -> None:
        self.before()
        for messages in pulled:
            for offset, body in zip(messages.offsets, messages.bodies, strict=True):
                self.bodies.append(body)
                if body.startswith(b"bad"):
                    self.aside.append((messages, offset))
                else:
                    messages.window.finish(offset)
                    self.handled += 1

    def retry_due(self) -> None:
        if self.next_retry is not None and self.next_retry <= time.monotonic():
            self.next_retry = None
            for messages, offset in self.aside:
                messages.window.finish(offset)
            self.aside.clear()
            self.parked += 1

    def tick(self, owned: frozenset[int]) -> None:
        self.ticks.append(owned)


class Worker:
    """An event pipeline with a notebook for each of two subscribers, ``a`` and ``b``."""

    def __init__(
        self, transport: DividedByHand, owner: str = "w", store: EventStore | None = None, conf: Conf = CONF
    ) -> None:
        self.persist: Persist
        self.hand_over: dict[str, Callable[[], None]] = {}
        self.transport, self.owner = transport, owner
        self.notebooks = {name: Notebook() for name in "ab"}
        self.statistics = Statistics()
        with subscribers.only(EventHandlerGroup("a"), EventHandlerGroup("b")):
            self.pipeline = EventPipeline(
                conf,
                transport,
                store or MemoryEventStore(),
                owner=owner,
                statistics=self.statistics,
                make_follower=self._notebook,
            )

    def _notebook(
        self,
        subscriber: Subscriber,
        transport: Transport,
        store: EventStore,
        *,
        persist: Persist,
        in_flight: InFlight,
        hand_over: Callable[[], None],
    ) -> Notebook:
        self.persist = persist
        self.hand_over[subscriber.name] = hand_over
        return self.notebooks[subscriber.name]

    def give(self, *queues: int) -> None:
        self.transport.given[self.owner] = frozenset(queues)

    def start(self, *queues: int) -> None:
        self.give(*queues)
        self.pipeline.start()

    def wait_bodies(self, name: str, *bodies: bytes) -> None:
        wait_for(lambda: sorted(self.notebooks[name].bodies) == sorted(bodies), f"{name} gets {bodies!r}")


@pytest.fixture
def transport() -> DividedByHand:
    return prepared(DividedByHand())


def prepared(transport: DividedByHand) -> DividedByHand:
    transport.create_topic(CONF.EVENT_TOPIC, QUEUES)
    return transport


@pytest.fixture
def worker(transport: DividedByHand) -> Iterator[Worker]:
    with running(Worker(transport), 0, 1) as worker:
        yield worker


@contextlib.contextmanager
def running(worker: Worker, *queues: int) -> Iterator[Worker]:
    worker.start(*queues)
    yield worker
    worker.pipeline.drain(SOON)
    worker.pipeline.close(SOON)


def send(transport: Transport, *bodies: bytes, queue: int = 0) -> None:
    transport.send(CONF.EVENT_TOPIC, {queue: bodies})


def committed(transport: Transport, name: str) -> int:
    return sum(transport.committed(name, CONF.EVENT_TOPIC).values())


def test_each_subscriber_gets_every_message_and_has_offsets_of_its_own(
    transport: DividedByHand, worker: Worker
) -> None:
    send(transport, b"1", b"2", queue=0)
    send(transport, b"3", queue=1)
    for name in "ab":
        worker.wait_bodies(name, b"1", b"2", b"3")
        wait_for(lambda name=name: committed(transport, name) == 3, f"{name} commits")  # type: ignore[misc]
    assert worker.pipeline.owned == {0, 1}
    assert frozenset({0, 1}) in worker.notebooks["a"].ticks


def test_a_subscriber_that_is_held_up_holds_up_no_other(transport: DividedByHand, worker: Worker) -> None:
    go_on = threading.Event()
    worker.notebooks["a"].before = lambda: wait_for(go_on.is_set, "a may go on")
    send(transport, b"1")
    worker.wait_bodies("b", b"1")
    send(transport, b"2")
    wait_for(lambda: committed(transport, "b") == 2, "b commits")
    assert worker.notebooks["a"].bodies == []
    assert committed(transport, "a") == 0
    go_on.set()
    worker.wait_bodies("a", b"1", b"2")


@pytest.mark.parametrize("error", [TransportUnavailable("gone"), StoreUnavailable("gone")], ids=["queue", "store"])
def test_a_batch_that_fails_for_the_moment_is_handled_again(
    transport: DividedByHand, worker: Worker, error: Exception
) -> None:
    errors = [error, error]

    def fail_twice() -> None:
        if errors:
            raise errors.pop()

    worker.notebooks["a"].before = fail_twice
    send(transport, b"1")
    worker.wait_bodies("a", b"1")
    assert errors == []
    wait_for(lambda: committed(transport, "a") == 1, "a commits")


def test_what_was_set_aside_is_tried_again_when_it_is_due(transport: DividedByHand, worker: Worker) -> None:
    notebook = worker.notebooks["a"]
    send(transport, b"bad", b"good")
    worker.wait_bodies("a", b"bad", b"good")
    assert committed(transport, "a") == 0
    notebook.next_retry = time.monotonic() + 0.01
    wait_for(lambda: committed(transport, "a") == 2, "a commits")
    wait_for(lambda: worker.statistics.report()["parked"] == 1, "the report says so")


def handled_by(worker: Worker) -> dict[str, int]:
    return {name: one["handled"] for name, one in worker.statistics.report()["subscribers"].items()}


def test_the_report_counts_for_each_subscriber(transport: DividedByHand, worker: Worker) -> None:
    send(transport, b"1", b"2")
    wait_for(lambda: handled_by(worker) == {"a": 2, "b": 2}, "two each")
    assert worker.statistics.report()["handled"] == 4


class PullFails(DividedByHand):
    failures = 2

    def pull(self, topic: str, offsets: Mapping[int, int], *, limit: int, wait: float) -> Sequence[PulledBatch]:
        if self.failures:
            self.failures -= 1
            raise TransportUnavailable("gone")
        return super().pull(topic, offsets, limit=limit, wait=wait)


def test_a_transport_that_was_away_is_pulled_from_again() -> None:
    transport = prepared(PullFails())
    with running(Worker(transport), 0) as worker:
        send(transport, b"1")
        worker.wait_bodies("a", b"1")
        worker.wait_bodies("b", b"1")


class RenewsOnlyForB(DividedByHand):
    def __init__(self) -> None:
        super().__init__()
        self.renewed = threading.Semaphore(0)

    def renew(self, group: str, topic: str, owner: str, epochs: Mapping[int, int], lease: float) -> AbstractSet[int]:
        if group == "a":
            raise TransportUnavailable("gone")
        self.renewed.release()
        return super().renew(group, topic, owner, epochs, lease)


def test_leases_of_one_subscriber_are_renewed_while_those_of_another_cannot_be() -> None:
    transport = RenewsOnlyForB()
    prepared(transport)
    with running(Worker(transport), 0, 1):
        assert all(transport.renewed.acquire(timeout=SOON) for _ in range(3))


class NeverRenewsForA(RenewsOnlyForB):
    """Who asks for A waits for an answer, until the end of the test."""

    def __init__(self) -> None:
        super().__init__()
        self.end = threading.Event()

    def renew(self, group: str, topic: str, owner: str, epochs: Mapping[int, int], lease: float) -> AbstractSet[int]:
        if group == "a":
            self.end.wait(SOON)
        return super().renew(group, topic, owner, epochs, lease)


def test_leases_of_one_subscriber_do_not_wait_for_the_answer_to_another() -> None:
    transport = NeverRenewsForA()
    prepared(transport)
    with running(Worker(transport), 0, 1):
        try:
            assert all(transport.renewed.acquire(timeout=SOON) for _ in range(3))
        finally:
            transport.end.set()


def test_a_subscriber_whose_handler_hangs_is_named_in_the_log(
    transport: DividedByHand, caplog: pytest.LogCaptureFixture
) -> None:
    worker = Worker(transport, conf=Conf(SUBSCRIBER_TIME_LIMIT=0.05))
    worker.notebooks["b"].before = lambda: wait_for(lambda: "does a handler hang?" in caplog.text, "the complaint")
    with running(worker, 0):
        send(transport, b"1")
        worker.wait_bodies("b", b"1")
    assert "b has been busy with one batch for" in caplog.text
    assert "a has been busy" not in caplog.text


# -- draining -----------------------------------------------------------------------------------------------------


def can_be_had(transport: Transport, name: str) -> bool:
    leases = [transport.acquire(name, CONF.EVENT_TOPIC, queue, "test", 1) for queue in range(QUEUES)]
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


# -- handing over -------------------------------------------------------------------------------------------------


def test_a_queue_that_is_assigned_no_more_is_finished_and_released(transport: DividedByHand, worker: Worker) -> None:
    send(transport, b"1", queue=1)
    worker.wait_bodies("a", b"1")
    worker.give(0)
    with running(Worker(transport, "other"), 1) as other:
        wait_for(lambda: other.pipeline.owned == {1}, "the other owns the queue, for both subscribers")
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
    transport.bury("a", CONF.EVENT_TOPIC, "dead", [(1, 7)])
    with running(Worker(transport), 0, 1) as worker:
        wait_for(lambda: worker.pipeline.owned == {0, 1}, "the queues are owned")
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
        assert worker.notebooks["a"].held == 1


@pytest.mark.django_db(transaction=True)
def test_who_takes_a_queue_over_does_not_wait_for_one_shard_of_several(transport: DividedByHand) -> None:
    send(transport, b"1")
    transport.acquire("a", CONF.EVENT_TOPIC, 0, "dead", 60)
    here, away = NotesSessions(), NotesSessions()
    here.failures, away.failures = 0, 1_000_000
    worker = Worker(transport, store=ShardedEventStore([here, away], ShardMap([])))
    transport.bury("a", CONF.EVENT_TOPIC, "dead")
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
        transport.acquire("a", CONF.EVENT_TOPIC, queue, "dead", 60)
    store = NotesSessions()
    worker = Worker(transport, store=store)
    ended_before: list[Sequence[str]] = []
    worker.notebooks["a"].before = lambda: ended_before.append(list(store.ended))
    transport.bury("a", CONF.EVENT_TOPIC, "dead")
    worker.start(0, 1)
    worker.wait_bodies("a", b"1")
    assert ended_before == [["dead"]], "once for all queues"
    assert worker.pipeline.drain(SOON)
    worker.pipeline.close(SOON)


def test_the_oldest_stream_is_known_beside_messages_that_are_none() -> None:
    at = datetime(2026, 1, 31, tzinfo=UTC)
    streams = [StreamRecord("a", 1, "c", "k", "t", when, b"", b"") for when in (None, "x", 5, at)]
    bodies = [b"", b"nonsense", *map(encode_published, streams)]
    window = OffsetWindow("t", 0, epoch=1, committed=0, deadline=0.0)
    assert oldest_of([PulledMessages(window, [0], [body]) for body in bodies]) == at.timestamp()
    assert oldest_of([PulledMessages(window, [0], [body]) for body in bodies[:-1]]) is None
