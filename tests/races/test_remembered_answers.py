"""Answers without a row: every worker that gets a copy of the command gives the same answer again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet

import pytest

from enode_django.bus.results import CommandResult, CommandStatus, decode_receipt, decode_result, encode_result
from enode_django.domain.messages import Command
from enode_django.equeue.messages import Commit
from enode_django.equeue.transports.memory import MemoryTransport
from enode_django.eventstore.memory import MemoryEventStore
from enode_django.exceptions import TransportUnavailable
from enode_django.serialization.codec import encode_command
from enode_django.serialization.plain import pack
from tests.races.counting import Add, AddSoftly, AddWithin, Create, FailUnless, SetTotal
from tests.races.harness import Worker as Rival
from tests.races.harness import assert_history_is_whole, commands_stored, versions
from tests.races.whole_worker import COMMANDS, GROUP, WholeWorker


class CountsCommits(MemoryTransport):
    """Records commits. With ``fails``, the next commit is stored, but its acknowledgement is lost. ``early`` are the
    answers that were sent before the queue remembered them."""

    def __init__(self) -> None:
        super().__init__()
        self.commits: list[Commit] = []
        self.fails = False
        self.early: list[bytes] = []

    def reply(self, replies: Sequence[tuple[str, bytes]]) -> None:
        remembered = {encode_result(decode_receipt(body).answer) for body in self.receipts(GROUP, COMMANDS, 0)}
        self.early += (body for _, body in replies if body not in remembered)
        super().reply(replies)

    def commit(self, group: str, topic: str, commits: Mapping[int, Commit]) -> AbstractSet[int]:
        self.commits += commits.values()
        refused = super().commit(group, topic, commits)
        if self.fails:
            self.fails = False
            raise TransportUnavailable("the connection was lost")
        return refused


class Setting:
    """One queue, one store, and the worker ``first``. The counter "x" is created, with the total 0."""

    def __init__(self) -> None:
        self.store = MemoryEventStore()
        self.transport = CountsCommits()
        for topic in (COMMANDS, "events"):
            self.transport.create_topic(topic, 1)
        self.inbox = self.transport.open_inbox()
        self.first = self.worker("first")
        self.other(Create("x"))

    def worker(self, owner: str, *gone: str, remember: int = 10, max_recent: int = 10) -> WholeWorker:
        return WholeWorker(self.transport, self.store, owner, remember=remember, max_recent=max_recent).take(*gone)

    def other(self, *commands: Command) -> None:
        """Execute commands by a worker of another queue."""
        Rival(self.store).run(*commands)

    def send(self, *commands: Command, awaited: bool = True) -> None:
        address = self.inbox.address if awaited else ""
        self.transport.send(COMMANDS, {0: [encode_command(command, b"", address) for command in commands]})

    def answers(self) -> list[CommandResult]:
        return [decode_result(body) for body in self.inbox.receive(0)]

    def execute(self, worker: WholeWorker, command: Command) -> CommandResult:
        self.send(command)
        worker.work()
        (answer,) = self.answers()
        return answer

    def receipts(self) -> list[CommandResult]:
        return [decode_receipt(body).answer for body in self.transport.receipts(GROUP, COMMANDS, 0)]

    def events(self) -> int:
        return sum(len(batch.bodies) for batch in self.transport.pull("events", {0: 0}, limit=1_000, wait=0))


@pytest.fixture
def setting() -> Setting:
    return Setting()


# A command, the error that answers it at the total 0, and a command after which it would succeed.
Case = tuple[Command, str, Command]
WITHOUT_ROW: dict[str, Case] = {
    "no aggregate": (Add("y", id="c"), "AggregateNotFound", Create("y")),
    "raises": (FailUnless("x", id="c", total=7), "LookupError", Add("x", amount=7)),
    "not now": (
        AddSoftly("x", id="c", limit=0),
        "races.NotNow",
        Add("x", amount=-9),
    ),
    "no change": (SetTotal("x", id="c", total=0), "", Add("x", amount=5)),
}


@pytest.fixture(params=list(WITHOUT_ROW))
def case(request: pytest.FixtureRequest) -> Case:
    return WITHOUT_ROW[request.param]


@pytest.mark.parametrize("released", [True, False], ids=["drained", "killed"])
def test_a_copy_that_meets_another_worker_gets_the_first_answer_and_takes_no_effect(
    setting: Setting, case: Case, released: bool
) -> None:
    command, error, change = case
    first = setting.execute(setting.first, command)
    assert (first.error is not None, first.error_type) == (bool(error), error)
    setting.other(change)
    if released:
        setting.first.consumer.abandon()
    second = setting.worker("second", *([] if released else ["first"]))
    before, published = versions(setting.store, command.aggregate_root_id), setting.events()
    assert setting.execute(second, command) == first
    assert setting.execute(second, command) == first
    third = setting.worker("third", "second")
    assert setting.execute(third, command) == first
    assert versions(setting.store, command.aggregate_root_id) == before
    assert setting.events() == published
    assert setting.receipts() == [first]


def test_a_copy_would_succeed_if_nothing_were_remembered(setting: Setting, case: Case) -> None:
    command, _, change = case
    forgetful = setting.worker("forgetful", "first", remember=0)
    assert setting.execute(forgetful, command).status is not CommandStatus.SUCCESS
    setting.other(change)
    assert setting.receipts() == []
    assert setting.execute(setting.worker("second", "forgetful"), command).status is CommandStatus.SUCCESS


def test_a_copy_after_a_death_between_commit_and_answer_gets_the_answer_that_was_not_given(
    setting: Setting, case: Case
) -> None:
    command, error, change = case
    setting.send(command)
    setting.first.publisher._commit = lambda: None  # it dies before its own commit …
    setting.first.work()  # … and after that of the timer
    assert setting.answers() == []
    setting.other(change)
    second = setting.worker("second", "first")
    assert second.work() == 0
    assert setting.execute(second, command).error_type == error
    assert setting.answers() == []


def test_an_answer_whose_commit_is_refused_is_neither_given_nor_remembered(setting: Setting, case: Case) -> None:
    command, _, change = case
    setting.send(command)
    finished, _ = setting.first.handle()
    setting.other(change)
    second = setting.worker("second", "first")
    setting.first.publisher.publish(finished)
    assert (setting.answers(), setting.receipts()) == ([], [])
    second.work()
    (answer,) = setting.answers()
    assert answer.status is CommandStatus.SUCCESS
    assert setting.first.consumer._windows[0].closed


def test_a_worker_that_lost_the_queue_and_has_it_again_gives_the_answer_of_the_one_between(setting: Setting) -> None:
    command = FailUnless("x", id="c", total=7)
    setting.send(command)
    finished, _ = setting.first.handle()  # the total is 0
    setting.other(Add("x"))
    between = setting.worker("between", "first")
    between.work()
    setting.first.publisher.publish(finished)
    (answer,) = setting.answers()
    assert answer.error_message == "the total is 1"
    setting.other(Add("x", amount=6))
    setting.first.take("between")
    assert setting.execute(setting.first, command) == answer


def test_a_copy_pulled_while_the_first_is_unfinished_gets_its_answer_with_it(setting: Setting, case: Case) -> None:
    command, error, change = case
    blocker = Add("x", id="blocker", amount=0)
    setting.send(blocker, command)
    finished, _ = setting.first.handle()
    setting.first.publisher.publish(finished[1:])  # waits for the one before
    setting.other(change)
    setting.send(command)
    setting.first.work()
    assert (setting.answers(), setting.receipts()) == ([], [])
    setting.first.publisher.publish(finished[:1])
    answers = [answer for answer in setting.answers() if answer.command_id == "c"]
    assert [answer.error_type for answer in answers] == [error, error]
    assert setting.receipts() == answers[:1]
    assert "c" not in commands_stored(setting.store, command.aggregate_root_id)


def test_a_copy_gets_the_first_answer_also_when_the_recent_commands_have_forgotten_it(
    setting: Setting, case: Case
) -> None:
    command, _, change = case
    forgetful = setting.worker("forgetful", "first", max_recent=2)
    first = setting.execute(forgetful, command)
    setting.send(*(Add("x", amount=0) for _ in range(5)), awaited=False)
    forgetful.work()
    setting.other(change)
    assert setting.execute(forgetful, command) == first
    assert_history_is_whole(setting.store, "x")


def test_one_commit_takes_all_answers_that_it_moves_past_and_no_other(setting: Setting) -> None:
    nothing = [SetTotal("x", id=f"{n}", total=0) for n in range(4)]
    setting.send(*nothing)
    finished, _ = setting.first.handle()
    setting.first.publisher.publish([finished[0], finished[1], finished[3]])
    assert [[receipt.offset for receipt in commit.receipts] for commit in setting.transport.commits] == [[0, 1]]
    assert [answer.command_id for answer in setting.answers()] == ["0", "1"]
    setting.first.publisher.publish([finished[2]])
    assert [[receipt.offset for receipt in commit.receipts] for commit in setting.transport.commits[1:]] == [[2, 3]]
    assert [answer.command_id for answer in setting.receipts()] == ["0", "1", "2", "3"]


def test_no_answer_goes_out_before_it_is_remembered_though_the_timer_commits_first(
    setting: Setting, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The timer commits at the moment when the window has moved."""
    window = setting.first.consumer._windows[0]
    finish_many = window.finish_many

    def finish_many_and_commit(offsets: Sequence[int]) -> None:
        finish_many(offsets)
        setting.first.consumer.commit()

    monkeypatch.setattr(window, "finish_many", finish_many_and_commit)
    setting.send(*(SetTotal("x", id=f"{n}", total=0) for n in range(3)))
    setting.first.work()
    assert len(setting.transport.commits) == 1
    assert [answer.command_id for answer in setting.answers()] == ["0", "1", "2"]
    assert setting.transport.early == []


