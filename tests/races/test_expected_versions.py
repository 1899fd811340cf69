"""A command with an expected version is handled on that version, or is refused."""

from __future__ import annotations

import pytest

from enode_django.bus.results import CommandResult, CommandStatus, decode_result
from enode_django.commanding.decisions import DecisionKind
from enode_django.equeue.transports.memory import MemoryTransport
from enode_django.eventstore.memory import MemoryEventStore
from enode_django.serialization.codec import encode_command
from tests.races.counting import Add, AddText, Create, SetTotal
from tests.races.harness import Worker, assert_history_is_whole, commands_stored, versions
from tests.races.whole_worker import COMMANDS, WholeWorker


@pytest.fixture
def store() -> MemoryEventStore:
    return MemoryEventStore()


@pytest.fixture
def worker(store: MemoryEventStore) -> Worker:
    worker = Worker(store)
    worker.run(Create("x"))
    return worker


@pytest.fixture
def rival(store: MemoryEventStore, worker: Worker) -> Worker:
    return Worker(store)


def add(id: str) -> Add:
    return Add("x", id=id)


def assert_refused(answer: CommandResult, expected: int, version: int) -> None:
    assert (answer.status, answer.error_type) == (CommandStatus.REFUSED, "enode.VersionMismatch")
    assert answer.error_fields == {"expected_version": expected, "version": version}
    assert answer.error_message == (
        f"'x' has the version {version}, not {expected}; look at it as it is now, and send another command"
    )


def test_a_command_is_handled_on_the_expected_version_and_refused_on_any_other(
    store: MemoryEventStore, worker: Worker
) -> None:
    (done,) = worker.run(add("right"), expected_version=1)
    (late,) = worker.run(add("late"), expected_version=1)
    (early,) = worker.run(add("early"), expected_version=3)
    assert (done.status, done.version) == (CommandStatus.SUCCESS, 2)
    assert_refused(late, 1, 2)
    assert_refused(early, 3, 2)
    assert commands_stored(store, "x")[1:] == ["right"]


@pytest.mark.parametrize("first", [True, False])
def test_version_zero_is_that_of_an_aggregate_that_does_not_exist(worker: Worker, first: bool) -> None:
    id = "new" if first else "x"
    (answer,) = worker.run(Create(id, id="c"), expected_version=0)
    if first:
        assert (answer.status, answer.version) == (CommandStatus.SUCCESS, 1)
    else:
        assert_refused(answer, 0, 1)


def test_one_of_two_commands_that_expect_the_same_version_takes_effect(worker: Worker) -> None:
    worker.send(add("one"), add("two"), expected_version=1)
    assert [entry.kind for entry in worker.handle()] == [DecisionKind.STREAM, DecisionKind.REFUSAL]
    worker.settle()
    assert worker.answers["one"].status is CommandStatus.SUCCESS
    assert_refused(worker.answers["two"], 1, 2)


def test_what_is_not_stored_yet_counts(store: MemoryEventStore, worker: Worker) -> None:
    worker.send(add("one"), expected_version=1)
    worker.send(add("two"), expected_version=2)
    worker.settle()
    assert commands_stored(store, "x")[1:] == ["one", "two"]


def test_a_command_that_somebody_else_forestalled_is_refused(
    store: MemoryEventStore, worker: Worker, rival: Worker
) -> None:
    worker.send(add("mine"), expected_version=1)
    worker.handle()  # on version 1, as it should
    rival.run(add("theirs"))
    worker.settle()
    assert_refused(worker.answers["mine"], 1, 2)
    assert commands_stored(store, "x")[1:] == ["theirs"]
    assert_history_is_whole(store, "x")


def test_a_state_that_was_overtaken_refuses_nothing(store: MemoryEventStore, worker: Worker, rival: Worker) -> None:
    rival.run(add("theirs"))
    worker.send(add("mine"), expected_version=2)
    assert [entry.kind for entry in worker.handle()] == [DecisionKind.REFUSAL]
    worker.settle()
    assert worker.answers["mine"].status is CommandStatus.SUCCESS
    assert commands_stored(store, "x")[1:] == ["theirs", "mine"]


def test_what_builds_on_a_lost_stream_is_decided_anew(store: MemoryEventStore, worker: Worker, rival: Worker) -> None:
    worker.send(AddText("x", id="huge", text="x" * 9_000))
    worker.send(add("next"), expected_version=2)
    worker.send(add("after"), expected_version=3)
    worker.handle()
    rival.run(add("theirs"), add("theirs too"))
    worker.settle()
    assert commands_stored(store, "x")[1:] == ["theirs", "theirs too", "huge"]
    assert_refused(worker.answers["next"], 2, 4)
    assert_refused(worker.answers["after"], 3, 4)


def test_a_repeat_of_what_succeeded_succeeds_also_when_nobody_remembers_it(
    store: MemoryEventStore, worker: Worker
) -> None:
    (first,) = worker.run(add("once"), expected_version=1)
    assert worker.run(add("once"), expected_version=1) == [first]
    forgetful = Worker(store)
    assert forgetful.run(add("once"), expected_version=1) == [first]
    assert versions(store, "x") == [1, 2]


def test_a_refusal_is_final_whatever_the_version_is_later(store: MemoryEventStore, worker: Worker) -> None:
    (refused,) = worker.run(add("early"), expected_version=2)
    assert_refused(refused, 2, 1)
    worker.run(add("other"))
    assert worker.run(add("early"), expected_version=2) == [refused]
    assert Worker(store).run(add("early"), expected_version=2) == [refused]
    assert Worker(store).run(add("early")) == [refused]


def test_what_changes_nothing_rests_on_the_expected_version(worker: Worker, rival: Worker) -> None:
    worker.send(SetTotal("x", id="same", total=0), expected_version=1)
    worker.handle()
    rival.run(add("theirs"))
    worker.settle()
    assert_refused(worker.answers["same"], 1, 2)


def test_the_expected_version_goes_with_the_message_from_worker_to_worker() -> None:
    transport, store = MemoryTransport(), MemoryEventStore()
    for topic in (COMMANDS, "events"):
        transport.create_topic(topic, 1)
    inbox = transport.open_inbox()
    bodies = [
        encode_command(Create("x"), b""),
        encode_command(add("right"), b"", inbox.address, 1),
        encode_command(add("wrong"), b"", inbox.address, 1),
    ]
    transport.send(COMMANDS, {0: bodies})
    first = WholeWorker(transport, store, "first").take()
    first.handle()  # it stores, and dies before it answers
    second = WholeWorker(transport, store, "second").take("first")
    assert second.work() == 0  # all were found in the store
    answers = [decode_result(body) for body in inbox.receive(0)]
    assert [answer.status for answer in answers] == [CommandStatus.SUCCESS, CommandStatus.REFUSED]
    assert_refused(answers[1], 1, 2)
