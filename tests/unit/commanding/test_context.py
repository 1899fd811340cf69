"""A change that a handler makes without handing it in is an error. It is not lost silently."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from enode_django.commanding.context import CommandContext
from enode_django.domain.aggregate import AggregateRoot, applies
from enode_django.domain.messages import Command, DomainEvent
from enode_django.domain.origin import handled_command
from enode_django.exceptions import (
    AggregateAlreadyExists,
    AggregateNotAdded,
    DefinitionError,
    ForeignAggregateChanged,
)


class Grow(Command):
    type_name = "context.Grow"


class Grown(DomainEvent):
    type_name = "context.Grown"


class Plant(AggregateRoot):
    type_name = "context.Plant"
    size: int = 0

    @applies(Grown)
    def _grown(self, event: Grown) -> None:
        self.size += 1


def handling(stored: Plant | None, other: Plant | None = None) -> CommandContext:
    context = CommandContext(Grow("own"), stored, lambda id: other)
    handled_command.set(context)
    return context


@pytest.fixture(autouse=True)
def _no_command_afterwards() -> Iterator[None]:
    yield
    handled_command.set(None)


def grown(id: str) -> Plant:
    plant = Plant(id)
    plant.apply(Grown())
    return plant


def test_a_new_aggregate_that_was_not_added_is_an_error() -> None:
    context = handling(None)
    grown("own")
    with pytest.raises(AggregateNotAdded, match=r"a new Plant 'own' has events .* context.add\(\)"):
        context.changed_aggregate()


def test_a_second_new_aggregate_beside_the_own_is_an_error() -> None:
    context = handling(None)
    context.add(grown("own"))
    grown("stranger")
    with pytest.raises(ForeignAggregateChanged, match="'own' cannot change 'stranger'"):
        context.changed_aggregate()


def test_a_read_only_copy_that_was_changed_is_an_error() -> None:
    context = handling(Plant("own"), other=Plant("other"))
    context.get(Plant, "other").apply(Grown())
    with pytest.raises(ForeignAggregateChanged, match="'own' cannot change 'other'"):
        context.changed_aggregate()


def test_the_own_aggregate_is_what_changed() -> None:
    stored = Plant("own")
    context = handling(stored)
    assert context.changed_aggregate() is None
    context.get(Plant).apply(Grown())
    assert context.changed_aggregate() is stored
    assert context.has_changes


def test_a_handler_may_fall_back_when_the_aggregate_exists_already() -> None:
    stored = Plant("own")
    context = handling(stored)
    with pytest.raises(AggregateAlreadyExists, match=r"^the Plant 'own' exists already; choose another id$"):
        context.add(grown("own"))
    assert context.changed_aggregate() is None
    context.get(Plant).apply(Grown())
    assert context.changed_aggregate() is stored


@pytest.mark.parametrize("cls", ["Plant", None, Grow, Plant("own")])
def test_what_is_no_aggregate_class_cannot_be_got(cls: Any) -> None:
    for context in (handling(None), handling(Plant("own"))):
        for take in (context.get, context.find):
            with pytest.raises(DefinitionError, match="is not an aggregate class; pass the class"):
                take(cls)


@pytest.mark.parametrize("given", [None, Plant, "own"])
def test_what_is_no_aggregate_cannot_be_added(given: Any) -> None:
    with pytest.raises(DefinitionError, match=r"^context\.add\(.*\) is given no aggregate"):
        handling(None).add(given)
