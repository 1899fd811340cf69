"""Prefixes of the ids of aggregates."""

from __future__ import annotations

from typing import Any

import pytest

from enode_django import (
    AggregateRoot,
    Command,
    CommandContext,
    DomainEvent,
    applies,
    command_handler,
    try_command,
)
from enode_django.checks.definitions import check_definitions
from enode_django.commanding.context import CommandContext as Context
from enode_django.domain.prefixes import target_of
from enode_django.eventstore.memory import MemoryEventStore
from enode_django.exceptions import DefinitionError, InvalidId
from enode_django.serialization.json_values import command_from_json
from enode_django.testing import inline


class Open(Command):
    type_name = "prefixed.Open"


class Look(Command):
    type_name = "prefixed.Look"
    other: str = ""


class Found(Command):
    type_name = "prefixed.Found"


class Opened(DomainEvent):
    type_name = "prefixed.Opened"


class Vault(AggregateRoot):
    type_name = "prefixed.Vault"
    id_prefix = "vault-"

    @command_handler(creates=True)
    def open(self, command: Open) -> None:
        self.apply(Opened())

    @applies
    def _opened(self, event: Opened) -> None: ...


@command_handler(Look)
def look(command: Look, context: CommandContext) -> None:
    context.set_result(context.find(Vault, command.other or None) is not None)


LACKS = r"'ada' cannot be an id of Vault: such ids begin with 'vault-'; write Vault\.id_prefix \+ 'ada'"


def test_an_aggregate_without_the_prefix_cannot_be_made() -> None:
    assert Vault("vault-ada").id == "vault-ada"
    with pytest.raises(InvalidId, match=LACKS):
        Vault("ada")
    with pytest.raises(InvalidId, match="'vault-' cannot be an id"):
        Vault("vault-")


def test_a_subclass_has_the_prefix_unless_it_says_otherwise() -> None:
    class Chest(AggregateRoot):
        type_name = "prefixed.Chest"
        id_prefix = "chest-"

    class Safe(Chest):
        type_name = "prefixed.Safe"

    class Box(Chest):
        type_name = "prefixed.Box"
        id_prefix = ""

    with pytest.raises(InvalidId):
        Safe("ada")
    assert Box("ada").id == "ada"
    assert Context(Look("other"), None, lambda id: None).find(Chest, "ada") is None


@pytest.mark.parametrize("prefix", [None, 1, "a\0", "x" * 255])
def test_a_prefix_that_no_id_can_have_is_refused(prefix: Any, undeclared: None) -> None:
    with pytest.raises(DefinitionError, match="has id_prefix ="):
        type("Wrong", (AggregateRoot,), {"id_prefix": prefix})


@pytest.mark.parametrize("id", ["ada", "vault-ada"])
def test_looking_for_what_cannot_be_there_is_an_error_that_shows_the_prefix(id: str) -> None:
    context = Context(Look("other"), None, lambda id: None)
    if id == "ada":
        with pytest.raises(InvalidId, match=LACKS):
            context.find(Vault, id)
        with pytest.raises(InvalidId, match="'other' cannot be an id"):
            context.get(Vault)
    else:
        assert context.find(Vault, id) is None


def test_a_command_for_an_id_without_the_prefix_fails_clearly() -> None:
    with inline(store=MemoryEventStore()):
        result = try_command(Open("ada"))
        assert "such ids begin with 'vault-'" in str(result.error_message)
        assert try_command(Open("vault-ada")).version == 1
        with pytest.raises(InvalidId, match=LACKS):
            Vault.load("ada")
        with pytest.raises(InvalidId, match=LACKS):
            Vault.history("ada")
        assert Vault.load("vault-ada").version == 1


def test_what_a_person_types_gets_the_prefix_where_a_method_says_the_class() -> None:
    assert target_of(Open, "ada") == "vault-ada"
    assert target_of(Open, "vault-ada") == "vault-ada"
    assert target_of(Look, "ada") == "ada"  # a function handles it
    assert target_of(Open, "") == ""
    assert command_from_json(Open, "ada", {}).aggregate_root_id == "vault-ada"


class Strongroom(Vault):
    type_name = "prefixed.Strongroom"
    id_prefix = "strong-"

    @command_handler(creates=True)
    def found(self, command: Found) -> None:
        self.apply(Opened())


def test_an_aggregate_of_a_subclass_with_another_prefix_is_reached_by_its_base() -> None:
    with inline(store=MemoryEventStore()):
        assert try_command(Found("strong-1")).version == 1
        assert try_command(Look("strong-1")).value is True
        assert Vault.load("strong-1").id == "strong-1"
        assert try_command(Look("strong-2")).value is False
    assert target_of(Open, "strong-1") == "strong-1"
    assert target_of(Found, "1") == "strong-1"
    with pytest.raises(InvalidId):
        Vault("strong-1")
    with pytest.raises(InvalidId, match="such ids begin with 'vault-'"):
        Context(Look("other"), None, lambda id: None).find(Vault, "ada")


def shared() -> list[str]:
    return [message.msg for message in check_definitions(None) if message.id == "enode_django.W171"]


def test_classes_that_can_share_ids_are_named_once_for_all_of_them(undeclared: None) -> None:
    def declare(name: str, prefix: str) -> None:
        body = {"type_name": f"apart.{name}", "id_prefix": prefix, "_seen": applies(Opened)(lambda self, event: None)}
        type(name, (AggregateRoot,), body)

    before = shared()
    declare("One", "apart-one-")
    declare("Two", "apart-two-")
    declare("Three", "apart-two-and-")
    (text,) = shared()
    assert "apart.Two" in text
    assert "apart.Three" in text
    assert ("apart.One" in text) is bool(before)  # classes of other tests have no prefix
