"""A command mailbox shares the states of its aggregates: which ones, and when."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence

import pytest

from enode_django.commanding.cache import Slot
from enode_django.commanding.decisions import Decision, DecisionKind
from enode_django.commanding.shared_state_writer import AT_ONCE, MOST_EVICTED, SharedStateWriter
from enode_django.domain.aggregate import AggregateRoot
from enode_django.domain.messages import Command
from enode_django.eventstore.memory import MemoryEventStore
from enode_django.repository.loading import replay_records
from enode_django.repository.states import MemoryStates
from enode_django.repository.store import Snapshot
from tests.races.counting import Add, AddWithin, ApplyThenRaise, Create, SetTotal
from tests.races.harness import WRITE_INTERVAL, Clock, Worker
from tests.snapshots.domain import Misdeclared, Off, Shelf, Undeclared
from tests.snapshots.histories import streams


class Watched(MemoryStates):
    """``saved`` are the versions in the order they came, of each call."""

    def __init__(self) -> None:
        super().__init__()
        self.saved: list[list[tuple[str, int]]] = []

    def save(self, states: Sequence[Snapshot]) -> None:
        self.saved.append([(state.aggregate_root_id, state.version) for state in states])
        super().save(states)

    @property
    def versions(self) -> dict[str, int]:
        return {id: state.version for id, state in self.states.items()}


@pytest.fixture
def store() -> MemoryEventStore:
    return MemoryEventStore()


@pytest.fixture
def states() -> Watched:
    return Watched()


@pytest.fixture
def worker(store: MemoryEventStore, states: Watched) -> Worker:
    return Worker(store, states=states)


def create(*ids: str) -> list[Command]:
    return [Create(id) for id in ids]


def add(*ids: str) -> list[Command]:
    return [Add(id) for id in ids]


# -- durable states only ----------------------------------------------------------------------------------------------


def test_a_state_is_shared_when_it_is_durable_and_not_before(worker: Worker, states: Watched) -> None:
    worker.send(*create("x"))
    worker.handle()
    worker.keep()
    assert states.saved == [], "handled, not stored"
    worker.commit()
    worker.keep()
    assert states.saved == [], "stored, but the command mailbox has not heard of it"
    worker.deliver()
    worker.keep()
    assert states.saved == [[("x", 1)]]


def test_an_aggregate_with_an_unfinished_command_has_its_turn_when_it_rests(worker: Worker, states: Watched) -> None:
    worker.run(*create("x"))
    worker.send(AddWithin("x", limit=0))
    worker.handle()
    worker.keep()
    assert states.versions == {}
    worker.settle()  # it was refused, so its version is the same
    worker.keep()
    assert states.versions == {"x": 1}


def test_what_is_shared_is_the_state_with_the_command_and_the_time_of_its_stream(
    worker: Worker, store: MemoryEventStore, states: Watched
) -> None:
    worker.run(*create("x"), *add("x", "x"))
    worker.keep()
    (last,) = store.load("x", after=2)
    shared = states.states["x"]
    assert (shared.version, shared.created_at) == (3, last.created_at)
    assert last.command_id.encode() in shared.payload


def test_streams_of_a_lease_that_is_over_are_not_taken_for_durable(worker: Worker, states: Watched) -> None:
    worker.run(*create("x"))
    worker.keep()
    worker.send(*add("x"))
    worker.handle()
    worker.window.close()
    worker.commit()
    worker.outcomes[0] = worker.outcomes[0]._replace(recoveries=[])  # as if they came later
    worker.deliver()
    worker.keep()
    assert states.versions == {"x": 1}


def test_an_entry_that_was_handled_again_is_not_finished_by_the_first_one(worker: Worker, states: Watched) -> None:
    worker.run(*create("x"))
    worker.keep()
    worker.send(*add("x"))
    (entry,) = worker.handle()
    slot = worker.processor._cache.slots["x"]
    again = Decision(DecisionKind.STREAM, "x", entry.epoch + 1, entry.envelope, entry.rests_on, entry.record)
    assert slot.unfinished
    slot.unfinished[entry.envelope] = again
    worker.processor.finish([entry])
    worker.keep()
    assert states.versions == {"x": 1}


# -- frequency --------------------------------------------------------------------------------------------------------


def test_an_aggregate_is_encoded_once_in_a_round_however_often_it_changes(worker: Worker, states: Watched) -> None:
    for _ in range(5):
        worker.run(*(add("x") if worker.finished else create("x")))
        worker.processor.keep()
    assert states.saved == [], "the first round has not begun"
    worker.keep()
    worker.run(*add("x", "x"))
    worker.processor.keep()
    assert states.saved == [[("x", 5)]]
    worker.keep()
    assert states.saved == [[("x", 5)], [("x", 7)]]


def test_what_has_not_changed_is_not_written_again(worker: Worker, states: Watched) -> None:
    worker.run(*create("x", "y"))
    worker.keep()
    worker.run(
        SetTotal("x", total=0),
        AddWithin("x", limit=0),
        ApplyThenRaise("x"),
    )
    worker.keep()
    assert states.saved == [[("y", 1), ("x", 1)]]
    assert worker.processor.pause is None


def test_a_mailbox_sleeps_until_the_next_round_and_for_ever_if_nothing_has_changed(worker: Worker) -> None:
    assert worker.processor.pause is None
    worker.run(*create("x"))
    assert worker.processor.pause == WRITE_INTERVAL
    worker.clock.now += WRITE_INTERVAL / 4
    assert worker.processor.pause == pytest.approx(WRITE_INTERVAL * 3 / 4)
    worker.clock.now += WRITE_INTERVAL
    assert worker.processor.pause == 0
    worker.processor.keep()
    assert worker.processor.pause is None
    assert Worker(MemoryEventStore()).processor.pause is None


class RunningClock(Clock):
    """A clock that advances by a step at each look."""

    step = 0.0

    def __call__(self) -> float:
        self.now += self.step
        return self.now


def test_encoding_holds_the_mailbox_up_for_a_moment_only(store: MemoryEventStore, states: Watched) -> None:
    clock = RunningClock()
    worker = Worker(store, states=states, clock=clock)
    ids = [f"x{n}" for n in range(20)]
    worker.run(*create(*ids))
    worker.clock.now += WRITE_INTERVAL
    clock.step = AT_ONCE / 4.5
    worker.processor.keep()
    assert 1 <= len(states.versions) <= 6
    assert worker.processor.pause == 0
    rounds = 1
    while worker.processor.pause == 0:
        worker.processor.keep()
        rounds += 1
    assert set(states.versions) == set(ids)
    assert rounds <= 20


# -- aggregates that leave the cache ----------------------------------------------------------------------------------


def test_what_leaves_the_cache_is_shared_with_the_state_that_it_had(store: MemoryEventStore, states: Watched) -> None:
    worker = Worker(store, states=states, max_aggregates=2)
    worker.run(*create("x", "y", "z"))
    assert worker.processor.pause == 0
    worker.processor.keep()
    assert states.versions == {"x": 1}
    worker.keep()
    assert states.versions == {"x": 1, "y": 1, "z": 1}


def test_one_that_was_shared_already_leaves_the_cache_in_silence(store: MemoryEventStore, states: Watched) -> None:
    worker = Worker(store, states=states, max_aggregates=1)
    worker.run(*create("x"))
    worker.keep()
    worker.run(*create("y"))
    worker.processor.keep()
    assert states.saved == [[("x", 1)]]


def test_one_that_left_and_came_back_ends_with_its_newest_state(store: MemoryEventStore, states: Watched) -> None:
    worker = Worker(store, states=states, max_aggregates=1)
    worker.run(*create("x"))
    worker.run(*create("y"))
    worker.run(*add("x"))
    worker.keep()
    assert states.versions == {"x": 2, "y": 1}
    assert [one for saved in states.saved for one in saved if one[0] == "x"][-1:] == [("x", 2)]


def test_what_waits_after_leaving_the_cache_is_bounded(states: Watched) -> None:
    keeper = SharedStateWriter(states, interval=WRITE_INTERVAL)
    records = streams("x", [1])
    for n in range(MOST_EVICTED + 5):
        slot = Slot(f"x{n}", replay_records([records[0]._replace(aggregate_root_id=f"x{n}")]), 1, 0)
        keeper.note(slot, Decision(DecisionKind.STREAM, slot.id, 1, None, 0, records[0]))
        keeper.evict(slot)
    assert len(keeper._evicted) == MOST_EVICTED


# -- the end, and a queue that moves ----------------------------------------------------------------------------------


def test_at_the_end_everything_that_rests_is_shared(store: MemoryEventStore, states: Watched) -> None:
    worker = Worker(store, states=states, max_aggregates=3)
    worker.run(*create("a", "b", "c", "d"))
    worker.processor.keep_rest(1.0)
    assert states.versions == dict.fromkeys("abcd", 1)


def test_at_the_end_no_more_than_the_time_allows_is_shared(store: MemoryEventStore, states: Watched) -> None:
    clock = RunningClock()
    worker = Worker(store, states=states, clock=clock)
    worker.run(*create(*(f"x{n}" for n in range(50))))
    clock.step = 0.1
    worker.processor.keep_rest(1.0)
    assert 1 <= len(states.versions) <= 10


def test_what_is_forgotten_with_its_queue_is_not_shared_any_more(store: MemoryEventStore, states: Watched) -> None:
    worker = Worker(store, states=states, max_aggregates=1)
    worker.run(*create("x", "y"))
    worker.acquire()
    assert worker.processor.pause is None
    worker.keep()
    worker.processor.keep_rest(1.0)
    assert states.versions == {}


def test_an_aggregate_of_another_queue_is_not_forgotten(worker: Worker, states: Watched) -> None:
    worker.run(*create("x"))
    worker.processor.forget(7)
    worker.keep()
    assert states.versions == {"x": 1}


# -- states that cannot be shared -------------------------------------------------------------------------------------


def kept(states: Watched, classes: Iterable[type[AggregateRoot]], versions: range = range(1, 4)) -> SharedStateWriter:
    """After a round in which there were three of each class, with the amounts 1, 2 and 3 put in."""
    clock = Clock()
    keeper = SharedStateWriter(states, interval=WRITE_INTERVAL, clock=clock, work_clock=clock)
    slots: dict[str, Slot] = {}
    for cls in classes:
        for n in range(3):
            records = streams(f"{cls.__name__} {n}", versions, cls)
            slot = slots[records[0].aggregate_root_id] = Slot(
                records[0].aggregate_root_id, replay_records(records), 1, 0
            )
            keeper.note(slot, Decision(DecisionKind.STREAM, slot.id, 1, None, 0, records[-1]))
    clock.now += WRITE_INTERVAL
    keeper.work(slots)
    return keeper


def test_a_class_without_snapshots_has_no_shared_states(states: Watched, caplog: pytest.LogCaptureFixture) -> None:
    kept(states, [Off, Shelf])
    assert set(states.versions) == {"Shelf 0", "Shelf 1", "Shelf 2"}
    assert caplog.records == []


@pytest.mark.parametrize("cls", [Undeclared, Misdeclared])
def test_a_class_whose_state_would_not_come_back_is_told_once_and_left_out(
    states: Watched, caplog: pytest.LogCaptureFixture, cls: type[AggregateRoot]
) -> None:
    kept(states, [cls, Shelf])
    assert set(states.versions) == {"Shelf 0", "Shelf 1", "Shelf 2"}
    (line,) = caplog.records
    assert cls.__name__ in line.getMessage()
    assert line.levelno == logging.ERROR


def test_values_that_cannot_be_compared_break_nothing(
    states: Watched, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("no comparing here")

    monkeypatch.setattr("enode_django.commanding.shared_state_writer.snapshot_of", broken)
    kept(states, [Shelf])
    assert states.versions == {}
    assert len(caplog.records) == 1
