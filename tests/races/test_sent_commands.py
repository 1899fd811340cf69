"""Commands that a handler sends by its context are sent if, and only if, its events are stored. Wherever a worker ends,
the next one sends them, with the same ids."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from enode_django.bus.results import CommandStatus, decode_result, encode_result
from enode_django.commanding.publisher import answer_of
from enode_django.domain.metadata import Metadata
from enode_django.equeue.transports.memory import MemoryTransport
from enode_django.eventstore.base import StreamRecord
from enode_django.eventstore.memory import MemoryEventStore
from enode_django.serialization.codec import (
    WireCommand,
    decode_command,
    decode_metadata,
    encode_command,
    encode_metadata,
    sent_with,
)
from tests.races.counting import Add, AddAndSend, Create, SetTotal
from tests.races.harness import Worker, versions
from tests.races.whole_worker import COMMANDS, WholeWorker


class WorkerIsGone(BaseException):
    """Ends the worker's work: no code of the package catches it."""


class Ending(MemoryTransport):
    """Ends the worker at ``step``, a topic or ``"reply"``: after the step if ``is_done``, otherwise before it."""

    step, is_done = "", False

    def _end_at(self, name: str, *, is_done: bool) -> None:
        if (self.step, self.is_done) == (name, is_done):
            self.step = ""
            raise WorkerIsGone

    def send(self, topic: str, bodies: Mapping[int, Sequence[bytes]], **options: Any) -> Mapping[int, int]:
        self._end_at(topic, is_done=False)
        sent = super().send(topic, bodies, **options)
        self._end_at(topic, is_done=True)
        return sent

    def reply(self, replies: Sequence[tuple[str, bytes]]) -> None:
        self._end_at("reply", is_done=False)
        super().reply(replies)
        self._end_at("reply", is_done=True)


class Place:
    def __init__(self) -> None:
        self.store = MemoryEventStore()
        self.transport = Ending()
        self.transport.create_topic(COMMANDS, 1)
        self.transport.create_topic("events", 1)
        self.inbox = self.transport.open_inbox()

    def send(self, *commands: Any, metadata: Metadata | None = None) -> None:
        encoded = encode_metadata(metadata or Metadata())
        bodies = [encode_command(command, encoded, self.inbox.address) for command in commands]
        MemoryTransport.send(self.transport, COMMANDS, {0: bodies})

    def in_queue(self) -> list[WireCommand]:
        pulled = self.transport.pull(COMMANDS, {0: 0}, limit=1_000, wait=0)
        return [decode_command(body) for batch in pulled for body in batch.bodies]

    def total(self, id: str) -> int:
        worker = Worker(self.store)
        return int(worker.run(AddAndSend(id, to="nobody", count=0))[0].value) - 1


@pytest.fixture
def place() -> Place:
    place = Place()
    worker = Worker(place.store)
    worker.run(Create("x"), Create("y"))
    return place


def work(place: Place, owner: str = "one", *gone: str) -> None:
    worker = WholeWorker(place.transport, place.store, owner, max_bytes=100_000).take(*gone)
    for _ in range(3):  # first the waiting commands, then those they send; the third round has none
        worker.work()


STEPS = [("reply", False), ("reply", True), ("events", False), ("events", True), (COMMANDS, False), (COMMANDS, True)]


@pytest.mark.parametrize(("step", "is_done"), STEPS)
def test_a_worker_that_ends_between_storing_and_committing_is_followed_by_one_that_sends_the_same(
    place: Place, step: str, is_done: bool
) -> None:
    place.send(AddAndSend("x", to="y", count=3, id="c"))
    place.transport.step, place.transport.is_done = step, is_done
    with pytest.raises(WorkerIsGone):
        work(place)
    assert versions(place.store, "y") == [1]
    work(place, "two", "one")
    sent = place.in_queue()[1:]
    assert len({command.id for command in sent}) == 3
    assert sorted({command.fields["amount"] for command in sent}) == [1, 2, 3]
    assert place.total("y") == 6
    assert place.total("x") == 1


def test_a_worker_that_ends_after_the_events_are_stored_is_followed_by_one_that_sends(place: Place) -> None:
    place.send(AddAndSend("x", to="y", id="c"))
    finished, _ = WholeWorker(place.transport, place.store, "one").take().handle()
    assert [one.record is not None for one in finished] == [True]
    assert len(place.in_queue()) == 1
    work(place, "two", "one")
    assert place.total("y") == 1


def test_a_worker_that_ends_before_the_events_are_stored_has_sent_nothing(place: Place) -> None:
    place.send(AddAndSend("x", to="y", id="c"))
    worker = WholeWorker(place.transport, place.store, "one").take()
    ((window, offsets, bodies),) = worker.consumer.pull(100, 0)
    (entry,) = worker.processor.handle(worker.intake.receive(window, offsets, bodies).commands)
    assert entry.record is not None
    work(place, "two", "one")
    first, sent = place.in_queue()
    assert (first.id, sent.aggregate_root_id) == ("c", "y")
    assert [decode_command(body).id for _, body in sent_with(entry.record.events)] == [sent.id]


