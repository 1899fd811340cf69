"""A state that an applier left in the middle is never stored, whatever its handler makes of the error."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress

import pytest

from enode_django.bus.results import CommandResult, CommandStatus
from enode_django.commanding.context import CommandContext
from enode_django.domain.aggregate import AggregateRoot, applies
from enode_django.domain.handlers import HandlerTable
from enode_django.domain.messages import Command, DomainEvent
from enode_django.domain.refusals import DomainException
from enode_django.eventstore.memory import MemoryEventStore
from enode_django.exceptions import ApplierNotFound
from tests.races.harness import Worker


class Do(Command):
    type_name = "swallowed.Do"


class Opened(DomainEvent):
    type_name = "swallowed.Opened"


class Broke(DomainEvent):
    type_name = "swallowed.Broke"


class Refusing(DomainEvent):
    type_name = "swallowed.Refusing"


class Unheard(DomainEvent):
    type_name = "swallowed.Unheard"


class No(DomainException):
    type_name = "swallowed.No"


class Vase(AggregateRoot):
    type_name = "swallowed.Vase"
    changes: int = 0

    @applies(Opened)
    def _opened(self, event: Opened) -> None:
        self.changes += 1

    @applies(Broke)
    def _broke(self, event: Broke) -> None:
        self.changes += 1
        raise ValueError("in the middle")

    @applies(Refusing)
    def _refusing(self, event: Refusing) -> None:
        raise No("an applier says no")


Script = Callable[[CommandContext], None]


class Stage:
    """A worker whose commands run the scripts given."""

    def __init__(self) -> None:
        self.store = MemoryEventStore()
        self.worker = Worker(self.store)
        self._script: Iterator[Script] = iter(())
        table = HandlerTable()
        table.add(Do, lambda command, context: next(self._script)(context))
        self.worker.processor._handlers = table

    def play(self, *scripts: Script) -> list[CommandResult]:
        self._script = iter(scripts)
        return self.worker.run(*(Do("x") for _ in scripts))


@pytest.fixture
def stage() -> Stage:
    return Stage()


def create(context: CommandContext) -> None:
    vase = Vase("x")
    vase.apply(Opened())
    context.add(vase)


def open_again(context: CommandContext) -> None:
    context.get(Vase).apply(Opened())


def swallow(event: type[DomainEvent]) -> Script:
    def script(context: CommandContext) -> None:
        vase = context.get(Vase)
        with suppress(ValueError, No):
            vase.apply(event())

    return script


def swallow_and_go_on(context: CommandContext) -> None:
    open_again(context)
    swallow(Broke)(context)
    open_again(context)
    context.set_result("fine")


def swallow_of_a_new_one(context: CommandContext) -> None:
    vase = Vase("x")
    context.add(vase)
    with suppress(ValueError):
        vase.apply(Broke())


def swallow_of_one_that_is_dropped(context: CommandContext) -> None:
    """The one that broke is forgotten, and another one added."""
    with suppress(ValueError):
        Vase("x").apply(Broke())
    create(context)


@pytest.mark.parametrize("script", [swallow(Broke), swallow_and_go_on])
def test_a_swallowed_error_of_an_applier_fails_the_command_and_stores_nothing(stage: Stage, script: Script) -> None:
    stage.play(create)
    (result,) = stage.play(script)
    assert (result.status, result.error_type, result.error_message) == (
        CommandStatus.FAILED,
        "ValueError",
        "in the middle",
    )
    assert len(list(stage.store.load("x"))) == 1
    (after,) = stage.play(open_again)
    assert (after.status, after.version) == (CommandStatus.SUCCESS, 2)
    stage.worker.processor._cache.drop("x")
    assert stage.play(open_again)[0].version == 3, "what is stored can be read"


@pytest.mark.parametrize("script", [swallow_of_a_new_one, swallow_of_one_that_is_dropped])
def test_so_it_does_for_an_aggregate_that_is_new(stage: Stage, script: Script) -> None:
    (result,) = stage.play(script)
    assert (result.status, result.error_type) == (CommandStatus.FAILED, "ValueError")
    assert list(stage.store.load("x")) == []
    assert stage.play(create)[0].status is CommandStatus.SUCCESS


def test_a_swallowed_refusal_of_an_applier_is_the_refusal_of_the_command(stage: Stage) -> None:
    stage.play(create)
    (result,) = stage.play(swallow(Refusing))
    assert (result.status, result.error_type) == (CommandStatus.REFUSED, "swallowed.No")
    assert stage.worker.processor._cache.slots["x"].version == 1


def test_a_refusal_that_a_handler_makes_of_it_is_the_outcome(stage: Stage) -> None:
    def refuse(context: CommandContext) -> None:
        swallow(Broke)(context)
        raise No("so not")

    stage.play(create)
    (result,) = stage.play(refuse)
    assert (result.status, result.error_type) == (CommandStatus.REFUSED, "swallowed.No")
    assert stage.play(open_again)[0].version == 2


def test_an_event_that_nobody_applies_changes_nothing_and_may_be_swallowed(stage: Stage) -> None:
    def try_it(context: CommandContext) -> None:
        with suppress(ApplierNotFound):
            context.get(Vase).apply(Unheard())
        open_again(context)

    stage.play(create)
    assert stage.play(try_it)[0].version == 2
