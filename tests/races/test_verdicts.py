"""Answers without a row rest on durable streams, or are decided again."""

from __future__ import annotations

import pytest

from enode_django.bus.results import CommandStatus
from enode_django.commanding.decisions import DecisionKind
from enode_django.eventstore.memory import MemoryEventStore
from tests.races.counting import Add, AddSoftly, AddWithin, Create, FailUnless, SetTotal
from tests.races.harness import Worker, assert_answers_are_final, assert_history_is_whole


@pytest.fixture
def store() -> MemoryEventStore:
    return MemoryEventStore()


@pytest.fixture
def worker(store: MemoryEventStore) -> Worker:
    worker = Worker(store)
    worker.run(Create("x"))
    return worker


@pytest.mark.parametrize(
    ("command", "fresh"),
    [
        (SetTotal("x", id="c", total=0), CommandStatus.SUCCESS),
        (FailUnless("x", id="c", total=9), CommandStatus.SUCCESS),
        (AddSoftly("x", id="c", limit=0), CommandStatus.REFUSED),
        (Create("new", id="c"), CommandStatus.SUCCESS),
        (Add("new", id="c"), CommandStatus.FAILED),
    ],
)
def test_verdict_that_rests_on_a_stale_head_is_decided_again(
    store: MemoryEventStore, worker: Worker, command: Add, fresh: CommandStatus
) -> None:
    worker.send(command)
    worker.handle()
    Worker(store).run(Add("x", id="rival", amount=9))
    worker.settle()
    assert worker.status(command) is fresh
    assert_history_is_whole(store, "x")


def test_missing_aggregate_that_was_created_meanwhile_is_found(store: MemoryEventStore, worker: Worker) -> None:
    add = Add("new", id="c")
    worker.send(add)
    (entry,) = worker.handle()
    assert (entry.kind, entry.rests_on) == (DecisionKind.VERDICT, 0)
    Worker(store).run(Create("new"))
    worker.settle()
    assert worker.status(add) is CommandStatus.SUCCESS
    assert_history_is_whole(store, "new")


def test_verdict_between_streams_of_one_batch_is_not_stale(store: MemoryEventStore, worker: Worker) -> None:
    worker.run(
        Add("x"), SetTotal("x", total=1), Add("x"),
        SetTotal("x", total=2), Add("x"),
    )  # fmt: skip
    assert worker.committer.conflicts == 0


@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_verdict_on_a_stream_that_is_refused_is_decided_again(
    store: MemoryEventStore, worker: Worker, size: int
) -> None:
    nothing = SetTotal("x", id="nothing", total=1)
    refused = AddWithin("x", id="refused", limit=1)
    failed = FailUnless("x", id="failed", total=3)
    worker.send(Add("x", id="one"), nothing, refused, failed)
    assert [entry.kind.value for entry in worker.handle()] == ["stream", "verdict", "refusal", "verdict"]
    Worker(store).run(Add("x", id="rival", amount=-1))  # the total will be 0 after "one"
    while worker.entries:
        worker.commit(size)
    worker.settle()
    assert worker.answers["one"].value == 0
    assert worker.status(nothing) is CommandStatus.SUCCESS  # it has set the total to 1
    assert worker.status(refused) is CommandStatus.REFUSED
    assert worker.answers["refused"].error_fields == {"total": 1}
    assert "the total is 1" in worker.answers["failed"].error_message
    assert_history_is_whole(store, "x")
    assert_answers_are_final(store, worker.answers)


def test_refusal_on_a_stream_that_is_refused_in_an_earlier_batch_is_not_stored(
    store: MemoryEventStore, worker: Worker
) -> None:
    refused = AddWithin("x", id="refused", limit=1)
    worker.send(Add("x", id="one"), refused)
    worker.handle()
    Worker(store).run(Add("x", id="rival", amount=-1))
    worker.commit(1)
    worker.commit(1)
    assert store.find([("refused", "x")]) == {}
    worker.settle()
    assert worker.status(refused) is CommandStatus.SUCCESS


def test_refusal_behind_a_verdict_that_the_store_corrects_is_decided_again(
    store: MemoryEventStore, worker: Worker
) -> None:
    verdict = FailUnless("x", id="verdict", total=-9)
    refused = AddWithin("x", id="refused", limit=0, amount=5)
    worker.send(verdict, refused)
    assert worker.handle()[1].kind is DecisionKind.REFUSAL
    Worker(store).run(Add("x", id="rival", amount=-9), verdict)
    worker.commit(1)
    worker.settle()
    assert worker.status(refused) is CommandStatus.SUCCESS
    assert_history_is_whole(store, "x")


def test_stored_outcome_counts_more_than_a_verdict(store: MemoryEventStore, worker: Worker) -> None:
    command = FailUnless("x", id="c", total=9)
    worker.send(command, Add("x", id="next"))
    worker.handle()
    other = Worker(store)
    other.run(Add("x", id="nine", amount=9), command)
    worker.settle()
    assert worker.answers["c"] == other.answers["c"]
    assert worker.status(command) is CommandStatus.SUCCESS
    assert worker.answers["next"].value == 11
    assert_history_is_whole(store, "x")


def test_durable_refusal_that_rests_on_a_stale_head_is_decided_again(store: MemoryEventStore, worker: Worker) -> None:
    """A refusal has no version that the store's index could check, and would be final once it is stored."""
    add = AddWithin("x", id="c", limit=0)
    worker.send(add, Add("x", id="d"))
    refused, _ = worker.handle()
    assert (refused.kind, refused.rests_on) == (DecisionKind.REFUSAL, 1)
    Worker(store).run(SetTotal("x", id="rival", total=-9))
    worker.settle()
    assert worker.status(add) is CommandStatus.SUCCESS
    assert [record.version for record in store.find([("c", "x")]).values()] == [3]
    assert_history_is_whole(store, "x")
    assert_answers_are_final(store, worker.answers)


def test_refusals_between_own_streams_of_one_batch_are_not_stale(store: MemoryEventStore, worker: Worker) -> None:
    commands = [Add("x"), AddWithin("x", limit=0), Add("x")]
    worker.send(*commands)
    worker.handle()
    worker.settle()
    assert [worker.status(command) for command in commands] == [
        CommandStatus.SUCCESS,
        CommandStatus.REFUSED,
        CommandStatus.SUCCESS,
    ]
    assert worker.committer.conflicts == 0
