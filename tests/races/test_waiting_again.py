"""A command that comes again is answered from the store, and published again with the address of the new sender."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from enode_django.bus.messages import PublishedStream, decode_published
from enode_django.bus.notices import Notice, encode_notice
from enode_django.eventstore.memory import MemoryEventStore
from tests.races.counting import Add, Create
from tests.races.whole_worker import WholeWorker
from tests.unit.commanding.desk import BOTH, SOON, Desk

Make = Callable[[str], WholeWorker]


@pytest.fixture
def desk() -> Iterator[Desk]:
    desk = Desk()
    yield desk
    desk.close()


@pytest.fixture
def make(desk: Desk) -> Make:
    """A function that makes a worker of one queue and one store, given the name of the owner."""
    store = MemoryEventStore()
    return lambda owner: WholeWorker(desk.transport, store, owner, max_recent=2)


def published(desk: Desk) -> list[PublishedStream]:
    pulled = desk.transport.pull("events", {0: 0}, limit=1_000, wait=0)
    return [decode_published(body) for batch in pulled for body in batch.bodies]


def follow(desk: Desk, stream: PublishedStream) -> None:
    """Send the notices that all subscribers send, whether they handle the stream now or skip it."""
    assert stream.reply_to
    notices = [Notice(stream.record.command_id, stream.record.aggregate_root_id, name) for name in BOTH]
    desk.transport.reply([(stream.reply_to, encode_notice(notice)) for notice in notices])


def execute_first(desk: Desk, worker: WholeWorker, command: Add) -> None:
    desk.ask(Create("x"), handled=False)
    asked = desk.ask(command, handled=False)
    worker.work()
    assert asked.future.result(SOON).version == 2


def execute_again(desk: Desk, worker: WholeWorker, command: Add) -> None:
    """Execute a command that the subscribers have handled: the second message names the new sender."""
    asked = desk.ask(command)
    worker.work()
    stream = published(desk)[-1]
    assert (stream.record.command_id, stream.record.version) == (command.id, 2)
    desk.settle()
    assert not asked.future.done()
    follow(desk, stream)
    result = asked.future.result(SOON)
    assert (result.version, result.event_types, result.parked) == (2, ("races.Added",), ())


def test_repeat_that_the_worker_remembers(desk: Desk, make: Make) -> None:
    worker, command = make("w").take(), Add("x")
    execute_first(desk, worker, command)
    execute_again(desk, worker, command)


def test_repeat_that_the_worker_has_forgotten(desk: Desk, make: Make) -> None:
    worker, command = make("w").take(), Add("x")
    execute_first(desk, worker, command)
    for _ in range(4):
        desk.ask(Add("x"), handled=False)
        worker.work()
    execute_again(desk, worker, command)


def test_repeat_that_another_worker_finds_in_the_store_when_it_takes_over(desk: Desk, make: Make) -> None:
    worker, command = make("dead").take(), Add("x")
    execute_first(desk, worker, command)
    asked = desk.ask(command)
    finished, _ = worker.handle()
    assert [one.envelope.id for one in finished] == [command.id]
    heir = make("heir").take("dead")  # it died before it published
    assert heir.work() == 0
    follow(desk, published(desk)[-1])
    assert asked.future.result(SOON).version == 2


def test_message_that_is_published_twice_leads_to_the_same_notices_twice_and_does_no_harm(
    desk: Desk, make: Make
) -> None:
    worker, command = make("dead").take(), Add("x")
    created = desk.ask(Create("x"), handled=False)
    asked = desk.ask(command)
    worker.publisher.publish(worker.handle()[0])  # it died before it committed its offset
    make("heir").take("dead").work()
    streams = [stream for stream in published(desk) if stream.record.command_id == command.id]
    assert len(streams) == 2
    for stream in streams:
        follow(desk, stream)
    assert (created.future.result(SOON).version, asked.future.result(SOON).version) == (1, 2)
    desk.settle()
    assert desk.remembered == 0