def test_a_commit_whose_acknowledgement_was_lost_remembers_each_answer_once(setting: Setting) -> None:
    setting.send(SetTotal("x", id="0", total=0))
    setting.transport.fails = True
    with pytest.raises(TransportUnavailable):
        setting.first.work()
    assert setting.answers() == []
    setting.send(SetTotal("x", id="1", total=0))
    setting.first.work()
    assert [answer.command_id for answer in setting.answers()] == ["0", "1"]
    assert [answer.command_id for answer in setting.receipts()] == ["0", "1"]


def test_what_has_a_row_or_nobody_waits_for_costs_no_receipt(setting: Setting) -> None:
    setting.send(Add("x"), AddWithin("x", limit=0))
    setting.send(Add("nobody"), SetTotal("x", total=1), awaited=False)
    setting.first.work()
    assert len(setting.answers()) == 2
    assert [commit.receipts for commit in setting.transport.commits] == [[]]


def test_an_outcome_that_nobody_heard_of_may_be_decided_anew(setting: Setting) -> None:
    command = Add("y", id="c")
    setting.send(command, awaited=False)
    setting.first.work()
    setting.other(Create("y"))
    assert setting.execute(setting.worker("second", "first"), command).status is CommandStatus.SUCCESS


def test_a_repeat_that_is_the_first_to_be_answered_is_remembered(setting: Setting) -> None:
    command = Add("y", id="c")
    setting.send(command, awaited=False)
    setting.first.work()
    first = setting.execute(setting.first, command)
    setting.other(Create("y"))
    assert setting.execute(setting.worker("second", "first"), command) == first


