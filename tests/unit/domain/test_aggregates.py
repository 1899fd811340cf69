from __future__ import annotations

import copy
import dataclasses
import pickle
from decimal import Decimal
from typing import Any

import pytest

from enode_django.domain.aggregate import AggregateRoot, accept_events, applies, replay_stream
from enode_django.domain.declarations import declared, plain_of
from enode_django.domain.handlers import HandlerTable, command_handler
from enode_django.domain.messages import Command, DomainEvent
from enode_django.domain.refusals import DomainException
from enode_django.exceptions import (
    ApplierNotFound,
    BrokenHistory,
    DefinitionError,
    DuplicateHandler,
    HandlerNotFound,
    InvalidField,
    InvalidId,
)


class Grown(DomainEvent):
    type_name = "unit.Grown"
    by: int = 1


class GrownALot(Grown):
    type_name = "unit.GrownALot"


class Named(DomainEvent):
    type_name = "unit.Named"
    name: str


class Unknown(DomainEvent):
    type_name = "unit.Unknown"


class Tree(AggregateRoot):
    type_name = "unit.Tree"
    height: int = 0
    names: list[str] = []
    limit: int = dataclasses.field(default=100)
    marks: dict[str, int] = dataclasses.field(default_factory=dict)

    def grow(self, by: int = 1) -> None:
        self.apply(Grown(by=by))

    @applies(Grown)
    def _grown(self, event: Grown) -> None:
        self.height += event.by

    @applies(Named)
    def _named(self, event: Named) -> None:
        self.names.append(event.name)


class Oak(Tree):
    type_name = "unit.Oak"

    def _grown(self, event: Grown) -> None:
        self.height += 2 * event.by


def test_events_change_state_at_once_and_wait_to_be_accepted() -> None:
    tree = Tree("t")
    tree.grow(2)
    tree.apply(Named(name="x"))
    assert (tree.id, tree.height, tree.names, tree.version) == ("t", 2, ["x"], 0)
    events = accept_events(tree)
    assert [event.id for event in events] == ["t/1/0", "t/1/1"]
    assert (tree.version, tree.uncommitted_events) == (1, ())
    tree.grow()
    assert tree.uncommitted_events[0].version == 2


def test_instances_share_no_mutable_default_and_fields_with_defaults_have_values() -> None:
    one, other = Tree("1"), Tree("2")
    one.names.append("x")
    one.marks["x"] = 1
    assert (other.names, other.marks) == ([], {})
    assert one.limit == 100


def test_subclass_overrides_an_applier_without_marking_it_again() -> None:
    oak = Oak("o")
    oak.grow(3)
    assert oak.height == 6


def test_event_is_applied_by_the_method_of_its_base_class() -> None:
    tree = Tree("t")
    tree.apply(GrownALot(by=50))
    assert tree.height == 50


def test_event_without_applier_changes_nothing() -> None:
    tree = Tree("t")
    with pytest.raises(ApplierNotFound, match="annotate its parameter with Unknown"):
        tree.apply(Unknown())
    assert tree.uncommitted_events == ()


def test_only_events_can_be_applied() -> None:
    with pytest.raises(DefinitionError, match=r"apply\(\) takes a domain event, got an instance of dict"):
        Tree("t").apply({"by": 1})  # type: ignore[arg-type]


def test_a_class_of_events_cannot_be_applied() -> None:
    with pytest.raises(DefinitionError, match=r"got a class; make an instance of it"):
        Tree("t").apply(Grown)  # type: ignore[arg-type]


def test_event_is_applied_once() -> None:
    tree, event = Tree("t"), Grown()
    tree.apply(event)
    with pytest.raises(DefinitionError, match="new event"):
        tree.apply(event)
    assert tree.height == 1


class Vine(Tree):
    """Its applier applies an event, which only a method of the domain may do."""

    type_name = "unit.Vine"

    def _named(self, event: Named) -> None:
        self.apply(Grown(by=3))


def test_an_applier_that_applies_another_event_is_refused() -> None:
    """On loading, that method would apply the other event, which would then be applied once more."""
    with pytest.raises(DefinitionError, match=r"Vine\._named\(\) applies another event"):
        Vine("v").apply(Named(name="climbing"))


def test_history_must_join() -> None:
    tree = Tree("t")
    replay_stream(tree, [Grown()], 1)
    replay_stream(tree, [Grown(), Named(name="x")], 2)
    assert (tree.version, tree.height) == (2, 2)
    for version in (1, 2, 4):
        with pytest.raises(BrokenHistory, match=f"version {version} does not follow"):
            replay_stream(tree, [Grown()], version)


def test_bad_definitions_are_refused(undeclared: None) -> None:
    with pytest.raises(DefinitionError, match="two methods for Grown"):

        class Twice(Tree):
            type_name = "unit.Twice"

            @applies(Grown)
            def another(self, event: Grown) -> None: ...

    for name in ("id", "version", "apply"):
        with pytest.raises(DefinitionError, match=repr(name)):
            type("Bad", (AggregateRoot,), {"__annotations__": {name: int}, "__module__": __name__})
    for wrong in (Tree, "Grown", Command):
        with pytest.raises(DefinitionError, match="domain events"):
            applies(wrong)  # type: ignore[arg-type]
    with pytest.raises(InvalidId):
        Tree("")


def test_aggregates_copy_and_pickle() -> None:
    tree = Tree("t")
    tree.grow(4)
    accept_events(tree)
    for back in (copy.deepcopy(tree), pickle.loads(pickle.dumps(tree))):
        assert (back.id, back.version, back.height) == ("t", 1, 4)
        back.names.append("x")
    assert tree.names == []


# -- refusals -----------------------------------------------------------------------------------------------------