def stored(place: Place, id: str = "c", root: str = "x") -> StreamRecord:
    return place.store.find([(id, root)])[id, root]


def test_a_sent_command_carries_the_metadata_with_the_command_as_its_cause(place: Place) -> None:
    asked = Metadata(user_id="7", request="r", extra={"tenant": "north"})
    place.send(AddAndSend("x", to="y", id="c"), metadata=asked)
    work(place)
    _, sent = place.in_queue()
    found = decode_metadata(sent.metadata)
    assert found == Metadata(user_id="7", request="r", extra=asked.extra, correlation_id="c", causation_id="c")
    assert sent.reply_to == ""


def test_a_repeated_command_sends_the_same_and_is_answered_with_its_result(place: Place) -> None:
    command = AddAndSend("x", to="y", count=2, id="c")
    place.send(command)
    work(place)
    place.send(command)
    work(place, "two", "one")
    assert len(place.in_queue()) == 6
    assert len({one.id for one in place.in_queue()}) == 3
    assert place.total("y") == 3
    answers = [decode_result(body) for body in place.inbox.receive(0)]
    assert [(answer.status, answer.value) for answer in answers] == [(CommandStatus.SUCCESS, 1)] * 2


def test_a_command_decided_anew_sends_what_the_stored_decision_sends(place: Place) -> None:
    worker, rival = Worker(place.store), Worker(place.store)
    worker.run(SetTotal("x", total=0))
    rival.run(Add("x", amount=5))
    (answer,) = worker.run(AddAndSend("x", to="y", id="c"))
    assert answer.value == 6
    assert len(worker.finished[-1:]) == 1
    assert len(sent_with(stored(place).events)) == 1


@pytest.mark.parametrize("how", ["refused", "failed"])
def test_a_command_that_is_refused_or_fails_sends_nothing(place: Place, how: str) -> None:
    place.send(AddAndSend("x", to="y", how=how))
    work(place)
    assert len(place.in_queue()) == 1


def test_a_command_that_sends_without_an_event_fails_and_says_what_to_do(place: Place) -> None:
    worker = Worker(place.store)
    (answer,) = worker.run(AddAndSend("x", to="y", adds=False))
    assert (answer.status, answer.error_type) == (CommandStatus.FAILED, "DefinitionError")
    assert "sends commands with context.send() but applies no event" in answer.error_message


def test_commands_to_the_own_aggregate_come_after_the_one_being_handled(place: Place) -> None:
    place.send(AddAndSend("x", to="x", count=3, id="c"))
    work(place)
    assert versions(place.store, "x") == [1, 2, 3, 4, 5]
    assert place.total("x") == 7


def test_many_commands_are_sent_in_order(place: Place) -> None:
    place.send(AddAndSend("x", to="y", count=300))
    worker = WholeWorker(place.transport, place.store, "one", max_bytes=1_000_000).take()
    worker.work()
    sent = place.in_queue()[1:]
    assert [one.fields.get("amount", 1) for one in sent] == [*range(1, 301)]
    assert len({one.id for one in sent}) == 300


def test_commands_that_make_the_row_too_large_fail_the_command(place: Place) -> None:
    worker = Worker(place.store, max_bytes=1_000)
    (answer,) = worker.run(AddAndSend("x", to="y", text="x" * 1_000))
    assert answer.error_type == "MessageTooLarge"
    assert "the commands sent with them" in answer.error_message
    assert versions(place.store, "x") == [1]


def test_two_commands_with_one_id_send_different_ones(place: Place) -> None:
    worker = Worker(place.store)
    worker.run(AddAndSend("x", to="z", id="c"))
    worker.run(AddAndSend("y", to="z", id="c"))
    bodies = [body for root in "xy" for _, body in sent_with(stored(place, root=root).events)]
    assert len({decode_command(body).id for body in bodies}) == 2


def test_what_cannot_be_read_of_sent_commands_does_not_stop_the_publisher(
    place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    place.send(AddAndSend("x", to="y", id="c"))
    worker = WholeWorker(place.transport, place.store, "one").take()
    ((one,), _) = worker.handle()
    assert one.record is not None
    broken = one.record._replace(events=b"\x01" + one.record.events[-8:])
    worker.publisher.publish([one._replace(record=broken)])
    assert "what was sent with command 'c' cannot be read" in caplog.text
    assert len(place.in_queue()) == 1


def test_the_answer_of_a_stored_row_is_the_result_alone(place: Place) -> None:
    worker = Worker(place.store)
    worker.run(AddAndSend("x", to="y"))
    answer = answer_of(worker.finished[-1])
    assert decode_result(encode_result(answer)).value == 1
