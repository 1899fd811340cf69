"""A command that nothing handles is found by a check."""

from __future__ import annotations

import pytest

from enode_django import AggregateRoot, Command, command_handler
from enode_django.checks.definitions import check_definitions

pytestmark = pytest.mark.usefixtures("undeclared")


class Rename(Command):
    type_name = "handled.Rename"


class Member(AggregateRoot):
    type_name = "handled.Member"

    @command_handler
    def rename(self, command: Rename) -> None: ...


def warned_of(name: str) -> list[str]:
    return [
        str(one.hint) for one in check_definitions(None) if one.id == "enode_django.W175" and f".{name} " in one.msg
    ]


def test_a_command_without_a_handler_is_named_in_an_app_of_handled_commands() -> None:
    class Forgotten(Command):
        type_name = "handled.Forgotten"

    (hint,) = warned_of("Forgotten")
    assert "annotate its parameter with Forgotten" in hint
    assert warned_of("Rename") == []

    class Mindful(AggregateRoot):
        type_name = "handled.Mindful"

        @command_handler
        def forget(self, command: Forgotten) -> None: ...

    assert warned_of("Forgotten") == []


def test_a_base_of_handled_commands_needs_no_handler_and_what_is_derived_has_one() -> None:
    class Base(Command):
        type_name = "handled.Base"

    class Promote(Base):
        type_name = "handled.Promote"

    class PromoteTwice(Promote):
        type_name = "handled.PromoteTwice"

    class Officer(AggregateRoot):
        type_name = "handled.Officer"

        @command_handler
        def promote(self, command: Promote) -> None: ...

    assert [warned_of(cls.__name__) for cls in (Base, Promote, PromoteTwice)] == [[], [], []]


def test_commands_of_an_app_without_handlers_may_be_handled_by_another_project() -> None:
    class Elsewhere(Command):
        type_name = "elsewhere.Elsewhere"

    assert warned_of("Elsewhere") == []
