"""Mistakes of a first project: each is told by what is wrong, and what to do instead."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any

import pytest

from enode_django import (
    AggregateRoot,
    Command,
    DomainEvent,
    ModelProjection,
    ProcessManager,
    Projection,
    applies,
    command_handler,
    execute_command,
    handles,
    starts,
)
from enode_django.checks.subscribers import check_subscribers
from enode_django.domain.handlers import command_handlers
from enode_django.eventing.subscribers import Subscriber
from enode_django.eventstore.memory import MemoryEventStore
from enode_django.exceptions import DefinitionError, ExecuteInsideHandler, HandlerNotFound, InvalidField
from enode_django.testing import given, inline
from sample_project.bank.models import AccountSummary


class Open(Command):
    type_name = "mistakes.Open"


class Lost(Command):
    type_name = "mistakes.Lost"


class Opened(DomainEvent):
    type_name = "mistakes.Opened"
    owner: str = ""


class Opens(ProcessManager):
    name = "mistakes.opens"


@pytest.fixture(autouse=True)
def without_handlers_afterwards() -> Iterator[None]:
    yield
    for command in (Open, Lost):
        for handler in list(command_handlers._handlers.get(command, ())):
            command_handlers.remove(command, handler)
    command_handlers.strays.difference_update(
        [stray for stray in command_handlers.strays if stray.name.startswith(__name__)]
    )


def unwrapped(function: Callable[..., Any]) -> Callable[..., Any]:
    """Decorate without `functools.wraps`, so that the marks of the function are hidden."""
    return lambda *arguments: function(*arguments)


def test_a_missing_handler_makes_one_look_at_the_names_of_modules() -> None:
    with pytest.raises(HandlerNotFound, match=r"its module is not imported: .*AUTODISCOVER_MODULES"):
        command_handlers.find(Lost)


def test_a_mark_below_an_unwrapped_decorator_is_not_blamed_on_the_class() -> None:
    class Account(AggregateRoot):
        type_name = "mistakes.Hidden"

        @unwrapped
        @command_handler(Open, creates=True)
        def open(self, command: Open) -> None: ...

    with pytest.raises(DefinitionError, match=r"Account\.open\(\) .*; or, if a decorator above .* functools\.wraps"):
        command_handlers.find(Open)


def test_an_event_that_is_returned_is_to_be_applied() -> None:
    class Account(AggregateRoot):
        type_name = "mistakes.Returning"

        @command_handler(Open, creates=True)
        def open(self, command: Open) -> Any:
            return [Opened()]

        @applies(Opened)
        def _opened(self, event: Opened) -> None: ...

    account = given(Account).when(Open("a"))
    with pytest.raises(AssertionError, match=r"self\.apply\(Opened\(owner=''\)\)"):
        account.then(Opened())


def test_a_class_of_commands_is_not_a_command() -> None:
    with inline(MemoryEventStore()), pytest.raises(DefinitionError, match=r"got the class .*Open; make an instance"):
        execute_command(Open)  # type: ignore[arg-type]


def test_a_process_manager_executes_nothing_in_a_scenario() -> None:
    class Executing(ProcessManager):
        name, abstract = "mistakes.executing", True

        @handles(Opened)
        def opened(self, event: Opened) -> None:
            execute_command(Open("b"))

    with pytest.raises(ExecuteInsideHandler, match=r"a handler of mistakes\.executing"):
        given(Executing, "a").when(Opened())


def test_a_list_that_is_yielded_is_to_be_unpacked() -> None:
    class Listing(ProcessManager):
        name, abstract = "mistakes.listing", True

        @handles(Opened)
        def opened(self, event: Opened) -> Iterator[Any]:
            yield [Open("b")]

    with pytest.raises(DefinitionError, match="not a command or a deadline; write yield from"):
        given(Listing, "a").when(Opened())


@dataclasses.dataclass
class Kept:
    owner: str = ""


def test_a_misspelt_field_of_a_state_is_found() -> None:
    class Misspelling(ProcessManager[Kept]):
        name, abstract = "mistakes.misspelling", True

        @starts(Opened)
        def opened(self, kept: Kept, event: Opened) -> None:
            kept.ownr = event.owner  # type: ignore[attr-defined]

    with pytest.raises(InvalidField, match=r"Kept\.ownr is no field, .* not be stored; its fields are owner"):
        given(Misspelling, "a").when(Opened(owner="Ada"))


@dataclasses.dataclass
class Derived:
    owner: str = ""

    def __post_init__(self) -> None:
        self.initial = self.owner[:1]
        if self.owner:
            self.is_known = True


def test_what_the_constructor_of_a_state_makes_need_not_be_a_field() -> None:
    class Deriving(ProcessManager[Derived]):
        name, abstract = "mistakes.deriving", True

        @starts(Opened)
        def opened(self, derived: Derived, event: Opened) -> None:
            derived.owner = event.owner

    assert given(Deriving, "a").when(Opened(owner="Ada")).when(Opened(owner="Eve")).state.owner == "Eve"


def test_an_aggregate_is_no_dataclass() -> None:
    @dataclasses.dataclass
    class Account(AggregateRoot):
        type_name = "mistakes.Dataclass"
        owner: str = ""

        @command_handler(Open, creates=True)
        def open(self, command: Open) -> None:
            self.apply(Opened())

        @applies(Opened)
        def _opened(self, event: Opened) -> None: ...

    with pytest.raises(DefinitionError, match=r"Account is marked with @dataclass, .*; remove the mark"):
        _ = Account("a").id


def test_a_subscriber_without_a_marked_method_is_told() -> None:
    class Unmarked(ModelProjection[AccountSummary]):
        name = "mistakes.unmarked"

        def opened(self, row: AccountSummary, event: Opened) -> None: ...

    class Hidden(ProcessManager):
        name = "mistakes.hidden"

        @unwrapped
        @handles(Opened)
        def opened(self, event: Opened) -> None: ...

    class Base(ProcessManager):
        """Has no handler, but a subclass that has one."""

    class Derived(Base):
        name, abstract = "mistakes.derived", True

        @handles(Opened)
        def opened(self, event: Opened) -> None: ...

    class Helper(ProcessManager):
        name, abstract = "mistakes.helper", True

    found = [one for one in check_subscribers(None) if one.id == "enode_django.W180"]
    assert [one.obj for one in found if one.obj in (Unmarked, Hidden, Base, Derived, Helper)] == [Unmarked, Hidden]
    assert "opened()" in found[0].msg
    for cls in (Unmarked, Hidden):
        with pytest.raises(DefinitionError, match="handles no event"):
            given(cls, "a", Opened())
        setattr(cls, "abstract", True)  # noqa: B010 - other tests check the subscribers, too


def listens(event: Opened) -> None: ...


@pytest.mark.parametrize("chosen", [Opens, listens, "mistakes.opens", Opens(), 42])
def test_subscribers_that_are_not_in_a_list_make_one_write_one(chosen: Any) -> None:
    with pytest.raises(DefinitionError, match=r"takes a list of subscribers, got .*put it into a list"):
        inline(MemoryEventStore(), followed_by=chosen)


@pytest.mark.parametrize("chosen", [Opened, 42, None, [Opens]])
def test_what_is_no_subscriber_is_told_by_what_may_follow(chosen: Any) -> None:
    with pytest.raises(DefinitionError, match="takes projections, process managers"), inline(followed_by=[chosen]):
        pass


class WithoutModel(ModelProjection[Any]):
    name, abstract = "mistakes.without_model", True

    @handles(Opened)
    def opened(self, row: Any, event: Opened) -> None: ...


@pytest.mark.parametrize("chosen", [ModelProjection, Projection, ProcessManager, Subscriber, WithoutModel])
def test_a_subscriber_that_nothing_runs_is_told_by_what_to_name(chosen: Any) -> None:
    said = f"{chosen.__qualname__}, which handles nothing, or has no model; name a subclass"
    with pytest.raises(DefinitionError, match=said), inline(MemoryEventStore(), followed_by=[chosen]):
        pass


def test_a_scenario_says_that_its_projection_has_no_model() -> None:
    with pytest.raises(DefinitionError, match=r"WithoutModel has no model; name it: "):
        given(WithoutModel)


@pytest.mark.parametrize("store", [Opens, [Opens], MemoryEventStore])
def test_what_is_no_store_is_told_by_where_subscribers_are_named(store: Any) -> None:
    with pytest.raises(DefinitionError, match=r"name subscribers with followed_by=\[…\]"):
        inline(store)


class Closed(DomainEvent):
    type_name = "mistakes.Closed"


class Close(Command):
    type_name = "mistakes.Close"


def account_with_one_name_for_two_handlers() -> type:
    class Account(AggregateRoot):
        type_name = "mistakes.Twice"

        @command_handler(creates=True)
        def handle(self, command: Open) -> None: ...

        @command_handler
        def handle(self, command: Close) -> None: ...  # type: ignore[no-redef]  # noqa: F811

    return Account


def account_with_one_name_for_two_appliers() -> type:
    class Account(AggregateRoot):
        type_name = "mistakes.Twice"

        @applies
        def on(self, event: Opened) -> None: ...

        @applies
        def on(self, event: Closed) -> None: ...  # type: ignore[no-redef]  # noqa: F811

    return Account


def projection_with_one_name_for_two_handlers() -> type:
    class Accounts(ModelProjection[AccountSummary]):
        name, abstract = "mistakes.twice", True

        @handles(creates=True)
        def on(self, row: AccountSummary, event: Opened) -> None: ...

        @handles
        def on(self, row: AccountSummary, event: Closed) -> None: ...  # type: ignore[no-redef]  # noqa: F811

    return Accounts


@pytest.mark.parametrize(
    "define",
    [
        account_with_one_name_for_two_handlers,
        account_with_one_name_for_two_appliers,
        projection_with_one_name_for_two_handlers,
    ],
)
def test_two_marked_methods_of_one_name_are_one_too_few(define: Callable[[], type]) -> None:
    for _ in range(2):  # who tries again is told again
        with pytest.raises(DefinitionError, match=r"two marked methods (handle|on)\(\), of which Python would keep"):
            define()


@pytest.mark.parametrize("base", ["AggregateRoot", "object"], ids=["aggregate root", "mixin"])
def test_a_class_that_is_defined_again_may_have_other_lines(base: str) -> None:
    """As in a notebook, where a module is loaded again, and where a test defines the same class twice."""
    body = f"class Account({base}):\n    type_name = 'mistakes.Again'\n"
    body += "    @applies\n    def on(self, event: Opened): ...\n"
    names = {"AggregateRoot": AggregateRoot, "applies": applies, "Opened": Opened, "__name__": __name__}
    for broken in (True, False):
        text = f"{body}    1 / 0\n" if broken else f"\n\n{body}"
        with pytest.raises(ZeroDivisionError) if broken else nullcontext():
            exec(compile(text, f"cell {broken}", "exec"), names)
    for lines in ("", "\n" * 9):
        exec(compile(f"{lines}{body}", "module.py", "exec"), names)


def test_marked_methods_that_keep_a_name_of_their_own_are_no_mistake() -> None:
    class WithLambdas(AggregateRoot):
        type_name = "mistakes.WithLambdas"
        seen: str = ""

        _opened = applies(Opened)(lambda self, _: setattr(self, "seen", "opened"))
        _closed = applies(Closed)(lambda self, _: setattr(self, "seen", "closed"))

    class WithOtherName(AggregateRoot):
        type_name = "mistakes.WithOtherName"
        seen: str = ""

        @applies
        def on(self, event: Opened) -> None:
            self.seen = "opened"

        on_opened = on

        @applies
        def on(self, event: Closed) -> None:  # type: ignore[no-redef]
            self.seen = "closed"

    for kind in (WithLambdas, WithOtherName):
        for event, seen in ((Opened(), "opened"), (Closed(), "closed")):
            root = kind("a")
            root.apply(event)
            assert root.seen == seen
