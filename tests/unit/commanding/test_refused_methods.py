"""Methods of aggregates that cannot handle commands are refused when they are defined, or named by a check."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from decimal import Decimal
from typing import Any

import pytest

from enode_django import AggregateRoot, command_handler, try_command
from enode_django.checks.definitions import check_definitions
from enode_django.domain.handlers import command_handlers
from enode_django.exceptions import DefinitionError, DuplicateHandler
from tests.unit.commanding.accounts import Account, Late, Later, Open, Unknown, Withdraw

pytestmark = pytest.mark.usefixtures("undeclared", "inline_bus")


def errors(id: str = "E150") -> list[str]:
    return [message.msg for message in check_definitions(None) if message.id == f"enode_django.{id}"]


def test_a_marked_method_of_another_class_is_named_by_a_check_and_when_its_command_comes(cleared: None) -> None:
    class Service:
        @command_handler(Late)
        def handle(self, command: Late) -> None: ...

    with pytest.raises(DefinitionError, match=r"Service\.handle\(\) is marked .* not an aggregate root; derive"):
        command_handlers.find(Later)
    (told,) = errors()
    assert "Service.handle() is marked" in told
    assert not any("Late " in message for message in errors("W175")), "one message is enough"


def test_marked_methods_of_a_mixin_are_refused(cleared: None) -> None:
    class Mixin:
        @command_handler(Late)
        def handle(self, command: Late) -> None: ...

    with pytest.raises(DefinitionError, match=r"Mixin is not an aggregate root"):

        class Mixed(Mixin, AggregateRoot):
            type_name = "methods.Mixed"

    assert len(errors()) == 1


def test_a_decorator_that_hides_the_method_loses_no_mark(cleared: None) -> None:
    def wrapped(method: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(method)
        def wrapper(*args: Any) -> Any:
            return method(*args) + " wrapped"

        return wrapper

    def hidden(method: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *args: method(*args)

    class Good(AggregateRoot):
        type_name = "methods.Good"

        @wrapped
        @command_handler(Late, creates=True)
        def handle(self, command: Late) -> str:
            return "good"

    assert try_command(Late("g")).value == "good wrapped"
    assert errors() == []

    class Bad(AggregateRoot):
        type_name = "methods.Bad"

        @hidden
        @command_handler(Unknown)
        def handle(self, command: Unknown) -> None: ...

    assert len(errors()) == 1

    with pytest.raises(DefinitionError, match=r"<lambda> is marked .* functools\.wraps"):

        class Worse(AggregateRoot):
            type_name = "methods.Worse"

            @command_handler(Later)
            @hidden
            def handle(self, command: Later) -> None: ...


def test_static_methods_and_class_methods_handle_nothing(cleared: None) -> None:
    for decorate in (staticmethod, classmethod):
        with pytest.raises(DefinitionError, match=r"Static\.handle\(\) is a (static|class)method"):

            class Static(AggregateRoot):
                type_name = "methods.Static"

                @command_handler(Late)
                @decorate
                def handle(this, command: Late) -> None: ...  # noqa: N805, RUF100


def bad_methods() -> Iterator[Callable[[], object]]:
    async def later(self: Any, command: Late) -> None: ...

    def yields(self: Any, command: Late) -> Any:
        yield command

    def nothing(self: Any) -> None: ...
    def more(self: Any, command: Late, context: Any, more: Any) -> None: ...
    def optional(self: Any, command: Late, dry_run: bool = False) -> None: ...

    yield from (later, yields, nothing, more, optional)


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("later", "is async"),
        ("yields", "yields, so that calling it does nothing"),
        ("nothing", r"cannot take \(self, command, context\)"),
        ("more", r"cannot take \(self, command, context\)"),
        ("optional", "has a further parameter with a default; call it context"),
    ],
)
def test_a_method_that_cannot_handle_commands_is_refused(name: str, told: str, cleared: None) -> None:
    method = {each.__name__: each for each in bad_methods()}[name]
    method.__qualname__ = f"Broken.{name}"
    with pytest.raises(DefinitionError, match=rf"Broken\.{name}.*{told}"):
        command_handler(Late)(method)


def test_an_override_must_be_called_as_what_it_overrides(cleared: None) -> None:
    with pytest.raises(DefinitionError, match=r"cannot take \(self, command\)"):

        class Eager(Account):
            type_name = "methods.Eager"

            def withdraw(self, command: Withdraw, now: bool) -> Decimal:  # type: ignore[override]
                return Decimal(0)

    with pytest.raises(DefinitionError, match="is async"):

        class Async(Account):
            type_name = "methods.Async"

            async def withdraw(self, command: Withdraw) -> Decimal:  # type: ignore[override]
                return Decimal(0)


def test_a_class_has_one_method_for_a_command(cleared: None) -> None:
    with pytest.raises(DefinitionError, match=r"two methods for Withdraw: withdraw\(\) and take\(\); keep one"):

        class Twice(Account):
            type_name = "methods.Twice"

            @command_handler
            def take(self, command: Withdraw) -> None: ...

    with pytest.raises(
        DefinitionError, match=r"Open creates Account by open\(\); let .*Second be created by a command of"
    ):

        class Second(Account):
            type_name = "methods.Second"

            @command_handler(creates=True)
            def open(self, command: Open) -> None: ...

    with pytest.raises(DefinitionError, match=r"another retry_on than .*Account\.withdraw\(\)"):

        class Third(Account):
            type_name = "methods.Third"

            @command_handler(retry_on=(OSError,))
            def withdraw(self, command: Withdraw) -> Decimal:
                return Decimal(0)

    with pytest.raises(DefinitionError, match="has a field and a handler 'late'"):

        class Fourth(AggregateRoot):
            type_name = "methods.Fourth"
            late: int

            @command_handler(Late)
            def late(self, command: Late) -> None: ...  # type: ignore[no-redef]


def test_methods_of_two_classes_for_one_command_are_duplicates(cleared: None) -> None:
    class Late1(AggregateRoot):
        type_name = "methods.Late1"

        @command_handler(Late)
        def handle(self, command: Late) -> None: ...

    class Late2(AggregateRoot):
        type_name = "methods.Late2"

        @command_handler(Late)
        def handle(self, command: Late) -> None: ...

    with pytest.raises(DuplicateHandler, match=r"Late1\.handle, .*Late2\.handle; keep one"):
        command_handlers.find(Late)


def test_a_function_creates_by_the_context(cleared: None) -> None:
    with pytest.raises(DefinitionError, match=r"is a function; creates=True is for methods of aggregates"):

        @command_handler(Late, creates=True)
        def late(command: Late) -> None: ...
