"""Command mailboxes that share states: conflicts, recoveries, zombies, and a store that was set back."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import pytest

from enode_django.bus.results import CommandStatus
from enode_django.domain.messages import Command
from enode_django.eventstore.memory import MemoryEventStore
from enode_django.ids import new_id
from enode_django.repository import reading
from enode_django.repository.states import MemoryStates
from enode_django.repository.store import Snapshot
from tests.races.counting import Add, ApplyThenRaise, Create
from tests.races.harness import Worker, assert_answers_are_final, assert_history_is_whole, versions

START = 5


class Shared(MemoryStates):
    """``asked`` are the ids that were asked for. While ``holds_back`` is set, changes wait until `arrive`, in order."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[str] = []
        self.holds_back = False
        self._on_their_way: list[Sequence[Snapshot] | str] = []

    def load(self, aggregate_root_ids: Iterable[str]) -> Mapping[str, Snapshot]:
        ids = list(aggregate_root_ids)
        self.asked += ids
        return super().load(ids)

    def save(self, states: Sequence[Snapshot]) -> None:
        self._change(states)

    def delete(self, aggregate_root_id: str) -> None:
        self._change(aggregate_root_id)

    def _change(self, change: Sequence[Snapshot] | str) -> None:
        self._on_their_way.append(change)
        if not self.holds_back:
            self.arrive()

    def arrive(self) -> None:
        for change in self._on_their_way:
            if isinstance(change, str):
                super().delete(change)
            else:
                super().save(change)
        self._on_their_way.clear()

    @property
    def versions(self) -> dict[str, int]:
        return {id: one.version for id, one in self.states.items()}


@pytest.fixture(autouse=True)
def _nothing_told() -> None:
    reading._told.clear()


@pytest.fixture
def shared() -> Shared:
    return Shared()


@pytest.fixture
def store(shared: Shared) -> MemoryEventStore:
    """Return a store with an aggregate ``x`` of START versions. The state of the newest is shared."""
    store = MemoryEventStore()
    worker = Worker(store, states=shared)
    worker.run(Create("x"), *adds(START - 1))
    worker.keep()
    assert shared.versions == {"x": START}
    shared.asked.clear()
    return store


def adds(count: int, amount: int = 1) -> list[Command]:
    return [Add("x", amount=amount) for _ in range(count)]


def assert_all_is_well(store: MemoryEventStore, *workers: Worker) -> None:
    assert versions(store, "x") == list(range(1, len(versions(store, "x")) + 1))
    assert_history_is_whole(store, "x")
    for worker in workers:
        assert {answer.status for answer in worker.answers.values()} <= {CommandStatus.SUCCESS}
        assert_answers_are_final(store, worker.answers)


def test_a_restarted_worker_goes_on_from_what_is_shared(store: MemoryEventStore, shared: Shared) -> None:
    worker = Worker(store, states=shared)
    (result,) = worker.run(*adds(1))
    assert (result.version, result.value) == (START + 1, START)
    assert shared.asked == ["x"]
    assert_all_is_well(store, worker)


def test_a_conflict_right_after_a_load_from_what_is_shared_is_recovered_from_the_store_alone(
    store: MemoryEventStore, shared: Shared
) -> None:
    worker = Worker(store, states=shared)
    worker.send(*adds(3))
    worker.handle()
    rival = Worker(store)
    rival.run(*adds(1, amount=100))
    shared.asked.clear()
    worker.commit()
    worker.deliver()
    assert shared.versions == {}, "the recovery deletes the entry"
    assert shared.asked == [], "and does not look for it"
    worker.settle()
    assert [answer.value for answer in worker.answers.values()] == [START + 99 + n for n in (1, 2, 3)]
    worker.keep()
    assert shared.versions == {"x": START + 4}
    assert_all_is_well(store, worker, rival)


def test_a_write_on_its_way_while_the_recovery_deletes_is_deleted_with_the_rest(
    store: MemoryEventStore, shared: Shared
) -> None:
    worker = Worker(store, states=shared)
    worker.run(*adds(1))
    shared.holds_back = True
    worker.keep()
    Worker(store).run(*adds(1, amount=100))
    worker.send(*adds(1))
    worker.settle()
    shared.arrive()
    assert shared.versions == {}
    worker.keep()
    shared.arrive()
    assert shared.versions == {"x": START + 3}
    assert_all_is_well(store, worker)


def test_what_was_noted_before_a_recovery_is_not_written_after_it(store: MemoryEventStore, shared: Shared) -> None:
    worker = Worker(store, states=shared)
    worker.run(*adds(1))
    worker.send(*adds(1))
    worker.handle()
    Worker(store).run(*adds(1, amount=100))
    worker.commit()
    worker.deliver()
    worker.keep()
    assert shared.versions == {}, "what was handled again is not durable yet"
    worker.settle()
    worker.keep()
    assert shared.versions == {"x": START + 3}


def test_a_deletion_that_redis_never_saw_does_no_harm(store: MemoryEventStore, shared: Shared) -> None:
    """The entry is of a version that was durable, so it only is older than the store."""
    worker = Worker(store, states=shared)
    worker.send(*adds(1))
    worker.handle()
    Worker(store).run(*adds(1, amount=100))
    shared.holds_back = True
    worker.settle()
    assert shared.versions == {"x": START}
    other = Worker(store, states=shared)
    other.run(*adds(1))
    assert_all_is_well(store, worker, other)


