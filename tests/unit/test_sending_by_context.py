"""`context.send` in inline(), in scenarios, and in the display of a stored stream."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from enode_django import (
    AggregateRoot,
    Command,
    CommandContext,
    CommandResult,
    DomainEvent,
    DomainException,
    Metadata,
    applies,
    command_handler,
    execute_command,
    metadata,
)
from enode_django.domain.origin import handled_command
from enode_django.eventstore.memory import MemoryEventStore
from enode_django.exceptions import DefinitionError, InvalidField
from enode_django.history.steps import Step
from enode_django.serialization.json_text import contents
from enode_django.signals import command_finished
from enode_django.testing import given, inline


class Ship(Command):
    type_name = "unit.Ship"
    to: str
    pieces: int = 1


class Take(Command):
    type_name = "unit.Take"
    pieces: int


class Shipped(DomainEvent):
    type_name = "unit.Shipped"


class Taken(DomainEvent):
    type_name = "unit.Taken"
    pieces: int


class NothingToShip(DomainException):
    type_name = "unit.NothingToShip"


class Crate(AggregateRoot):
    type_name = "unit.Crate"
    pieces: int = 0

    @applies(Shipped)
    def _shipped(self, event: Shipped) -> None: ...

    @applies(Taken)
    def _taken(self, event: Taken) -> None:
        self.pieces += event.pieces


@command_handler(Ship)
def ship(command: Ship, context: CommandContext) -> None:
    crate = context.find(Crate) or Crate(command.aggregate_root_id)
    context.send(Take(command.to, pieces=command.pieces))
    if command.pieces == 0:
        raise NothingToShip("there is nothing")
    crate.apply(Shipped())
    context.add(crate)
    context.set_result(context.send(Take(command.to, pieces=command.pieces)))


@command_handler(Take)
def take(command: Take, context: CommandContext) -> None:
    crate = context.find(Crate) or Crate(command.aggregate_root_id)
    crate.apply(Taken(pieces=command.pieces))
    context.add(crate)


def test_inline_handles_what_a_handler_sends_after_the_command_and_with_its_metadata() -> None:
    store = MemoryEventStore()
    with inline(store) as bus, metadata(user_id="7", tenant="north"):
        result = execute_command(Ship("a", to="b", pieces=2, id="s"))
    assert [type(event) for event in bus.events] == [Shipped, Taken, Taken]
    sent = bus.events[-1].metadata
    assert (sent.user, sent.extra, sent.correlation_id) == ("7", {"tenant": "north"}, "s")
    assert bus.results[-1].command_id == result.value
    assert len({one.command_id for one in bus.results}) == 3


def test_a_scenario_expects_what_is_sent_and_handles_none_of_it() -> None:
    taken = Take("b", pieces=2)
    scenario = given().when(Ship("a", to="b", pieces=2)).then(Shipped())
    scenario.then_sends(taken, taken)
    with pytest.raises(AssertionError, match="expected the commands"):
        scenario.then_sends(taken)
    scenario.when(Ship("a", to="b", pieces=0)).then_refused(NothingToShip).then_sends()
    with pytest.raises(AssertionError, match="nothing has happened yet"):
        given().then_sends()


def test_what_cannot_be_sent_is_refused_where_it_is_given() -> None:
    context = CommandContext(Ship("a", to="b"), None, lambda id: None)
    token = handled_command.set(context)
    try:
        with pytest.raises(DefinitionError, match=r"context.send\('x'\) is given no command"):
            context.send("x")  # type: ignore[arg-type]
        with pytest.raises(InvalidField):
            context.send(Take("b", pieces=10**1_001))
    finally:
        handled_command.reset(token)
    assert not context.sent
    assert context.changed_aggregate() is None


kept: list[CommandContext] = []


class Keep(Command):
    """Its handler keeps the context, and lets another thread send by it."""

    type_name = "unit.Keep"


@command_handler
def keep(command: Keep, context: CommandContext) -> str:
    kept.append(context)
    with ThreadPoolExecutor(1) as threads:
        return str(threads.submit(context.send, Take("b", pieces=1)).exception())


def test_a_context_sends_nothing_for_another_thread_nor_after_its_command() -> None:
    kept.clear()
    with inline(MemoryEventStore()) as bus:
        told = execute_command(Keep("a")).value
        assert "is called outside of the handler of Keep" in told
        with pytest.raises(DefinitionError, match="nothing would be sent; call it in the handler, in its thread"):
            kept[0].send(Take("b", pieces=1))
    assert len(bus.results) == 1


def test_what_was_sent_is_read_from_the_row() -> None:
    store = MemoryEventStore()
    with inline(store):
        execute_command(Ship("a", to="b", id="s"))
    (row,) = store.load("a")
    ids = [record.command_id for record in store.load("b")]
    assert Step.of(row).sent == [(id, "b") for id in ids]
    found = contents(row.events, row.metadata)
    assert found["result"] == ids[1]
    assert found["sent"] == [
        {"type": "unit.Take", "id": id, "aggregate_root_id": "b", "fields": {"pieces": 1}} for id in ids
    ]


def test_inline_tells_receivers_of_every_finished_command() -> None:
    told: list[tuple[type, str]] = []

    def note(sender: type, result: CommandResult, metadata: Metadata, **_: object) -> None:
        told.append((sender, f"{result.status.value} by {metadata.user_id}"))

    command_finished.connect(note)
    try:
        with inline(MemoryEventStore()), metadata(user_id="7"):
            execute_command(Ship("a", to="b"))
    finally:
        command_finished.disconnect(note)
    assert told == [(Ship, "success by 7"), (Take, "success by 7"), (Take, "success by 7")]
