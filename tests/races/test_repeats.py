"""A command that comes twice: at any distance, after any outcome."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from enode_django.bus.results import CommandStatus, Crash
from enode_django.commanding.dead_letters import answered_keys, crashed_among, letters_of
from enode_django.commanding.decisions import DecisionKind
from enode_django.commanding.publisher import answer_of
from enode_django.domain.messages import Command
from enode_django.eventstore.dead_letters import key_of
from enode_django.eventstore.memory import MemoryEventStore
from enode_django.eventstore.positions import FIRST
from tests.races.counting import Add, AddSoftly, AddWithin, Create, FailUnless, SetTotal
from tests.races.harness import Worker, assert_answers_are_final, assert_history_is_whole, commands_stored


@pytest.fixture
def store() -> MemoryEventStore:
    return MemoryEventStore()


@pytest.fixture
def worker(store: MemoryEventStore) -> Worker:
    worker = Worker(store)
    worker.run(Create("x"))
    return worker


REPEATED: list[Callable[[], Command]] = [
    lambda: Add("x", id="c", amount=5),
    lambda: AddWithin("x", id="c", limit=-1),
    lambda: AddSoftly("x", id="c", limit=-1),
    lambda: FailUnless("x", id="c", total=-1),
    lambda: SetTotal("x", id="c", total=0),
    lambda: Create("x", id="c"),
    lambda: Create("new", id="c"),
    lambda: Add("missing", id="c"),
]


@pytest.mark.parametrize("make", REPEATED)
@pytest.mark.parametrize("distance", ["same batch", "next batch, not stored yet", "delivered later", "other command"])
def test_repeat_gets_the_same_answer_and_takes_no_effect(
    store: MemoryEventStore, worker: Worker, make: Callable[[], Command], distance: str
) -> None:
    worker.send(make())
    if distance == "same batch":
        worker.send(make())
        worker.handle()
    elif distance == "next batch, not stored yet":
        worker.handle()
        worker.send(make())
        worker.handle()
        worker.commit(1)
    else:
        worker.settle()
        if distance == "other command":
            worker.run(Add("x", id="between"))
        worker.send(make())
    worker.settle()
    assert len([one for one in worker.finished if one.envelope.id == "c"]) == 2
    assert worker.answers["c"]  # the two are equal
    assert worker.committer.conflicts == 0
    assert_history_is_whole(store, "x")
    assert_answers_are_final(store, worker.answers)
    assert worker.in_flight == 0


@pytest.mark.parametrize("make", REPEATED[:2])
def test_stored_outcome_is_repeated_by_a_worker_that_never_saw_the_command(
    store: MemoryEventStore, worker: Worker, make: Callable[[], Command]
) -> None:
    (first,) = worker.run(make())
    worker.run(Add("x", id="between", amount=-100))  # now it would be decided otherwise
    assert Worker(store).run(make()) == [first]
    assert_history_is_whole(store, "x")


def test_repeat_after_its_memory_has_faded_is_caught_by_the_store(store: MemoryEventStore) -> None:
    forgetful = Worker(store, max_recent=2)
    forgetful.run(Create("x"))
    (first,) = forgetful.run(Add("x", id="c", amount=5))
    forgetful.run(*(Add("x", id=f"{n}") for n in range(5)))
    after = Add("x", id="after")
    again, subscription = forgetful.run(Add("x", id="c", amount=5), after)
    assert again == first
    assert forgetful.committer.conflicts == 1
    assert subscription.value == 11
    assert_history_is_whole(store, "x")
    assert_answers_are_final(store, forgetful.answers)


def test_both_copies_of_a_forgotten_command_in_one_batch_take_effect_once(store: MemoryEventStore) -> None:
    forgetful = Worker(store, max_recent=2)
    forgetful.run(Create("x"))
    command = Add("x", id="c", amount=5)
    forgetful.send(command, *(Add("x", id=f"{n}") for n in range(4)), command)
    assert [entry.kind for entry in forgetful.handle()] == [DecisionKind.STREAM] * 6
    forgetful.settle()
    assert commands_stored(store, "x")[1:] == ["c", "0", "1", "2", "3"]
    assert forgetful.answers["c"].version == 2
    assert_history_is_whole(store, "x")


@pytest.mark.parametrize("make", REPEATED)
def test_repeat_is_decided_once_when_original_and_repeat_are_recovered_together(
    store: MemoryEventStore, worker: Worker, make: Callable[[], Command]
) -> None:
    worker.send(Add("x", id="before"), make(), make())
    worker.handle()
    Worker(store).run(Add("x", id="rival"))
    worker.settle()
    assert len([one for one in worker.finished if one.envelope.id == "c"]) == 2
    assert worker.answers["c"]
    assert_history_is_whole(store, "x")
    assert_answers_are_final(store, worker.answers)
    assert worker.in_flight == 0


@pytest.mark.parametrize("make", REPEATED)
def test_repeat_of_a_finished_command_keeps_its_answer_through_a_recovery(
    store: MemoryEventStore, worker: Worker, make: Callable[[], Command]
) -> None:
    worker.run(make())
    worker.send(Add("x", id="before", amount=-50), make())
    if make().aggregate_root_id == "missing":
        worker.send(Create("missing", id="made"), make())
    worker.handle()
    Worker(store).run(Add("x", id="rival", amount=-7))
    worker.settle()
    assert worker.answers["c"]  # whatever the state has become
    assert_history_is_whole(store, "x")
    assert_answers_are_final(store, worker.answers)


def test_what_an_exception_ended_while_nobody_waited_is_decided_anew_once_it_is_finished(
    store: MemoryEventStore, worker: Worker
) -> None:
    """The command is a dead letter, and can be sent again from there. A copy that comes before it is finished has the
    same outcome."""

    def send(total: int) -> None:
        for envelope in worker.send(FailUnless("x", id="c", total=total)):
            envelope.reply_to = ""

    send(-1)
    send(0)
    worker.settle()
    first, copy = (one for one in worker.finished if one.envelope.id == "c")
    assert isinstance(first.result, Crash)
    assert "LookupError" in first.result.traceback
    assert copy.result == first.result
    send(0)
    worker.settle()
    assert worker.finished[-1].record is not None  # handled, and this time it did not fail
    assert_history_is_whole(store, "x")
    assert worker.in_flight == 0


@pytest.mark.parametrize("told", [0, 1], ids=["the first", "the copy"])
def test_a_crash_that_one_of_two_copies_is_answered_with_is_final(
    store: MemoryEventStore, worker: Worker, told: int
) -> None:
    """No further copy is decided again, whether the sender of the first or of the copy waits."""

    def send(total: int, reply_to: str = "") -> None:
        for envelope in worker.send(FailUnless("x", id="c", total=total)):
            envelope.reply_to = reply_to

    for number in range(2):
        send(-1, "inbox" if number == told else "")
    worker.settle()
    send(0, "inbox")
    send(0)
    worker.settle()
    finished = [one for one in worker.finished if one.envelope.id == "c"]
    assert [one.result for one in finished] == [finished[told].result] * 4
    assert [letter.is_answered for letter in letters_of(crashed_among(finished))] == [False] * told
    assert {*answered_keys(crashed_among(finished))} == {key_of("c", "x", b"")}
    assert commands_stored(store, "x")[1:] == []
    assert worker.in_flight == 0


def test_a_sender_that_is_told_of_its_own_mistake_is_noted_in_the_letter_of_an_earlier_copy(worker: Worker) -> None:
    """Otherwise the letter would be sent again with the same id, and the queue would only repeat the answer."""
    command = Add("missing", id="c")
    for reply_to in ("", "inbox"):
        for envelope in worker.send(command):
            envelope.reply_to = reply_to
        worker.settle()
    unanswered, told = (crashed_among([one]) for one in worker.finished if one.envelope.id == "c")
    assert ([letter.is_answered for letter in letters_of(unanswered)], answered_keys(unanswered)) == ([False], [])
    assert (letters_of(told), answered_keys(told)) == ([], [key_of("c", "missing", b"")])


def test_same_command_id_on_two_aggregates_is_two_commands(store: MemoryEventStore, worker: Worker) -> None:
    worker.run(Create("y"))
    for _ in range(2):
        worker.send(Add("x", id="c"), Add("y", id="c"))
    worker.settle()
    assert commands_stored(store, "x")[1:] == commands_stored(store, "y")[1:] == ["c"]


def test_refusal_and_success_of_one_command_exclude_each_other(store: MemoryEventStore, worker: Worker) -> None:
    command = AddWithin("x", id="c", limit=1)
    other = Worker(store)
    other.run(Add("x", id="one"))
    worker.send(command)
    worker.handle()  # for this worker the total is 0, so the command succeeds
    (refused,) = other.run(command)  # the other worker knows the total, and stores first
    worker.settle()
    assert refused.status is CommandStatus.REFUSED
    assert worker.answers["c"] == refused
    assert "c" not in commands_stored(store, "x")

    second = AddWithin("x", id="d", limit=1)
    third = Worker(store)
    third.send(second)
    third.handle()  # refused, not stored yet
    store.append(
        [store.load_many(["x"])["x"][1]._replace(version=3, command_id="d", command_type="races.AddWithin")]
    )  # somebody stored it as a success
    third.settle()
    assert third.answers["d"].status is CommandStatus.SUCCESS
    assert third.answers["d"].version == 3


@pytest.mark.parametrize("between", [False, True], ids=["alone", "the same id on another aggregate in between"])
def test_a_copy_before_the_first_is_answered_gets_its_answer_whatever_comes_between(
    store: MemoryEventStore, worker: Worker, between: bool
) -> None:
    """A command is named by its command id together with its aggregate root id."""
    worker.run(Create("y"))
    refused = AddSoftly("x", id="c", limit=-1)
    worker.send(refused)
    if between:
        worker.send(Add("y", id="c"))
    worker.send(SetTotal("x", total=-10), refused)
    worker.settle()
    answers = [answer_of(one) for one in worker.finished if one.envelope.aggregate_root_id == "x"]
    assert [answer.status for answer in answers if answer.command_id == "c"] == [CommandStatus.REFUSED] * 2
    assert "c" not in commands_stored(store, "x")


def test_a_recovery_forgets_only_its_own_aggregates_commands(store: MemoryEventStore, worker: Worker) -> None:
    worker.run(Create("y"))
    refused = AddSoftly("x", id="c", limit=-1)
    worker.send(refused, Add("y", id="c"))
    worker.handle()
    Worker(store).run(Add("y"))
    worker.settle()
    worker.send(SetTotal("x", total=-10), refused)
    worker.settle()
    answers = [answer_of(one) for one in worker.finished if one.envelope.aggregate_root_id == "x"]
    assert [answer.status for answer in answers if answer.command_id == "c"] == [CommandStatus.REFUSED] * 2


def test_a_row_that_was_found_before_a_failover_is_not_published_as_one_of_the_new_generation(
    store: MemoryEventStore,
) -> None:
    """The failover may have erased it, and subscribers would handle it."""
    create = Create("x", id="c")
    Worker(store).run(create)
    successor = Worker(store)
    successor.window.backlog_end = 1
    entries, left = successor.processor.take_stored(successor.send(create))
    assert left == []
    store.begin_generation(store.position().generation)
    (finished,) = successor.committer.commit(entries).finished
    assert finished.record is not None
    assert finished.generation == FIRST.generation < store.generation_of("x")
