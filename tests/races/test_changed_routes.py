"""Queues are added, hidden and shown. A command that was answered FAILED stays failed, whichever queue a copy is sent
to."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from enode_django.bus.results import CommandResult, CommandStatus, decode_result
from enode_django.commanding.mailbox_router import MailboxRouter
from enode_django.domain.messages import Command
from enode_django.equeue.producer import Producer
from enode_django.equeue.transports.memory import MemoryTransport
from enode_django.eventstore.memory import MemoryEventStore
from enode_django.processors.mailboxes import Mailboxes
from enode_django.processors.measuring import BatchMeter
from enode_django.processors.puller import Puller, ShardBacklogs
from enode_django.processors.statistics import Statistics
from enode_django.serialization.codec import encode_command
from tests.races.counting import Add, Create, SetTotal
from tests.races.harness import Worker as Rival
from tests.races.harness import commands_stored
from tests.races.whole_worker import COMMANDS, GROUP, WholeWorker

ROOTS = [f"root-{number}" for number in range(12)]


class Setting:
    """A topic that begins with two queues, and one worker for each of its queues."""

    def __init__(self) -> None:
        self.store = MemoryEventStore()
        self.transport = MemoryTransport()
        self.transport.create_topic(COMMANDS, 2)
        self.transport.create_topic("events", 1)
        self.producer = Producer(self.transport, refresh_after=0.0)
        self.inbox = self.transport.open_inbox()
        self.workers: list[WholeWorker] = []
        self.start_missing()

    def start_missing(self) -> None:
        for queue in range(len(self.workers), self.transport.queue_count(COMMANDS)):
            worker = WholeWorker(self.transport, self.store, f"worker-{queue}", remember=1_000, max_recent=2)
            self.workers.append(worker.take(queue=queue))

    def restart(self) -> None:
        """Bury all workers, and start new ones."""
        before, self.workers = self.workers, []
        for number, _ in enumerate(before):
            self.transport.bury(GROUP, COMMANDS, f"worker-{number}")
            self.transport.bury(GROUP, COMMANDS, f"again-{number}")
        for queue in range(self.transport.queue_count(COMMANDS)):
            worker = WholeWorker(self.transport, self.store, f"again-{queue}", remember=1_000, max_recent=2)
            self.workers.append(worker.take(queue=queue))

    def execute(self, *commands: Command) -> list[CommandResult]:
        address = self.inbox.address
        bodies = [(command.aggregate_root_id, encode_command(command, b"", address)) for command in commands]
        self.producer.send_batch(COMMANDS, bodies)
        for worker in self.workers:
            worker.work()
        return [decode_result(body) for body in self.inbox.receive(0)]

    def queue_of(self, key: str) -> int:
        before = self.transport.queues(COMMANDS)
        self.producer.send(COMMANDS, key, encode_command(SetTotal(key, total=0), b""))
        (queue,) = [queue for queue, state in self.transport.queues(COMMANDS).items() if state.end > before[queue].end]
        for worker in self.workers:
            worker.work()
        return queue


@pytest.fixture
def setting() -> Setting:
    return Setting()


def add_queues(setting: Setting) -> None:
    setting.transport.add_queues(COMMANDS, 5)
    setting.start_missing()


def hide(setting: Setting) -> None:
    setting.transport.show(COMMANDS, 0, to_producers=False)


def show(setting: Setting) -> None:
    setting.transport.show(COMMANDS, 0, to_producers=True)


def hide_and_show(setting: Setting) -> None:
    hide(setting)
    show(setting)


CHANGES: dict[str, Callable[[Setting], None]] = {"add": add_queues, "hide": hide, "hide and show": hide_and_show}


@pytest.mark.parametrize("restarted", [False, True], ids=["living", "restarted"])
@pytest.mark.parametrize("change", CHANGES)
def test_a_copy_of_a_failed_command_fails_as_before_in_another_queue(
    setting: Setting, change: str, restarted: bool
) -> None:
    commands = [Add(root, id=f"add-{root}") for root in ROOTS]
    failed = {answer.command_id: answer for answer in setting.execute(*commands)}
    assert {answer.status for answer in failed.values()} == {CommandStatus.FAILED}
    queues = [setting.queue_of(root) for root in ROOTS]
    CHANGES[change](setting)
    if restarted:
        setting.restart()
    if change != "hide and show":
        assert [setting.queue_of(root) for root in ROOTS] != queues
    Rival(setting.store).run(*(Create(root) for root in ROOTS))  # now they would succeed
    for _ in range(2):
        assert {answer.command_id: answer for answer in setting.execute(*commands)} == failed
    assert all(command.id not in commands_stored(setting.store, command.aggregate_root_id) for command in commands)


def test_the_pulling_thread_knows_the_answers_of_other_queues_before_it_passes_a_copy_on(setting: Setting) -> None:
    commands = [Add(root, id=f"add-{root}") for root in ROOTS]
    setting.execute(*commands)
    add_queues(setting)
    setting.producer.send_batch(
        COMMANDS, [(command.aggregate_root_id, encode_command(command, b"")) for command in commands]
    )
    passed_on, answered = [], []
    for worker in setting.workers:
        mailboxes = Mailboxes(MailboxRouter(1, 1), 1, 100_000)
        puller = Puller(
            worker.consumer,
            worker.intake,
            worker.remembered,
            mailboxes,
            [worker.processor],
            setting.store,
            backlogs=ShardBacklogs(1, 1_000),
            meter=BatchMeter(Statistics()),
            max_batch=100,
            progress=threading.Event(),
        )
        puller._pull_once()
        passed_on += mailboxes.commands[0].take(100, 0) or []
        answered += [one for item in mailboxes.finished.take(100, 0) or [] for one in item.items]
    assert passed_on == []
    assert {one.envelope.id for one in answered} == {command.id for command in commands}


def test_what_was_answered_in_between_is_known_when_the_queue_is_shown_again(setting: Setting) -> None:
    """The worker owned the queue all the time, and gets the same keys again."""
    setting.execute(*(SetTotal(root, total=0) for root in ROOTS))
    hide(setting)
    commands = [Add(root, id=f"add-{root}") for root in ROOTS]
    failed = {answer.command_id: answer for answer in setting.execute(*commands)}
    show(setting)
    Rival(setting.store).run(*(Create(root) for root in ROOTS))
    assert {answer.command_id: answer for answer in setting.execute(*commands)} == failed


def test_receipts_of_other_queues_are_loaded_once_for_each_route_and_never_for_the_first(setting: Setting) -> None:
    asked: list[int] = []
    receipts = setting.transport.receipts

    def counted(group: str, topic: str, queue: int) -> object:
        asked.append(queue)
        return receipts(group, topic, queue)

    setting.transport.receipts = counted  # type: ignore[method-assign,assignment]
    setting.execute(*(Add(root) for root in ROOTS))
    setting.execute(*(Add(root) for root in ROOTS))
    assert sorted(asked) == [0, 1], "each its own"
    hide(setting)
    asked.clear()
    for _ in range(3):
        setting.execute(*(Add(root) for root in ROOTS))
    assert sorted(asked) == [0, 1], "the worker of the queue that is left, those of both"


STEPS = st.lists(st.sampled_from(["add", "hide", "show", "restart", "execute", "execute", "create"]), max_size=12)


@settings(max_examples=60, deadline=None)
@given(STEPS, st.lists(st.sampled_from(ROOTS[:4]), min_size=1, max_size=4, unique=True))
def test_no_command_is_answered_twice_in_different_ways(steps: list[str], roots: list[str]) -> None:
    setting, answers = Setting(), {}
    commands = [Add(root, id=f"add-{root}") for root in roots]
    for step in [*steps, "create", "execute"]:
        if step == "add":
            setting.transport.add_queues(COMMANDS, setting.transport.queue_count(COMMANDS) + 1)
            setting.start_missing()
        elif step in ("hide", "show"):
            setting.transport.show(COMMANDS, 0, to_producers=step == "show")
        elif step == "restart":
            setting.restart()
        elif step == "create":
            Rival(setting.store).run(*(Create(root) for root in roots))
        else:
            for answer in setting.execute(*commands):
                assert answers.setdefault(answer.command_id, answer) == answer
