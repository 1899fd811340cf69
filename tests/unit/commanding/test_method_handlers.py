"""Methods of aggregates handle commands: their receivers, their arguments, and the use of their results."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterator
from decimal import Decimal
from typing import Any

import pytest

from enode_django import (
    AggregateRoot,
    Command,
    CommandContext,
    CommandResult,
    CommandStatus,
    DomainEvent,
    DomainException,
    Retry,
    applies,
    command_handler,
    try_command,
)
from enode_django.checks.definitions import check_definitions
from enode_django.domain.handlers import command_handlers
from enode_django.eventstore.memory import MemoryEventStore
from enode_django.exceptions import AggregateNotFound, DefinitionError, DuplicateHandler
from enode_django.testing import given, inline

pytestmark = pytest.mark.usefixtures("undeclared")


class Open(Command):
    type_name = "methods.Open"
    owner: str


class OpenSavings(Command):
    type_name = "methods.OpenSavings"


class Withdraw(Command[Decimal]):
    type_name = "methods.Withdraw"
    amount: Decimal


class WithdrawAll(Withdraw):
    type_name = "methods.WithdrawAll"


class Rename(Command[str]):
    type_name = "methods.Rename"
    owner: str


class Restore(Command[str]):
    type_name = "methods.Restore"
    owner: str


class Ask(Command[str]):
    type_name = "methods.Ask"


class Unknown(Command):
    type_name = "methods.Unknown"


class Opened(DomainEvent):
    type_name = "methods.Opened"
    owner: str


class Withdrawn(DomainEvent):
    type_name = "methods.Withdrawn"
    balance: Decimal


class InsufficientFunds(DomainException):
    type_name = "methods.InsufficientFunds"
    balance: Decimal


class Base(AggregateRoot):
    """Shared by two kinds of aggregates, and none itself."""

    type_name = "methods.Base"
    owner: str = ""

    @command_handler
    def rename(self, command: Rename | Restore, context: CommandContext) -> str:
        self.apply(Opened(owner=command.owner))
        return f"{type(self).__name__} {context.aggregate_root_id}"

    @applies
    def _opened(self, event: Opened) -> None:
        self.owner = event.owner


class Account(Base):
    type_name = "methods.Account"
    balance: Decimal = Decimal(100)

    @command_handler(creates=True)
    def open(self, command: Open) -> None:
        if command.owner == "nobody":
            raise InsufficientFunds("nobody has nothing", balance=Decimal(0))
        if command.owner:
            self.apply(Opened(owner=command.owner))

    @command_handler
    def withdraw(self, command: Withdraw) -> Decimal:
        if command.amount > self.balance:
            raise InsufficientFunds("the balance is too low", balance=self.balance)
        self.apply(Withdrawn(balance=self.balance - command.amount))
        return self.balance

    @applies
    def _withdrawn(self, event: Withdrawn) -> None:
        self.balance = event.balance


class Savings(Account):
    type_name = "methods.Savings"

    @command_handler(creates=True)
    def open_savings(self, command: OpenSavings) -> None:
        self.apply(Opened(owner="saver"))

    def withdraw(self, command: Withdraw) -> Decimal:
        return super().withdraw(command) + 1

    @command_handler
    def rename(self, command: Rename | Restore, context: CommandContext) -> str:
        return super().rename(command, context).upper()


class Other(Base):
    type_name = "methods.Other"

    @command_handler(creates=True)
    def ask(self, command: Ask, context: CommandContext) -> str:
        context.set_result("set")
        self.apply(Opened(owner="other"))
        return "returned"


@command_handler
def unknown(command: Unknown) -> list[str]:
    return [command.aggregate_root_id]


@pytest.fixture(autouse=True)
def _bus() -> Iterator[None]:
    with inline(MemoryEventStore()):
        yield


@pytest.fixture
def cleared() -> Iterator[None]:
    """Forget the handlers that the test marks."""
    known = {command: list(handlers) for command, handlers in command_handlers._handlers.items()}
    yield
    command_handlers._handlers.clear()
    command_handlers._handlers.update(known)
    command_handlers._found.clear()
    command_handlers.strays.clear()


def done(command: Command) -> CommandResult:
    return try_command(command)


def test_a_creating_method_is_called_on_a_new_aggregate_which_is_added() -> None:
    result = done(Open("a", owner="Ada"))
    assert (result.status, result.version, result.value) == (CommandStatus.SUCCESS, 1, None)
    assert done(Open("a", owner="Eve")).error_type == "AggregateAlreadyExists"
    assert Account.load("a").owner == "Ada"


def test_a_creating_method_that_applies_nothing_or_refuses_creates_nothing() -> None:
    assert done(Open("a", owner="")).status is CommandStatus.NOTHING_CHANGED
    assert done(Open("a", owner="nobody")).error_type == "methods.InsufficientFunds"
    assert done(Withdraw("a", amount=Decimal(1))).error_type == "AggregateNotFound"
    assert done(Open("a", owner="Ada")).version == 1


def test_a_method_is_called_on_the_stored_aggregate_and_returns_the_result() -> None:
    assert done(Withdraw("a", amount=Decimal(1))).error_type == "AggregateNotFound"
    done(Open("a", owner="Ada"))
    result = done(Withdraw("a", amount=Decimal(30)))
    assert (result.version, result.value) == (2, Decimal(70))
    assert done(WithdrawAll("a", amount=Decimal(70))).value == 0
    refused = done(Withdraw("a", amount=Decimal(1)))
    assert (refused.error_type, refused.error_fields) == ("methods.InsufficientFunds", {"balance": Decimal(0)})


def test_the_id_of_another_type_is_told() -> None:
    done(Ask("a"))
    assert done(Withdraw("a", amount=Decimal(1))).error_type == "AggregateTypeMismatch"
    assert done(Open("a", owner="Ada")).error_type == "AggregateAlreadyExists"


def test_what_is_returned_comes_before_what_was_set_unless_it_is_none() -> None:
    assert done(Ask("a")).value == "returned"


def test_a_function_needs_no_context_and_returns_the_result(cleared: None) -> None:
    assert done(Unknown("a")).value == ["a"]

    class Tell(Command):
        type_name = "methods.Tell"
        value: str = ""

    @command_handler(Tell)
    def tell(command: Tell, context: CommandContext) -> str | None:
        context.set_result("set")
        return command.value or None

    assert [done(Tell("a")).value, done(Tell("a", value="returned")).value] == ["set", "returned"]


def test_what_cannot_be_sent_fails_the_command(cleared: None) -> None:
    class Tell(Command):
        type_name = "methods.Tell"

    @command_handler(Tell)
    def tell(command: Tell) -> object:
        return object()

    assert done(Tell("a")).error_type == "InvalidField"


def test_a_subclass_inherits_handlers_and_overrides_them() -> None:
    done(OpenSavings("s"))
    assert isinstance(Savings.load("s"), Savings)
    assert done(Withdraw("s", amount=Decimal(30))).value == Decimal(71)
    done(Open("a", owner="Ada"))
    assert type(Account.load("a")) is Account


def test_aggregates_of_two_classes_have_the_handlers_of_their_base() -> None:
    done(OpenSavings("s"))
    done(Open("a", owner="Ada"))
    done(Ask("o"))
    renamed = [done(Rename(id, owner="New")).value for id in ("s", "a", "o")]
    assert renamed == ["SAVINGS S", "Account a", "Other o"]
    assert done(Restore("o", owner="Old")).value == "Other o"
    assert command_handlers.find(Rename) is command_handlers.find(Restore) or Base.load("o").owner == "Old"


def test_a_scenario_calls_methods() -> None:
    given(Account, "a", Opened(owner="Ada")).when(Withdraw("a", amount=Decimal(30))).then(
        Withdrawn(balance=Decimal(70))
    )
    given(Account, "a").when(Open("a", owner="Ada")).then(Opened(owner="Ada"))


def test_retry_on_holds_for_methods(cleared: None) -> None:
    attempts: list[str] = []

    class Try(Command):
        type_name = "methods.Try"

    class Trying(AggregateRoot):
        type_name = "methods.Trying"

        @command_handler(Try, creates=True, retry_on=(LookupError,))
        def attempt(self, command: Try) -> int:
            attempts.append(self.id)
            if len(attempts) < 3:
                raise LookupError if len(attempts) == 1 else Retry("again")
            return len(attempts)

    assert done(Try("t")).value == 3


# -- refusals -----------------------------------------------------------------------------------------------------


class Late(Command):
    type_name = "methods.Late"


class Later(Late):
    type_name = "methods.Later"


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

    assert done(Late("g")).value == "good wrapped"
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


def test_whatever_can_be_called_handles_commands(cleared: None) -> None:
    def late(prefix: str, command: Late) -> str:
        return f"{prefix} {command.aggregate_root_id}"

    class Handler:
        def __call__(self, command: Later, context: CommandContext) -> str:
            return f"object {context.aggregate_root_id}"

        def handle(self, command: Unknown) -> None: ...

    command_handler(Late)(functools.partial(late, "part"))
    command_handler(Handler())
    assert [done(Late("a")).value, done(Later("a")).value] == ["part a", "object a"]

    class Lating(AggregateRoot):
        type_name = "methods.Lating"

        @command_handler
        def late(self, command: Late) -> None: ...

    command_handler(Handler().handle)
    for command, names in ((Late, r"partial.*Lating\.late"), (Unknown, r"unknown, .*Handler\.handle")):
        with pytest.raises(DuplicateHandler, match=names):
            command_handlers.find(command)


def test_a_function_creates_by_the_context(cleared: None) -> None:
    with pytest.raises(DefinitionError, match=r"is a function; creates=True is for methods of aggregates"):

        @command_handler(Late, creates=True)
        def late(command: Late) -> None: ...


def test_a_module_that_is_loaded_anew_replaces_its_methods(cleared: None) -> None:
    source = """