@pytest.mark.parametrize("taken_over", [False, True])
def test_the_oldest_answer_is_forgotten_first(setting: Setting, taken_over: bool) -> None:
    worker = setting.worker("short", "first", remember=2, max_recent=2)
    commands = [Add("y", id=f"{n}") for n in range(3)]
    answers = [setting.execute(worker, command) for command in commands]
    assert setting.receipts() == answers[1:]
    setting.other(Create("y"))
    if taken_over:
        worker = setting.worker("second", "short", remember=2)
    assert [setting.execute(worker, command) for command in commands[1:]] == answers[1:]
    assert setting.execute(worker, commands[0]).status is CommandStatus.SUCCESS


def test_the_same_command_id_on_another_aggregate_is_another_command(setting: Setting) -> None:
    failed = setting.execute(setting.first, Add("y", id="c"))
    second = setting.worker("second", "first")
    assert setting.execute(second, Add("x", id="c")).status is CommandStatus.SUCCESS
    assert setting.execute(second, Add("y", id="c")) == failed


def test_a_command_that_failed_for_its_unknown_type_stays_failed_when_the_type_is_known(setting: Setting) -> None:
    body = pack((1, "races.Later", "c", "x", {}, b"", setting.inbox.address))
    setting.transport.send(COMMANDS, {0: [body]})
    setting.first.work()
    (first,) = setting.answers()
    assert first.error_type == "UnknownMessageType"

    class Later(Command):
        type_name = "races.Later"

    setting.transport.send(COMMANDS, {0: [body]})
    second = setting.worker("second", "first")
    assert second.work() == 0
    assert setting.answers() == [first]


def test_garbage_under_the_ids_of_a_command_does_not_speak_for_the_command(setting: Setting) -> None:
    garbage = pack((9, "races.Add", "c", "x", {}, b"", setting.inbox.address))
    setting.transport.send(COMMANDS, {0: [garbage]})
    setting.first.work()
    assert [answer.error_type for answer in setting.answers()] == ["MalformedMessage"]
    assert setting.receipts() == []
    second = setting.worker("second", "first")
    assert setting.execute(second, Add("x", id="c")).status is CommandStatus.SUCCESS
