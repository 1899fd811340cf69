"""The last step: answer, publish, move the window. After a crash between these, they are repeated, and nothing is
lost."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest

from enode_django.bus.addresses import reply_address
from enode_django.bus.messages import decode_published
from enode_django.bus.results import CommandResult, decode_result, failure
from enode_django.commanding.decisions import Envelope, Finished
from enode_django.commanding.publisher import EventPublisher
from enode_django.commanding.remembered_answers import RememberedAnswers
from enode_django.concurrency.backoff import once
from enode_django.equeue.consumer.queue_consumer import QueueConsumer
from enode_django.equeue.offsets import OffsetWindow
from enode_django.equeue.producer import Producer
from enode_django.equeue.transports.memory import MemoryInbox, MemoryTransport
from enode_django.eventstore.memory import MemoryEventStore
from enode_django.exceptions import TransportUnavailable
from tests.races.counting import Add, AddWithin, Create, SetTotal
from tests.races.harness import Clock, Worker


class Flaky(MemoryTransport):
    """Logs its calls. A call that is named in ``fails`` is done, and raises `TransportUnavailable`, once for each time
    that it is named."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(clock=clock)
        self.log: list[str] = []
        self.fails: list[str] = []

    def _do(self, name: str, call: Callable[[], Mapping[int, int] | None]) -> Mapping[int, int]:
        self.log.append(name)
        if name in self.fails:
            self.fails.remove(name)
            call()
            raise TransportUnavailable("the connection was lost")
        return call() or {}

    def send(self, topic: str, bodies: Mapping[int, Sequence[bytes]], **options: Any) -> Mapping[int, int]:
        return self._do(topic, lambda: super(Flaky, self).send(topic, bodies, **options))

    def reply(self, replies: Sequence[tuple[str, bytes]]) -> None:
        self._do("reply", lambda: super(Flaky, self).reply(replies))


class Setting:
    def __init__(self) -> None:
        self.clock = Clock()
        self.transport = Flaky(self.clock)
        self.transport.create_topic("commands", 1)
        self.consumer = QueueConsumer(
            self.transport, group="g", topic="commands", owner="w", lease=10, keep_receipts=10, clock=self.clock
        )
        self.consumer.assign([0])
        ((self.window, _, _),) = self.consumer.acquire_missing()
        self.remembered = RememberedAnswers(10, self.consumer.receipts)
        self.remembered.of(self.window)
        self.publisher = EventPublisher(
            self.transport,
            Producer(self.transport, queues=2),
            self.remembered,
            event_topic="events",
            command_topic="commands",
            persist=once,
            commit=self.commit,
        )
        self.inbox: MemoryInbox = self.transport.open_inbox()
        self.worker = Worker(MemoryEventStore(), clock=self.clock)

    def commit(self) -> None:
        self.transport.log.append("commit")
        self.consumer.commit()

    def finish(self, *commands: Add | AddWithin | Create | SetTotal) -> list[Finished]:
        """Return the outcomes of these commands on the write path, as if this worker had pulled them."""
        before = len(self.worker.finished)
        self.worker.window = self.window
        for envelope in self.worker.send(*commands):
            envelope.reply_to = self.inbox.address
        self.worker.settle()
        return self.worker.finished[before:]

    def answers(self) -> list[CommandResult]:
        return [decode_result(body) for body in self.inbox.receive(0)]

    def events(self) -> list[tuple[str, int | None]]:
        pulled = self.transport.pull("events", {0: 0, 1: 0}, limit=1_000, wait=0)
        records = [decode_published(body).record for batch in pulled for body in batch.bodies]
        return [(record.command_id, record.version) for record in records]


@pytest.fixture
def setting() -> Setting:
    return Setting()


def outcomes(setting: Setting) -> list[Finished]:
    return setting.finish(
        Create("x", id="0"),
        SetTotal("x", id="1", total=0),
        Add("x", id="2"),
        AddWithin("x", id="3", limit=0),
    )


def test_stored_outcomes_are_answered_first_others_after_the_offset_has_moved(setting: Setting) -> None:
    setting.publisher.publish(outcomes(setting))
    assert setting.transport.log == ["reply", "events", "commit", "reply"]
    assert [answer.command_id for answer in setting.answers()] == ["0", "2", "3", "1"]
    assert setting.events() == [("0", 1), ("2", 2), ("3", None)]
    assert setting.window.committed == 4
    assert setting.publisher.waiting == 0


