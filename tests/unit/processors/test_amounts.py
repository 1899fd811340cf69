"""A worker's memory follows from its settings, whatever the size of commands and events."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import pytest

import enode_django
from enode_django import AggregateRoot, CommandContext, DomainEvent, applies, command_handler
from enode_django.bus.messages import decode_published
from enode_django.conf import make_conf
from enode_django.conf.groups import Conf
from enode_django.equeue.transports.memory import MemoryTransport
from enode_django.eventstore.base import Appended, CommandKey, StreamRecord
from enode_django.eventstore.memory import MemoryEventStore
from enode_django.processors.mail import LOOKUP_BYTES
from enode_django.processors.pipeline import Pipeline
from enode_django.processors.statistics import Statistics
from enode_django.processors.wiring import make_pipeline
from enode_django.serialization.codec import encode_command, encode_stream
from tests.acceptance.waiting import wait_until

SOON = 60.0
EVENT, COMMANDS = 100_000, 200
CONF = make_conf(
    {"COMMANDS": {"MAILBOXES": 1, "MAX_UNFINISHED_BYTES": 1_000_000, "COPY_MAX_BYTES": 300_000, "RECENT_COMMANDS": 10}}
)


class Swell(enode_django.Command):
    """A small command. Its event has ``size`` bytes."""

    type_name = "amounts.Swell"
    size: int
    text: str = ""


class Swollen(DomainEvent):
    type_name = "amounts.Swollen"
    bytes: bytes


class Balloon(AggregateRoot):
    type_name = "amounts.Balloon"

    @applies(Swollen)
    def _swollen(self, event: Swollen) -> None:
        pass


@command_handler(Swell)
def swell(command: Swell, context: CommandContext) -> None:
    known = context.find(Balloon)
    balloon = known or Balloon(command.aggregate_root_id)
    balloon.apply(Swollen(bytes=bytes(command.size)))
    if known is None:
        context.add(balloon)


class Held(MemoryEventStore):
    """Stores nothing until it is let go; notes how many bytes it was given and asked for at once."""

    def __init__(self) -> None:
        super().__init__()
        self.goes = threading.Event()
        self.given: list[int] = []
        self.found: list[int] = []

    def append(self, records: Sequence[StreamRecord], *, doubtful: bool = False) -> Sequence[Appended]:
        assert self.goes.wait(SOON)
        self.given.append(sum(len(record.events) for record in records))
        return super().append(records, doubtful=doubtful)

    def find(self, keys: Iterable[CommandKey]) -> Mapping[CommandKey, StreamRecord]:
        found = super().find(keys)
        self.found.append(sum(len(record.events) for record in found.values()))
        return found


@contextmanager
def running(transport: MemoryTransport, store: MemoryEventStore, conf: Conf = CONF) -> Iterator[Pipeline]:
    pipeline = make_pipeline(conf, transport, store, owner="w", markers=[[0]], statistics=Statistics())
    pipeline.start()
    try:
        yield pipeline
    finally:
        pipeline.drain(SOON)
        pipeline.close(SOON)


@pytest.fixture
def transport() -> MemoryTransport:
    transport = MemoryTransport()
    transport.create_topic(CONF.COMMANDS.TOPIC, 1)
    transport.create_topic(CONF.SUBSCRIBERS.TOPIC, 1)
    transport.acquire("onlooker", CONF.COMMANDS.TOPIC, 0, "onlooker", 1)  # so that no command is deleted
    return transport


def send(transport: MemoryTransport, commands: Sequence[Swell]) -> None:
    transport.send(CONF.COMMANDS.TOPIC, {0: [encode_command(command, b"") for command in commands]})


def versions(transport: MemoryTransport) -> list[int | None]:
    pulled = transport.pull(CONF.SUBSCRIBERS.TOPIC, {0: 0}, limit=10_000, wait=0)
    return [decode_published(body).record.version for batch in pulled for body in batch.bodies]


def test_events_that_are_not_stored_are_no_more_than_their_limit(transport: MemoryTransport) -> None:
    store = Held()
    send(transport, [Swell("x", size=EVENT) for _ in range(COMMANDS)])
    with running(transport, store) as pipeline:
        (room,) = pipeline.mailboxes.rooms
        wait_until(lambda: room.is_full, "events of so many bytes wait")
        assert room.taken < CONF.COMMANDS.MAX_UNFINISHED_BYTES + EVENT + 1_000
        store.goes.set()
        wait_until(lambda: len(versions(transport)) == COMMANDS, "all are published")
        assert versions(transport) == list(range(1, COMMANDS + 1))
        wait_until(lambda: room.taken == 0, "all is given back")
    assert max(store.given) <= CONF.COMMANDS.COPY_MAX_BYTES
    assert max(store.given) > CONF.COMMANDS.COPY_MAX_BYTES // 2


def test_a_backlog_of_large_streams_is_looked_up_bit_by_bit(transport: MemoryTransport) -> None:
    store, commands = Held(), [Swell("x", size=EVENT) for _ in range(COMMANDS)]
    store.goes.set()
    send(transport, commands)
    with running(transport, store):
        wait_until(lambda: len(versions(transport)) == COMMANDS, "all are published")
    transport.set_offset(CONF.COMMANDS.CONSUMER_GROUP, CONF.COMMANDS.TOPIC, 0, 0)  # as if nothing had been committed
    store.found.clear()
    with running(transport, store) as pipeline:
        wait_until(lambda: len(versions(transport)) == 2 * COMMANDS, "all are published again")
        wait_until(lambda: pipeline.mailboxes.rooms[0].taken == 0, "all is given back")
    assert max(store.found) <= LOOKUP_BYTES
    assert sum(store.found) >= COMMANDS * EVENT


class Overtaken(MemoryEventStore):
    """Another writer is faster with the first event of each aggregate."""

    def append(self, records: Sequence[StreamRecord], *, doubtful: bool = False) -> Sequence[Appended]:
        events = encode_stream([Swollen(bytes=b"")])
        first = [record for record in records if record.version == 1]
        super().append([record._replace(command_id=f"rival {record.command_id}", events=events) for record in first])
        return super().append(records, doubtful=doubtful)


def test_events_that_are_decided_anew_do_not_count_towards_the_limit_any_more(transport: MemoryTransport) -> None:
    send(transport, [Swell(f"b{number}", size=EVENT) for number in range(30)])
    with running(transport, Overtaken()) as pipeline:
        wait_until(lambda: len(versions(transport)) == 30, "all commands are published")
        assert set(versions(transport)) == {2}
        wait_until(lambda: not pipeline.mailboxes.rooms[0].taken, "all room is given back")


def test_large_commands_count_for_several(transport: MemoryTransport) -> None:
    store = Held()
    conf = make_conf(
        {"COMMANDS": {"MAILBOXES": 1, "MAX_UNFINISHED": 100, "MAX_UNFINISHED_BYTES": 1_000_000, "PULL_MAX_BATCH": 2}}
    )
    send(transport, [Swell("x", size=1, text="x" * EVENT) for _ in range(COMMANDS)])
    with running(transport, store, conf) as pipeline:
        wait_until(lambda: pipeline.puller.paused() == {0}, "the queue pauses")
        assert (
            pipeline.consumer.unfinished <= conf.COMMANDS.MAX_UNFINISHED_BYTES // EVENT + conf.COMMANDS.PULL_MAX_BATCH
        )
        store.goes.set()
        wait_until(lambda: len(versions(transport)) == COMMANDS, "all are published")
