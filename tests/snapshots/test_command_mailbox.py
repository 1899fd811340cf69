"""A command mailbox that loads from snapshots, under conflicts and with snapshots that are wrong."""

from __future__ import annotations

import pytest

from enode_django.bus.results import CommandStatus
from enode_django.domain.messages import Command
from enode_django.eventstore.memory import MemoryEventStore
from enode_django.repository import reading
from enode_django.repository.loading import AggregateLoader
from enode_django.repository.store import MemorySnapshotStore
from tests.races.counting import Add, ApplyThenRaise, Counter, Create
from tests.races.harness import Worker, assert_answers_are_final, assert_history_is_whole, versions
from tests.snapshots.histories import snapshot_at

LONG = 30


@pytest.fixture(autouse=True)
def _young_aggregates_have_snapshots(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Counter, "snapshot_every", 10)
    reading._told.clear()


@pytest.fixture
def store() -> MemoryEventStore:
    store = MemoryEventStore()
    Worker(store).run(Create("x"), Create("y"), *adds(LONG))
    return store


@pytest.fixture
def snapshots(store: MemoryEventStore) -> MemorySnapshotStore:
    snapshots = MemorySnapshotStore()
    snapshots.save([snapshot_at(store, "x", 20)])
    return snapshots


def worker_on(store: MemoryEventStore, snapshots: MemorySnapshotStore) -> Worker:
    worker = Worker(store)
    worker.processor._slots._loader = AggregateLoader(store, snapshots)
    return worker


def adds(count: int) -> list[Command]:
    return [Add("x") for _ in range(count)]


def test_commands_go_on_where_snapshot_and_streams_end(
    store: MemoryEventStore, snapshots: MemorySnapshotStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(MemoryEventStore, "load_many", None)  # all histories at once are not asked for
    worker = worker_on(store, snapshots)
    (result,) = worker.run(Add("x"))
    assert (result.version, result.value) == (LONG + 2, LONG + 1)
    assert_history_is_whole(store, "x")


@pytest.mark.parametrize("snapshot_version", [20, LONG + 1, LONG + 2])
def test_after_a_conflict_the_recovery_may_use_what_the_rival_left(
    store: MemoryEventStore, snapshots: MemorySnapshotStore, snapshot_version: int
) -> None:
    """This includes a snapshot of the version that the worker lost to the rival."""
    worker, rival = worker_on(store, snapshots), worker_on(store, snapshots)
    worker.send(*adds(3))
    worker.handle()
    rival.run(Add("x", amount=100))
    snapshots.save([snapshot_at(store, "x", snapshot_version)])
    worker.settle()
    assert {answer.status for answer in worker.answers.values()} == {CommandStatus.SUCCESS}
    assert versions(store, "x") == list(range(1, LONG + 6))
    assert_history_is_whole(store, "x")
    assert_answers_are_final(store, worker.answers)


def test_a_command_that_fails_after_apply_leaves_the_state_as_it_was(
    store: MemoryEventStore, snapshots: MemorySnapshotStore
) -> None:
    worker = worker_on(store, snapshots)
    results = worker.run(Add("x"), ApplyThenRaise("x"), Add("x"))
    assert [result.status for result in results] == [
        CommandStatus.SUCCESS, CommandStatus.FAILED, CommandStatus.SUCCESS,
    ]  # fmt: skip
    assert_history_is_whole(store, "x")


def test_a_snapshot_that_cannot_be_used_stops_nothing(
    store: MemoryEventStore, snapshots: MemorySnapshotStore, caplog: pytest.LogCaptureFixture
) -> None:
    """The snapshot is ahead of the store. That is found only when the streams are loaded, in the middle of a batch."""
    ahead = MemoryEventStore()
    ahead.append(list(store.load("x")))
    Worker(ahead).run(*adds(10))
    snapshots.save([snapshot_at(ahead, "x", LONG + 11)])
    worker = worker_on(store, snapshots)
    results = worker.run(Add("y"), Add("x"), Add("y"))
    assert [result.status for result in results] == [CommandStatus.SUCCESS] * 3
    assert "no such version" in caplog.text
    assert_history_is_whole(store, "x")
    assert snapshots.versions(["x"]) == {}