def test_a_zombie_that_writes_an_older_state_makes_loads_longer_only(store: MemoryEventStore, shared: Shared) -> None:
    zombie, successor = Worker(store, states=shared), Worker(store, states=shared)
    zombie.run(*adds(1))
    successor.run(*adds(10))
    successor.keep()
    assert shared.versions == {"x": START + 11}
    zombie.keep()
    assert shared.versions == {"x": START + 1}
    third = Worker(store, states=shared)
    (result,) = third.run(*adds(1))
    assert result.version == START + 12
    assert_all_is_well(store, zombie, successor, third)


def test_a_zombie_shares_nothing_of_what_the_store_has_not_taken(store: MemoryEventStore, shared: Shared) -> None:
    zombie = Worker(store, states=shared)
    zombie.send(*adds(3))
    zombie.handle()
    zombie.clock.now += 60
    zombie.keep()
    zombie.commit()
    zombie.keep()
    zombie.deliver()
    zombie.keep()
    assert shared.versions.get("x", START) == START
    assert versions(store, "x") == list(range(1, START + 1))


def test_a_command_that_fails_after_apply_is_undone_from_the_store_alone(
    store: MemoryEventStore, shared: Shared
) -> None:
    worker = Worker(store, states=shared)
    worker.run(*adds(1))
    shared.asked.clear()
    worker.run(ApplyThenRaise("x"))
    assert shared.asked == []
    (result,) = worker.run(*adds(1))
    assert (result.version, result.value) == (START + 2, START + 1)


def set_back(store: MemoryEventStore, until: int) -> MemoryEventStore:
    """The store as a dump of an earlier moment has it."""
    earlier = MemoryEventStore()
    earlier.append(list(store.load("x", until=until)))
    return earlier


def test_a_state_ahead_of_a_restored_store_is_not_used(
    store: MemoryEventStore, shared: Shared, caplog: pytest.LogCaptureFixture
) -> None:
    restored = set_back(store, START - 2)
    worker = Worker(restored, states=shared)
    (result,) = worker.run(*adds(1))
    assert (result.version, result.value) == (START - 1, START - 2)
    assert "no such version" in caplog.text
    worker.keep()
    assert shared.versions == {"x": START - 1}
    assert_all_is_well(restored, worker)


def test_a_state_of_a_store_that_went_another_way_since_is_not_used(
    store: MemoryEventStore, shared: Shared, caplog: pytest.LogCaptureFixture
) -> None:
    restored = set_back(store, START - 2)
    Worker(restored).run(*adds(6, amount=100))
    worker = Worker(restored, states=shared)
    (result,) = worker.run(*adds(1))
    assert (result.version, result.value) == (START + 5, START - 3 + 600 + 1)
    assert "another history" in caplog.text
    assert_all_is_well(restored, worker)


def test_a_state_by_the_same_command_that_came_to_something_else_is_not_used(
    store: MemoryEventStore, shared: Shared, caplog: pytest.LogCaptureFixture
) -> None:
    """The last command is delivered again after the store was set back, and finds another state before it."""
    (last,) = store.load("x", after=START - 1)
    restored = set_back(store, START - 2)
    Worker(restored).run(*adds(1, amount=100))
    again = Add("x", id=last.command_id, amount=1)
    Worker(restored).run(again)
    assert [(one.version, one.command_id) for one in restored.load("x", after=START - 1)] == [(START, last.command_id)]
    worker = Worker(restored, states=shared)
    (result,) = worker.run(*adds(1))
    assert (result.version, result.value) == (START + 1, START - 3 + 100 + 1 + 1)
    assert "another history" in caplog.text
    assert_all_is_well(restored, worker)


def test_a_queue_that_is_taken_anew_drops_what_was_to_be_written(store: MemoryEventStore, shared: Shared) -> None:
    worker = Worker(store, states=shared)
    worker.run(*adds(1))
    Worker(store).run(*adds(1, amount=100))
    worker.acquire()
    worker.keep()
    assert shared.versions == {"x": START}
    (result,) = worker.run(*adds(1))
    assert result.version == START + 3
    assert_all_is_well(store, worker)


def test_workers_that_fight_for_an_aggregate_share_only_what_is_stored(store: MemoryEventStore, shared: Shared) -> None:
    workers = [Worker(store, states=shared) for _ in range(3)]
    for turn in range(30):
        worker = workers[turn % 3]
        worker.send(*[Add("x", id=new_id(), amount=turn) for _ in range(turn % 4 + 1)])
        worker.handle()
        if turn % 2:
            workers[(turn + 1) % 3].settle()
        worker.keep()
        if "x" in shared.states:
            assert_shared_is_stored(store, shared)
        if turn % 5 == 0:
            workers[turn % 3].settle()
            workers[turn % 3] = Worker(store, states=shared)
    for worker in workers:
        worker.settle()
        worker.keep()
        assert_shared_is_stored(store, shared)
    assert_all_is_well(store, *workers)


def assert_shared_is_stored(store: MemoryEventStore, shared: Shared) -> None:
    one = shared.states.get("x")
    if one is not None:
        (record,) = store.load("x", after=one.version - 1, until=one.version)
        assert record.created_at == one.created_at
        assert record.command_id.encode() in one.payload