def test_unstored_answer_waits_for_the_commands_before_it(setting: Setting) -> None:
    finished = outcomes(setting)
    setting.publisher.publish(finished[1:])
    assert [answer.command_id for answer in setting.answers()] == ["2", "3"]
    assert (setting.publisher.waiting, setting.window.committed) == (1, 0)
    setting.publisher.publish(finished[:1])
    assert [answer.command_id for answer in setting.answers()] == ["0", "1"]
    assert (setting.publisher.waiting, setting.window.committed) == (0, 4)


def test_unstored_answer_is_not_given_when_the_queue_was_lost(setting: Setting) -> None:
    finished = outcomes(setting)
    setting.clock.now += 11
    rival = QueueConsumer(setting.transport, group="g", topic="commands", owner="r", lease=10, clock=setting.clock)
    rival.assign([0])
    assert [acquired.previous_owner for acquired in rival.acquire_missing()] == ["w"]
    setting.publisher.publish(finished)  # the commit is refused
    assert [answer.command_id for answer in setting.answers()] == ["0", "2", "3"]
    assert setting.window.closed
    assert setting.publisher.waiting == 0
    assert setting.transport.committed("g", "commands") == {0: 0}


@pytest.mark.parametrize("step", ["reply", "events"])
def test_failure_of_a_step_leaves_the_window_where_it_was(setting: Setting, step: str) -> None:
    finished = outcomes(setting)
    setting.transport.fails = [step]
    with pytest.raises(TransportUnavailable):
        setting.publisher.publish(finished)
    assert (setting.window.committable, setting.window.committed) == (0, 0)
    setting.answers()
    setting.publisher.publish(finished)
    assert setting.window.committed == 4
    assert [answer.command_id for answer in setting.answers()] == ["0", "2", "3", "1"]
    assert list(dict.fromkeys(setting.events())) == [("0", 1), ("2", 2), ("3", None)]


def test_nobody_waiting_means_no_reply_and_nothing_kept(setting: Setting) -> None:
    finished = outcomes(setting)
    for one in finished:
        one.envelope.reply_to = ""
    setting.publisher.publish(finished)
    assert setting.transport.log == ["events"]
    assert (setting.publisher.waiting, setting.window.committable) == (0, 4)


def test_streams_of_many_batches_are_published_in_order(setting: Setting) -> None:
    setting.publisher.publish(setting.finish(Create("x"), Create("y")))
    for n in range(10):
        adds = [Add(id, id=f"{id}{n}") for id in "xy"]
        setting.publisher.publish(setting.finish(*adds))
    for id in "xy":
        versions = [version for command, version in setting.events() if command.startswith(id)]
        assert versions == list(range(2, 12))


def test_answers_of_a_window_that_is_none_are_given_at_once(setting: Setting) -> None:
    envelope = Envelope("c", "x", "t", None, reply_to=setting.inbox.address)
    assert envelope.window is None
    setting.publisher.publish([Finished(envelope, None, failure("c", "x", KeyError("k")))])
    assert [answer.error_type for answer in setting.answers()] == ["KeyError"]
    assert isinstance(setting.window, OffsetWindow)


# -- senders that wait until the events are handled -------------------------------------------------------------------


def asked_for(finished: Sequence[Finished], reply_to: str) -> Sequence[Finished]:
    for one in finished:
        one.envelope.reply_to = reply_to
    return finished


def published_addresses(setting: Setting) -> dict[str, list[str]]:
    """Return the reply addresses of the published streams, the oldest first, by command id."""
    addresses: dict[str, list[str]] = {}
    for batch in setting.transport.pull("events", {0: 0, 1: 0}, limit=1_000, wait=0):
        for record, reply_to, _ in map(decode_published, batch.bodies):
            addresses.setdefault(record.command_id, []).append(reply_to)
    return addresses


def test_streams_of_commands_that_are_only_executed_carry_no_address(setting: Setting) -> None:
    setting.publisher.publish(asked_for(outcomes(setting), setting.inbox.address))
    assert published_addresses(setting) == {"0": [""], "2": [""], "3": [""]}
    assert len(setting.answers()) == 4


def test_streams_of_commands_waited_for_carry_the_inbox_and_are_answered_there(setting: Setting) -> None:
    inbox = setting.inbox.address
    setting.publisher.publish(asked_for(outcomes(setting), reply_address(inbox, handling=True)))
    assert published_addresses(setting) == {"0": [inbox], "2": [inbox], "3": [inbox]}
    assert [answer.command_id for answer in setting.answers()] == ["0", "2", "3", "1"]
