"""Middleware around command handlers and around the handlers of subscribers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest
from django.core.exceptions import MiddlewareNotUsed
from django.test import override_settings

from enode_django import (
    Command,
    CommandContext,
    DomainException,
    ProcessManager,
    command_handler,
    execute_command,
    handles,
    metadata,
    try_command,
)
from enode_django.bus.interception import handlers_in_use, intercepted, subscriber_middleware
from enode_django.bus.results import CommandResult
from enode_django.checks.backends import check_backends
from enode_django.checks.settings import check_settings
from enode_django.domain.handlers import command_handlers
from enode_django.eventstore.memory import MemoryEventStore
from enode_django.exceptions import ConfigurationError
from enode_django.middleware import SubscriberContext
from enode_django.testing import given, inline
from sample_project.bank.domain import AccountClosed, AccountOpened, CloseAccount, OpenAccount
from sample_project.bank.projections import AccountSummaries
from tests.unit.test_sending_by_context import Crate, NothingToShip, Ship, Shipped

Handle = Callable[[Any, Any], Any]
HERE = __name__
told: list[str] = []


@pytest.fixture(autouse=True)
def nothing_told() -> None:
    told.clear()


def outer(handle: Handle) -> Handle:
    told.append("made outer")

    def call(message: Any, context: Any) -> Any:
        told.append(f"outer before {type(message).__name__}")
        result = handle(message, context)
        told.append("outer after")
        return result

    return call


class Inner:
    def __init__(self, handle: Handle) -> None:
        self.handle = handle

    def __call__(self, message: Any, context: Any) -> Any:
        told.append("inner")
        return self.handle(message, context)


def unused(handle: Handle) -> Handle:
    raise MiddlewareNotUsed


def of_north(handle: Handle) -> Handle:
    def call(command: Command, context: CommandContext) -> Any:
        if context.metadata.extra.get("tenant") != "north":
            raise NothingToShip("this belongs to somebody else")
        return handle(command, context)

    return call


def of_managers(handle: Handle) -> Handle:
    def call(event: Any, context: SubscriberContext) -> Any:
        told.append(context.subscriber.name)
        found = handle(event, context)
        told.append("after the handler")
        return found

    return call


def makes_nothing(handle: Handle) -> None: ...


def use(**middleware: list[str]) -> override_settings:
    return override_settings(ENODE={key: [f"{HERE}.{name}" for name in names] for key, names in middleware.items()})


def ship() -> CommandResult:
    return execute_command(Ship("a", to="b"))


def test_without_middleware_handlers_are_called_as_they_are() -> None:
    handlers: list[Any] = [lambda event: None]
    assert handlers_in_use() is command_handlers
    assert intercepted(None, handlers) is handlers


def test_middleware_of_commands_is_made_once_and_called_from_the_outside_in() -> None:
    with use(COMMAND_MIDDLEWARE=["outer", "unused", "Inner"]), inline(MemoryEventStore()):
        ship()
        assert told[:3] == ["made outer", "outer before Ship", "inner"]
        assert told.count("made outer") == 1
        assert told.count("outer before Take") == 2
    with inline(MemoryEventStore()):
        before = len(told)
        ship()
        assert len(told) == before


def test_middleware_of_commands_refuses_as_a_handler_does() -> None:
    with use(COMMAND_MIDDLEWARE=["of_north"]), inline(MemoryEventStore()) as bus:
        with metadata(tenant="north"):
            ship()
        (sent,) = {result.status for result in bus.results}
        assert sent.value == "success"
        given(Crate, "a").when(Ship("a", to="b")).then_refused(NothingToShip)
        with metadata(tenant="north"):
            given(Crate, "a").when(Ship("a", to="b")).then(Shipped())


def test_a_command_without_a_handler_meets_no_middleware() -> None:
    with use(COMMAND_MIDDLEWARE=["outer"]), inline(MemoryEventStore()):
        given(Crate, "a").when(Unhandled("a")).then_failed("HandlerNotFound")
    assert told == ["made outer"]


class Unhandled(Command):
    type_name = "unit.Unhandled"


class Passing(DomainException):
    type_name = "unit.Passing"


class Watched(Command):
    type_name = "unit.Watched"


def test_errors_that_pass_go_through_middleware_and_the_handler_is_called_again() -> None:
    attempts: list[int] = []

    @command_handler(Watched, retry_on=[LookupError])
    def watched(command: Watched, context: CommandContext) -> None:
        attempts.append(1)
        if len(attempts) < 3:
            raise LookupError

    try:
        with use(COMMAND_MIDDLEWARE=["outer"]), inline(MemoryEventStore()):
            execute_command(Watched(aggregate_root_id="a"))
    finally:
        command_handlers.remove(Watched, watched)
    assert told == ["made outer", *["outer before Watched"] * 3, "outer after"]


class Closing(ProcessManager):
    abstract = True  # other tests do not run it
    name = "unit.closing"

    @handles(AccountOpened)
    def opened(self, event: AccountOpened) -> Iterator[Command]:
        told.append("in the handler")
        yield CloseAccount(event.owner)

    @handles(Passing)
    def refused(self, refusal: Passing) -> None:
        told.append("refused")


OPENED = AccountOpened(owner="Ada")


def test_middleware_of_subscribers_is_around_each_call_of_a_handler() -> None:
    with use(SUBSCRIBER_MIDDLEWARE=["of_managers"]):
        given(Closing, "a").when(OPENED).then(CloseAccount("Ada"))
        once = ["unit.closing", "in the handler", "after the handler"]
        assert told == once * 2  # a scenario hands an event over twice
        told.clear()
        given(Closing, "a").when(AccountClosed()).then_nothing()
        assert told == []
        given(Closing, "a").when(Passing("no")).then_nothing()
        assert told == ["unit.closing", "refused", "after the handler"] * 2


def test_middleware_of_subscribers_is_around_each_event_that_changes_a_row() -> None:
    with use(SUBSCRIBER_MIDDLEWARE=["outer", "of_managers"]):
        given(AccountSummaries, "a", OPENED).then(owner="Ada")
    assert told == [
        "made outer",
        "outer before AccountOpened",
        "bank.AccountSummaries",
        "after the handler",
        "outer after",
    ]


def test_inline_runs_subscribers_within_their_middleware() -> None:
    with use(SUBSCRIBER_MIDDLEWARE=["of_managers"]), inline(MemoryEventStore(), followed_by=[]):
        execute_command(OpenAccount("x", owner="Ada"))
    assert told == []


@pytest.mark.parametrize("key", ["COMMAND_MIDDLEWARE", "SUBSCRIBER_MIDDLEWARE"])
@pytest.mark.parametrize(
    ("value", "says"),
    [
        (["no.Such"], "cannot be imported"),
        ([f"{HERE}.HERE"], "is not a class or function"),
    ],
)
def test_a_check_names_middleware_that_cannot_be_had(key: str, value: Any, says: str) -> None:
    with override_settings(ENODE={key: value}):
        (message,) = check_backends(None)
    assert message.id == "enode_django.E210"
    assert says in message.msg
    assert key in message.msg


@pytest.mark.parametrize("key", ["COMMAND_MIDDLEWARE", "SUBSCRIBER_MIDDLEWARE"])
@pytest.mark.parametrize("value", ["enode_django.middleware.EnodeMiddleware", [outer]])
def test_middleware_is_a_list_of_texts(key: str, value: Any) -> None:
    with override_settings(ENODE={key: value}):
        (message,) = [*check_settings(None), *check_backends(None)]
    assert message.id == "enode_django.E085"


@pytest.mark.parametrize("key", ["COMMAND_MIDDLEWARE", "SUBSCRIBER_MIDDLEWARE"])
def test_middleware_that_can_be_had_passes_the_check(key: str) -> None:
    with use(**{key: ["outer", "Inner"]}):
        assert check_backends(None) == []


def test_middleware_that_makes_nothing_is_refused() -> None:
    with (
        use(COMMAND_MIDDLEWARE=["makes_nothing"]),
        inline(MemoryEventStore()),
        pytest.raises(ConfigurationError, match="which returns None; return a function"),
    ):
        ship()


class Halve(Command):
    """Its handler applies an event, and raises for some ids."""

    type_name = "unit.Halve"


@command_handler
def halve(command: Halve, context: CommandContext) -> int:
    crate = context.find(Crate) or Crate(command.aggregate_root_id)
    context.add(crate)
    crate.apply(Shipped())
    if command.id == "refused":
        raise NothingToShip("there is nothing")
    if command.id == "failed":
        raise LookupError("there is no such thing")
    return 7


def swallows(handle: Handle) -> Handle:
    def call(message: Any, context: Any) -> Any:
        with suppress(Exception):
            return handle(message, context)

    return call


def forgets(handle: Handle) -> Handle:
    def call(message: Any, context: Any) -> None:
        handle(message, context)

    return call


def hides(handle: Handle) -> Handle:
    def call(message: Any, context: Any) -> Any:
        handle(message, context)
        context.set_result(None)

    return call


def asynchronous(handle: Handle) -> Handle:
    async def call(message: Any, context: Any) -> Any:
        return handle(message, context)

    return call


class Asynchronous:
    def __init__(self, handle: Handle) -> None:
        self.handle = handle

    async def __call__(self, message: Any, context: Any) -> Any:
        return self.handle(message, context)


@pytest.mark.parametrize(("id", "error"), [("refused", "unit.NothingToShip"), ("failed", "LookupError")])
def test_half_of_what_a_handler_does_is_not_stored_though_middleware_swallows_its_error(id: str, error: str) -> None:
    store = MemoryEventStore()
    with use(COMMAND_MIDDLEWARE=["swallows"]), inline(store):
        assert try_command(Halve("a", id=id)).error_type == error
        assert [record.version for record in store.load("a")] == []
        assert try_command(Halve("a")).value == 7


@pytest.mark.parametrize(("name", "value"), [("forgets", 7), ("hides", None)])
def test_the_result_is_the_handlers_unless_middleware_sets_another(name: str, value: object) -> None:
    with use(COMMAND_MIDDLEWARE=[name]), inline(MemoryEventStore()):
        assert try_command(Halve("a")).value == value


def test_middleware_that_keeps_the_commands_of_a_process_manager_for_itself_is_refused() -> None:
    with use(SUBSCRIBER_MIDDLEWARE=["forgets"]):
        (call,) = intercepted(Halving(), [Halving().shipped])
        with pytest.raises(ConfigurationError, match=r"returns nothing for the commands of unit\.halving"):
            call(Shipped())


class Halving(ProcessManager):
    name = "unit.halving"
    abstract = True

    @handles
    def shipped(self, event: Shipped) -> Iterator[Command]:
        yield Halve("b")


@pytest.mark.parametrize("key", ["COMMAND_MIDDLEWARE", "SUBSCRIBER_MIDDLEWARE"])
@pytest.mark.parametrize("name", ["asynchronous", "Asynchronous"])
def test_asynchronous_middleware_is_refused(key: str, name: str) -> None:
    made = {"COMMAND_MIDDLEWARE": handlers_in_use, "SUBSCRIBER_MIDDLEWARE": subscriber_middleware}[key]
    with use(**{key: [name]}), pytest.raises(ConfigurationError, match="which returns an async function"):
        made()