class Reloaded(AggregateRoot):
    type_name = "methods.Reloaded"
    @command_handler(creates=True)
    def handle(self, command: Late) -> int:
        return NUMBER
"""
    for number in (1, 2):
        names = {**globals(), "__name__": "methods.reloaded", "NUMBER": number}
        exec(source, names)
        assert done(Late("r")).value == number
    assert Late not in dict(command_handlers.duplicates())


def test_who_has_forgotten_that_a_handler_creates_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_handlers", "_found", "_retry_on"):
        monkeypatch.setattr(command_handlers, name, {})

    class Forgetful(AggregateRoot):
        type_name = "methods.Forgetful"

        @command_handler
        def open(self, command: Open) -> None: ...

    hint = "; no handler makes one: mark its first with @command_handler(creates=True)"
    context = CommandContext(Open("a", owner="x"), None, lambda id: None)
    with pytest.raises(AggregateNotFound, match=re.escape(f"Forgetful with the id 'a'{hint}")):
        context.get(Forgetful)

    class Mindful(Forgetful):
        type_name = "methods.Mindful"

        @command_handler(creates=True)
        def begin(self, command: OpenSavings) -> None: ...

    for cls in (Forgetful, Mindful):
        with pytest.raises(AggregateNotFound, match=r"with the id 'a'$"):
            context.get(cls)

    def upsert(command: Open, context: CommandContext) -> None: ...

    command_handlers.add(Open, upsert)  # it may make any
    with pytest.raises(AggregateNotFound, match=r"with the id 'a'$"):
        context.get(Base)