class TooHigh(DomainException):
    type_name = "unit.TooHigh"
    height: int
    limit: Decimal = Decimal(10)


class MuchTooHigh(TooHigh):
    type_name = "unit.MuchTooHigh"
    durable = False


def test_refusal_has_a_message_and_typed_fields() -> None:
    refusal = TooHigh("too high", height=11)
    assert (str(refusal), refusal.message, refusal.height, refusal.limit) == ("too high", "too high", 11, Decimal(10))
    assert (TooHigh.durable, MuchTooHigh.durable) == (True, False)
    for fields in ({}, {"height": "x"}, {"height": 1, "unknown": 1}):
        with pytest.raises(InvalidField, match="TooHigh"):
            TooHigh("x", **fields)
    assert TooHigh(height=1).message == ""


def test_refusals_copy_and_pickle() -> None:
    refusal = MuchTooHigh("too high", height=11)
    for back in (copy.deepcopy(refusal), pickle.loads(pickle.dumps(refusal))):
        assert (type(back), back.message, plain_of(back)) == (MuchTooHigh, "too high", plain_of(refusal))


@pytest.mark.parametrize("name", ["args", "message", "retriable", "type_name", "schema_version"])
def test_reserved_field_of_a_refusal_is_refused(name: str) -> None:
    with pytest.raises(DefinitionError, match=repr(name)):
        type("Bad", (DomainException,), {"__annotations__": {name: str}, "__module__": __name__})


# -- handlers -----------------------------------------------------------------------------------------------------


class Plant(Command):
    type_name = "unit.Plant"


class PlantTwo(Plant):
    type_name = "unit.PlantTwo"


def one(command: object, context: object) -> None: ...
def two(command: object, context: object) -> None: ...


def test_handler_of_the_nearest_base_is_found_until_a_nearer_one_comes() -> None:
    table = HandlerTable()
    with pytest.raises(HandlerNotFound, match="annotate its parameter with PlantTwo"):
        table.find(PlantTwo)
    table.add(Plant, one)
    table.add(Plant, one)
    assert table.find(PlantTwo) is one
    table.add(PlantTwo, two)
    assert table.find(PlantTwo) is two
    table.remove(PlantTwo, two)
    assert table.find(PlantTwo) is one


def test_two_handlers_for_a_command_are_reported() -> None:
    table = HandlerTable()
    table.add(Plant, one)
    assert list(table.duplicates()) == []
    table.add(Plant, two)
    assert list(table.duplicates()) == [(Plant, f"{__name__}.one, {__name__}.two")]
    with pytest.raises(DuplicateHandler, match="keep one"):
        table.find(PlantTwo)


def test_constructor_takes_the_id_alone(undeclared: None) -> None:
    def named(self: AggregateRoot, id: str, name: str) -> None: ...
    def optional(self: AggregateRoot, id: str, name: str = "") -> None: ...

    with pytest.raises(DefinitionError, match=r"Shrub.__init__\(\) must do with the id alone \(missing.*'name'\)"):
        type("Shrub", (AggregateRoot,), {"__init__": named, "__module__": __name__})
    type("Bush", (AggregateRoot,), {"__init__": optional, "__module__": __name__})


def test_what_cannot_handle_commands_is_refused() -> None:
    async def later(command: Plant, context: object) -> None: ...

    with pytest.raises(DefinitionError, match="async"):
        command_handler(Plant)(later)  # type: ignore[type-var]
    with pytest.raises(DefinitionError, match="classes of commands"):
        command_handler(Grown)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("retry_on", "message"),
    [
        (OSError, "a tuple of classes of exceptions"),
        (3, "a tuple of classes of exceptions"),
        (("OSError",), "takes classes of exceptions, got 'OSError'"),
        ((KeyboardInterrupt,), "takes classes of exceptions"),
        ((DomainException,), "a refusal is final; raise Retry instead"),
    ],
)
def test_what_no_command_can_be_handled_again_for_is_refused(retry_on: Any, message: str) -> None:
    with pytest.raises(DefinitionError, match=message):
        command_handler(Plant, retry_on=retry_on)


def test_a_command_without_a_handler_of_its_own_has_what_was_said_for_its_base() -> None:
    class Seed(Plant):
        type_name = "unit.Seed"

    table = HandlerTable()
    assert table.retry_on(Seed) is None
    table.add(Plant, lambda command, context: None, retry_on=(OSError,))
    assert table.retry_on(Seed) == (OSError,)
    table.add(Seed, lambda command, context: None)
    assert (table.retry_on(Seed), table.retry_on(Plant)) == (None, (OSError,))


def test_an_applier_that_cannot_take_an_event_is_refused() -> None:
    with pytest.raises(DefinitionError, match=r"cannot take \(self, event\)"):

        class Wrong(AggregateRoot):
            type_name = "unit.Wrong"

            @applies(Grown)
            def _grown(self) -> None: ...


def test_a_command_handler_that_cannot_be_called_or_would_do_nothing_is_refused() -> None:
    with pytest.raises(DefinitionError, match=r"cannot take \(command, context\)"):
        command_handler(Command)(lambda: None)  # type: ignore[arg-type,misc]

    def generator(command: Command, context: object) -> object:
        yield command

    with pytest.raises(DefinitionError, match="yields, so that calling it does nothing"):
        command_handler(Command)(generator)


def test_a_class_that_is_refused_is_not_declared() -> None:
    before = len(declared())
    with pytest.raises(DefinitionError):

        class Wrong(AggregateRoot):
            snapshot_every = -1

    with pytest.raises(ValueError, match="mutable default"):

        class Mutable(DomainEvent):
            parts: list[str] = []

    assert declared(before) == []
