"""The store refuses a stream while later commands for its aggregate are in flight."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import pytest

from enode_django.bus.results import CommandStatus
from enode_django.commanding.decisions import DecisionKind
from enode_django.eventstore.base import StreamRecord
from enode_django.eventstore.memory import MemoryEventStore
from enode_django.exceptions import StoreUnavailable
from tests.races.counting import Add, AddText, AddWithin, ApplyThenRaise, Create, SetTotal
from tests.races.harness import (
    LosesAcknowledgements,
    Worker,
    assert_answers_are_final,
    assert_history_is_whole,
    commands_stored,
    versions,
)


@pytest.fixture
def store() -> MemoryEventStore:
    return MemoryEventStore()


@pytest.fixture
def worker(store: MemoryEventStore) -> Worker:
    worker = Worker(store)
    worker.run(Create("x"), Create("y"))
    return worker


@pytest.fixture
def rival(store: MemoryEventStore, worker: Worker) -> Worker:
    return Worker(store)


def adds(count: int, id: str = "x") -> list[Add]:
    return [Add(id, id=f"{id}-{n}") for n in range(count)]


def test_conflict_in_the_middle_drops_what_follows_until_the_new_epoch_and_leaves_other_aggregates_alone(
    store: MemoryEventStore, worker: Worker, rival: Worker
) -> None:
    mine, others = adds(4), adds(4, "y")
    worker.send(*[command for pair in zip(mine, others, strict=True) for command in pair])
    first = worker.handle()
    worker.commit(2)  # x-0 and y-0
    rival.run(Add("x", id="rival"))
    middle = worker.commit(4)  # x-1 conflicts, x-2 rests on it
    assert [one.envelope.id for one in middle.finished] == ["y-1", "y-2"]
    assert [recovery.aggregate_root_id for recovery in middle.recoveries] == ["x"]
    last = worker.commit()  # x-3 arrives late: dropped
    assert [one.envelope.id for one in last.finished] == ["y-3"]
    assert last.recoveries == []
    assert dict(worker.committer.awaiting) == {"x": first[0].epoch}
    assert versions(store, "x") == [1, 2, 3]

    worker.deliver()
    again = worker.deliver()
    assert [(entry.kind, entry.envelope and entry.envelope.id) for entry in again] == [
        (DecisionKind.RESUMED, None),
        (DecisionKind.STREAM, "x-1"),
        (DecisionKind.STREAM, "x-2"),
        (DecisionKind.STREAM, "x-3"),
    ]
    assert {entry.epoch for entry in again} == {again[0].epoch}
    assert again[0].epoch > first[0].epoch
    worker.settle()
    assert dict(worker.committer.awaiting) == {}
    assert commands_stored(store, "x")[1:] == ["x-0", "rival", "x-1", "x-2", "x-3"]
    assert commands_stored(store, "y")[1:] == ["y-0", "y-1", "y-2", "y-3"]
    assert_history_is_whole(store, "x")
    assert worker.in_flight == 0


def test_commands_that_come_between_the_conflict_and_the_recovery_are_decided_once(
    store: MemoryEventStore, worker: Worker, rival: Worker
) -> None:
    worker.send(*adds(2))
    worker.handle()
    rival.run(Add("x", id="rival"))
    worker.commit()
    late = Add("x", id="late")
    worker.send(late)
    worker.handle()  # still in the old epoch: the recovery has not arrived
    worker.commit()
    assert worker.finished[-1].envelope.id != "late"
    worker.settle()
    assert commands_stored(store, "x")[1:] == ["rival", "x-0", "x-1", "late"]
    assert worker.answers["late"].value == 4


def test_two_conflicts_in_a_row_make_two_recoveries(store: MemoryEventStore, worker: Worker, rival: Worker) -> None:
    worker.send(*adds(2))
    epochs = [worker.handle()[0].epoch]
    for n in range(3):
        rival.run(Add("x", id=f"rival-{n}"))
        worker.commit()
        epochs.append(worker.deliver()[0].epoch)
    worker.settle()
    assert epochs == sorted(set(epochs))
    assert worker.committer.conflicts == 3
    assert commands_stored(store, "x")[1:] == ["rival-0", "rival-1", "rival-2", "x-0", "x-1"]
    assert_history_is_whole(store, "x")


def test_epochs_never_go_back_over_evictions_and_recoveries(
    store: MemoryEventStore, worker: Worker, rival: Worker
) -> None:
    small = Worker(store, max_aggregates=1)
    seen: dict[str, int] = {}
    for n in range(30):
        id = ("x", "y")[n % 2]
        if n % 5 == 0:
            rival.run(Add(id))
        small.run(Add(id, id=f"{n}"))
    for entry in small.handled:
        assert entry.epoch >= seen.get(entry.aggregate_root_id, 0)
        seen[entry.aggregate_root_id] = entry.epoch
    assert_history_is_whole(store, "x")
    assert_history_is_whole(store, "y")


def test_a_second_recovery_for_an_epoch_that_is_over_changes_nothing(
    store: MemoryEventStore, worker: Worker, rival: Worker
) -> None:
    worker.send(*adds(2))
    worker.handle()
    rival.run(Add("x", id="rival"))
    (recovery,) = worker.commit().recoveries
    resumed = worker.deliver()
    (answer,) = worker.processor.recover(recovery)
    assert (answer.kind, answer.epoch) == (DecisionKind.RESUMED, resumed[0].epoch)
    worker.settle()
    assert commands_stored(store, "x")[1:] == ["rival", "x-0", "x-1"]


class Asked(MemoryEventStore):
    """Counts the queries for heads and histories."""

    questions = 0

    def heads(self, aggregate_root_ids: Iterable[str]) -> Mapping[str, int]:
        self.questions += 1
        return super().heads(aggregate_root_ids)

    def load_many(self, aggregate_root_ids: Iterable[str]) -> Mapping[str, Sequence[StreamRecord]]:
        self.questions += 1
        return super().load_many(aggregate_root_ids)


def test_recoveries_that_come_together_are_loaded_together_and_each_aggregate_once() -> None:
    store = Asked()
    worker, rival = Worker(store), Worker(store)
    ids = [f"id-{n}" for n in range(20)]
    worker.run(*[Create(id) for id in ids])
    worker.send(*[Add(id, id=f"{id}-{n}") for n in range(2) for id in ids])
    worker.handle()
    rival.run(*[Add(id, id=f"rival-{id}") for id in ids])
    recoveries = worker.commit().recoveries
    assert len(recoveries) == len(ids)
    store.questions = 0
    again = worker.processor.recover(*recoveries, recoveries[0])
    assert store.questions <= 2
    assert [entry.kind for entry in again] == [DecisionKind.RESUMED, DecisionKind.STREAM, DecisionKind.STREAM] * len(
        ids
    )
    worker.outcomes.clear()
    worker.entries.extend(again)
    worker.settle()
    for id in ids:
        assert commands_stored(store, id)[1:] == [f"rival-{id}", f"{id}-0", f"{id}-1"]
        assert_history_is_whole(store, id)
    assert dict(worker.committer.awaiting) == {}
    assert worker.in_flight == 0


def test_resumed_comes_for_an_aggregate_that_was_evicted_meanwhile(store: MemoryEventStore, rival: Worker) -> None:
    small = Worker(store, max_aggregates=1)
    small.run(*adds(1))
    small.run(Add("x", id="again"))
    rival.run(Add("x", id="rival"))
    set_total = SetTotal("x", id="verdict", total=2)
    small.send(set_total)
    small.handle()
    small.commit()
    (recovery,) = small.outcomes[-1].recoveries
    small.processor.finish(small.handled[-1:])  # as if it had been settled elsewhere
    small.run(Add("y", id="y-1"))  # evicts x
    assert small.processor._cache.get("x") is None
    small.settle()
    (resumed,) = small.processor.recover(recovery)
    assert resumed.epoch > recovery.epoch
    small.entries.append(resumed)
    small.settle()
    assert dict(small.committer.awaiting) == {}


def test_memory_of_refused_aggregates_does_not_grow(store: MemoryEventStore, worker: Worker, rival: Worker) -> None:
    for n in range(200):
        id = f"a-{n}"
        worker.run(Create(id))
        rival.run(Add(id))
        worker.run(Add(id))
        assert len(worker.committer.awaiting) == 0
        assert versions(store, id) == [1, 2, 3]
    assert worker.committer.conflicts == 200
    assert worker.processor.cached <= 100


def test_a_lost_acknowledgement_is_asked_again_as_doubtful_and_makes_no_conflict() -> None:
    store = LosesAcknowledgements(times=0)

    def twice(call):  # type: ignore[no-untyped-def]
        try:
            return call()
        except StoreUnavailable:
            return call()

    worker = Worker(store, persist=twice)
    worker.run(Create("x"))
    store.times = 1
    store.doubtful.clear()
    answers = worker.run(*adds(3), AddWithin("x", id="refused", limit=0))
    assert store.doubtful == [False, True]
    assert [answer.status for answer in answers] == [CommandStatus.SUCCESS] * 3 + [CommandStatus.REFUSED]
    assert worker.committer.conflicts == 0
    assert_history_is_whole(store, "x")


def test_a_worker_that_died_before_the_acknowledgement_is_answered_for_by_its_successor() -> None:
    store = LosesAcknowledgements(times=0)
    dead = Worker(store)
    dead.run(Create("x"))
    store.times = 1
    dead.send(*adds(3))
    dead.handle()
    with pytest.raises(StoreUnavailable):
        dead.commit()
    successor = Worker(store)
    answers = successor.run(*adds(4))
    assert [(answer.status, answer.version, answer.value) for answer in answers] == [
        (CommandStatus.SUCCESS, n + 2, n + 1) for n in range(4)
    ]
    assert_history_is_whole(store, "x")


def test_what_the_store_refuses_for_its_data_fails_alone(
    store: MemoryEventStore, worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    from enode_django.eventstore import memory

    monkeypatch.setattr(memory, "unstorable", lambda record: "poison" if b"poison" in record.events else "")
    commands = [*adds(2), AddText("x", id="bad", text="poison"), Add("x", id="on")]
    answers = worker.run(*commands, Add("y", id="y-1"))
    assert [answer.status.value for answer in answers] == ["success", "success", "failed", "success", "success"]
    assert answers[2].error_type == "MessageError"
    assert "poison" in answers[2].error_message
    assert answers[3].value == 3, "what came after is decided without the failed one"
    assert_history_is_whole(store, "x")
    assert worker.in_flight == 0


def test_events_that_are_too_large_fail_their_command_alone(store: MemoryEventStore, worker: Worker) -> None:
    big = AddText("x", id="big", text="x" * 20_000)
    answers = worker.run(*adds(1), big, Add("x", id="next"))
    assert [answer.status.value for answer in answers] == ["success", "failed", "success"]
    assert answers[1].error_type == "MessageTooLarge"
    assert "EVENTS_MAX_BYTES" in answers[1].error_message
    assert answers[2].value == 2
    assert_history_is_whole(store, "x")


@pytest.mark.parametrize("refuse", [False, True])
def test_raising_after_apply_leaves_the_store_plus_what_is_unfinished(
    store: MemoryEventStore, worker: Worker, refuse: bool
) -> None:
    worker.run(*adds(1))
    worker.send(Add("x", id="stored"), Add("x", id="unfinished"))
    worker.handle()
    worker.commit(1)
    worker.send(ApplyThenRaise("x", id="broken", refuse=refuse), Add("x", id="on"))
    worker.handle()
    worker.settle()
    assert worker.answers["broken"].status is (CommandStatus.REFUSED if refuse else CommandStatus.FAILED)
    assert worker.answers["on"].value == 4
    assert worker.committer.conflicts == 0
    assert_history_is_whole(store, "x")


def test_raising_after_apply_when_a_rival_wrote_meanwhile_still_ends_well(
    store: MemoryEventStore, worker: Worker, rival: Worker
) -> None:
    worker.send(*adds(2))
    worker.handle()
    rival.run(Add("x", id="rival"))
    worker.send(ApplyThenRaise("x", id="broken"), Add("x", id="on"))
    worker.settle()
    assert worker.answers["on"].value == 4
    assert_history_is_whole(store, "x")
    assert_answers_are_final(store, worker.answers)


def test_unfinished_aggregates_are_not_evicted(store: MemoryEventStore) -> None:
    small = Worker(store, max_aggregates=2)
    ids = [f"a-{n}" for n in range(20)]
    small.send(*(Create(id) for id in ids), *(Add(id) for id in ids))
    small.handle()
    assert small.processor.cached == 20
    small.settle()
    assert small.processor.cached == 2
    assert small.committer.conflicts == 0
    assert all(versions(store, id) == [1, 2] for id in ids)


def test_an_aggregate_that_was_idle_is_not_evicted_once_it_has_unfinished_commands(store: MemoryEventStore) -> None:
    small = Worker(store, max_aggregates=2)
    small.run(Create("x"))
    small.send(*adds(2))
    small.handle()
    waiting = list(small.entries)
    small.entries.clear()
    for n in range(5):
        small.run(Create(f"a-{n}"))
    assert small.in_flight == 2
    small.entries.extend(waiting)
    small.settle()
    assert versions(store, "x") == [1, 2, 3]
    assert small.committer.conflicts == 0
