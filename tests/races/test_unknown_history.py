"""A stored history that this process cannot read fails its aggregate's commands, and never holds up the mailbox."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import pytest

from enode_django.commanding.command_processor import CommandProcessor
from enode_django.commanding.context import CommandContext
from enode_django.commanding.decisions import Envelope
from enode_django.domain.handlers import HandlerTable
from enode_django.eventstore.memory import MemoryEventStore
from enode_django.exceptions import EnodeError
from enode_django.repository import loading
from tests.races.counting import Add, ApplyThenRaise, Counter, Create
from tests.races.harness import Worker, envelope

Value = TypeVar("Value")
TRIES = 20


def persist(call: Callable[[], Value]) -> Value:
    """Repeat a call as a worker does, but raise `AssertionError` after `TRIES` attempts."""
    for _ in range(TRIES):
        try:
            return call()
        except EnodeError as error:
            if not error.retriable:
                raise
    raise AssertionError("this is tried again for ever")


@pytest.fixture
def store() -> MemoryEventStore:
    """A store with a counter "newer", whose second stream has an event of an unknown type, and a counter "x"."""
    store = MemoryEventStore()
    Worker(store).run(Create("newer"), Add("newer"), Create("x"))
    record = list(store.load("newer"))[-1]
    store._streams["newer"][2] = record._replace(events=record.events.replace(b"races.Added", b"races.Newer"))
    return store


def processor(store: MemoryEventStore, handler: Callable[[Add, CommandContext], None]) -> CommandProcessor:
    table = HandlerTable()
    table.add(Add, handler)
    return CommandProcessor(
        loading.AggregateLoader(store), table, persist=persist, max_aggregates=10, max_recent=10, max_bytes=10_000
    )


def failure_of(processor: CommandProcessor, command: Envelope) -> str:
    (entry,) = processor.handle([command])
    assert entry.result is not None
    return entry.result.error_type


def test_handler_that_reads_an_unknown_history_fails(store: MemoryEventStore) -> None:
    def reads_another(command: Add, context: CommandContext) -> None:
        context.get(Counter, "newer")

    command = envelope(Add("x"))
    assert failure_of(processor(store, reads_another), command) == "UnknownMessageType"


def test_long_history_that_is_unknown_fails_its_commands(
    store: MemoryEventStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loading, "PORTION", 1)

    def never_called(command: Add, context: CommandContext) -> None:
        raise AssertionError("there is no aggregate to handle this with")

    command = envelope(Add("newer"))
    assert failure_of(processor(store, never_called), command) == "UnknownMessageType"


def test_history_that_became_unknown_fails_what_must_be_undone(store: MemoryEventStore) -> None:
    worker = Worker(store, persist=persist)
    worker.run(Add("x"))
    record = list(store.load("x"))[-1]
    store._streams["x"][2] = record._replace(events=record.events.replace(b"races.Added", b"races.Newer"))
    (answer,) = worker.run(ApplyThenRaise("x"))
    assert answer.error_type == "UnknownMessageType"
