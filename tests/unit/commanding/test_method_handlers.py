"""Methods of aggregates handle commands: their receivers, their arguments, and the use of their results."""

from __future__ import annotations

import functools
import re
from decimal import Decimal

import pytest

from enode_django import (
    AggregateRoot,
    Command,
    CommandContext,
    CommandStatus,
    Retry,
    command_handler,
    try_command,
)
from enode_django.domain.handlers import command_handlers
from enode_django.exceptions import AggregateNotFound, DuplicateHandler
from enode_django.testing import given
from tests.unit.commanding.accounts import (
    Account,
    Ask,
    Base,
    Late,
    Later,
    Open,
    Opened,
    OpenSavings,
    Rename,
    Restore,
    Savings,
    Unknown,
    Withdraw,
    WithdrawAll,
    Withdrawn,
)

pytestmark = pytest.mark.usefixtures("undeclared", "inline_bus")


def test_a_creating_method_is_called_on_a_new_aggregate_which_is_added() -> None:
    result = try_command(Open("a", owner="Ada"))
    assert (result.status, result.version, result.value) == (CommandStatus.SUCCESS, 1, None)
    assert try_command(Open("a", owner="Eve")).error_type == "AggregateAlreadyExists"
    assert Account.load("a").owner == "Ada"


def test_a_creating_method_that_applies_nothing_or_refuses_creates_nothing() -> None:
    assert try_command(Open("a", owner="")).status is CommandStatus.NOTHING_CHANGED
    assert try_command(Open("a", owner="nobody")).error_type == "methods.InsufficientFunds"
    assert try_command(Withdraw("a", amount=Decimal(1))).error_type == "AggregateNotFound"
    assert try_command(Open("a", owner="Ada")).version == 1


def test_a_method_is_called_on_the_stored_aggregate_and_returns_the_result() -> None:
    assert try_command(Withdraw("a", amount=Decimal(1))).error_type == "AggregateNotFound"
    try_command(Open("a", owner="Ada"))
    result = try_command(Withdraw("a", amount=Decimal(30)))
    assert (result.version, result.value) == (2, Decimal(70))
    assert try_command(WithdrawAll("a", amount=Decimal(70))).value == 0
    refused = try_command(Withdraw("a", amount=Decimal(1)))
    assert (refused.error_type, refused.error_fields) == ("methods.InsufficientFunds", {"balance": Decimal(0)})


def test_the_id_of_another_type_is_told() -> None:
    try_command(Ask("a"))
    assert try_command(Withdraw("a", amount=Decimal(1))).error_type == "AggregateTypeMismatch"
    assert try_command(Open("a", owner="Ada")).error_type == "AggregateAlreadyExists"


def test_what_is_returned_comes_before_what_was_set_unless_it_is_none() -> None:
    assert try_command(Ask("a")).value == "returned"


def test_a_function_needs_no_context_and_returns_the_result(cleared: None) -> None:
    assert try_command(Unknown("a")).value == ["a"]

    class Tell(Command):
        type_name = "methods.Tell"
        value: str = ""

    @command_handler(Tell)
    def tell(command: Tell, context: CommandContext) -> str | None:
        context.set_result("set")
        return command.value or None

    assert [try_command(Tell("a")).value, try_command(Tell("a", value="returned")).value] == ["set", "returned"]


def test_what_cannot_be_sent_fails_the_command(cleared: None) -> None:
    class Tell(Command):
        type_name = "methods.Tell"

    @command_handler(Tell)
    def tell(command: Tell) -> object:
        return object()

    assert try_command(Tell("a")).error_type == "InvalidField"


def test_a_subclass_inherits_handlers_and_overrides_them() -> None:
    try_command(OpenSavings("s"))
    assert isinstance(Savings.load("s"), Savings)
    assert try_command(Withdraw("s", amount=Decimal(30))).value == Decimal(71)
    try_command(Open("a", owner="Ada"))
    assert type(Account.load("a")) is Account


def test_aggregates_of_two_classes_have_the_handlers_of_their_base() -> None:
    try_command(OpenSavings("s"))
    try_command(Open("a", owner="Ada"))
    try_command(Ask("o"))
    renamed = [try_command(Rename(id, owner="New")).value for id in ("s", "a", "o")]
    assert renamed == ["SAVINGS S", "Account a", "Other o"]
    assert try_command(Restore("o", owner="Old")).value == "Other o"
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

    assert try_command(Try("t")).value == 3


def test_whatever_can_be_called_handles_commands(cleared: None) -> None:
    def late(prefix: str, command: Late) -> str:
        return f"{prefix} {command.aggregate_root_id}"

    class Handler:
        def __call__(self, command: Later, context: CommandContext) -> str:
            return f"object {context.aggregate_root_id}"

        def handle(self, command: Unknown) -> None: ...

    command_handler(Late)(functools.partial(late, "part"))
    command_handler(Handler())
    assert [try_command(Late("a")).value, try_command(Later("a")).value] == ["part a", "object a"]

    class Lating(AggregateRoot):
        type_name = "methods.Lating"

        @command_handler
        def late(self, command: Late) -> None: ...

    command_handler(Handler().handle)
    for command, names in ((Late, r"partial.*Lating\.late"), (Unknown, r"unknown, .*Handler\.handle")):
        with pytest.raises(DuplicateHandler, match=names):
            command_handlers.find(command)


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
        assert try_command(Late("r")).value == number
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
