from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from django.test import override_settings

from enode_django import (
    AggregateRoot,
    Command,
    CommandContext,
    CommandStatus,
    DomainEvent,
    DomainException,
    Metadata,
    ProcessManager,
    Retry,
    applies,
    command_handler,
    current_metadata,
    execute_command,
    handles,
    metadata,
    try_command,
)
from enode_django.eventing.process_managers import with_derived_ids
from enode_django.eventstore.memory import MemoryEventStore
from enode_django.exceptions import DefinitionError, StoreUnavailable
from enode_django.runtime import current_bus
from enode_django.testing import given, inline
from sample_project.bank.domain import AccountClosed, AccountOpened, CloseAccount, OpenAccount
from sample_project.bank.projections import AccountSummaries
from tests.races.counting import Counter, Created


def test_what_is_no_event_and_no_command_is_refused() -> None:
    wrong: Any = Created
    with pytest.raises(DefinitionError, match=r"given\(\) and when\(\) take domain events, got <class .*Created'>"):
        given(Counter, "x", wrong)
    wrong = Created()
    with pytest.raises(DefinitionError, match=r"when\(\) takes a command, got Created\(\)"):
        given(Counter, "x").when(wrong)
    with pytest.raises(AssertionError, match="nothing has happened yet"):
        given(Counter, "x").then_nothing()


OPENED = AccountOpened(owner="Ada")


class Fill(Command[int]):
    type_name = "unit.Fill"
    cups: int = 1


class Make(Command):
    type_name = "unit.Make"


class Drain(Command):
    type_name = "unit.Drain"


class Filled(DomainEvent):
    type_name = "unit.Filled"
    cups: int


class Full(DomainException):
    type_name = "unit.Full"
    cups: int

    @property
    def is_empty(self) -> bool:
        return not self.cups


class Pot(AggregateRoot):
    type_name = "unit.Pot"
    cups: int = 0

    @command_handler(creates=True)
    def make(self, command: Make) -> None:
        self.apply(Filled(cups=1))

    @command_handler
    def fill(self, command: Fill) -> int:
        if self.cups + command.cups > 4:
            raise Full("the pot is full", cups=self.cups)
        if command.cups:
            self.apply(Filled(cups=command.cups))
        return self.cups

    @applies
    def _filled(self, event: Filled) -> None:
        self.cups += event.cups


@command_handler
def drain(command: Drain, context: CommandContext) -> None:
    context.get(Pot).apply(Filled(cups=-1))


def test_the_first_command_says_whose_events_are_given() -> None:
    pot = given(Filled(cups=2)).when(Fill("p")).then(Filled(cups=1)).then_result(3)
    pot.when(Fill("p", cups=2)).then_refused(Full, cups=3)
    pot.when(Fill("p", cups=0)).then_nothing().then_result(3)
    pot.when(Fill("q")).then_failed("AggregateNotFound")
    refused = given(Pot, Filled(cups=4)).when(Fill("p")).then_refused(Full, cups=4, is_empty=False)
    with pytest.raises(DefinitionError, match=r"Full has no field 'cup'; its fields are cups, message"):
        refused.then_refused(Full, cup=4)


def test_a_repeat_that_is_expected_to_change_nothing_is_said_to_be_one() -> None:
    command = OpenAccount("ada", owner="Ada")
    scenario = given().when(command)
    scenario.when(command).then(AccountOpened(owner="Ada"))
    with pytest.raises(AssertionError, match=r"got success \[AccountOpened.*\]; it is a repeat, which gets its first"):
        scenario.then_nothing()
    with pytest.raises(AssertionError, match=r"got failed .*exists already; choose another id\)$"):
        scenario.when(OpenAccount("ada", owner="Ada")).then_nothing()


def test_a_function_does_not_say_whose_events_are_given() -> None:
    with pytest.raises(
        DefinitionError, match=r"Drain is handled by a function; say whose .* given\(SomeAggregate, Some"
    ):
        given(Filled(cups=2)).when(Drain("p"))
    given(Pot, Filled(cups=2)).when(Drain("p")).then(Filled(cups=-1))
    given().when(Drain("p")).then_failed("AggregateNotFound")


def test_a_result_that_is_another_or_missing_is_told() -> None:
    scenario = given(Filled(cups=2)).when(Fill("p"))
    with pytest.raises(AssertionError, match="expected the result 4, got 3"):
        scenario.then_result(4)
    with pytest.raises(AssertionError, match=r"expected the result None, got None \(unit.Full: the pot is full\)"):
        scenario.when(Fill("p", cups=9)).then_result(None)


class Refilling(ProcessManager):
    abstract = True
    name = "unit.refilling"

    @handles
    def filled(self, event: Filled) -> Iterator[Command]:
        if event.cups < 0:
            yield Fill(event.aggregate_root_id)
        if event.cups == 3:
            raise RuntimeError("broken")


def test_in_memory_process_managers_follow_without_a_database() -> None:
    for chosen in (Refilling, Refilling()):
        with inline(MemoryEventStore(), followed_by=[chosen]) as bus:
            execute_command(Make("p"))
            execute_command(Drain("p"))
        assert bus.events == [Filled(cups=1), Filled(cups=-1), Filled(cups=1)]


def test_what_a_process_manager_raises_in_memory_is_raised_until_it_has_handled_the_event() -> None:
    with inline(MemoryEventStore(), followed_by=[Refilling]) as bus:
        execute_command(Make("p"))
        for command in (Fill("p", cups=3), Drain("p")):
            with pytest.raises(RuntimeError, match="broken"):
                execute_command(command)
    assert bus.store.heads(["p"]) == {"p": 3}


def test_only_an_event_handler_follows_as_a_function() -> None:
    with pytest.raises(
        DefinitionError, match=r"<function drain .*> is not an event handler with a name; mark it with @event"
    ):
        inline(MemoryEventStore(), followed_by=[drain]).__enter__()


class Restless(ProcessManager):
    abstract = True  # other tests do not run it
    name = "unit.restless"
    sent = 0

    @handles(AccountOpened)
    def opened(self, event: AccountOpened) -> Iterator[Command]:
        Restless.sent += 1
        yield CloseAccount(f"n{Restless.sent}")


class Steady(ProcessManager):
    abstract = True
    name = "unit.steady"

    @handles(AccountOpened)
    def opened(self, event: AccountOpened) -> Iterator[Command]:
        yield CloseAccount("n")
        yield CloseAccount("n")

    @handles(AccountClosed)
    def closed(self, event: AccountClosed) -> None: ...


def test_a_process_manager_that_sends_something_else_to_a_redelivered_event_is_found() -> None:
    with pytest.raises(AssertionError, match=r"brings .*'n1'.* and delivered again .*'n2'"):
        given(Restless, "x").when(OPENED)


def test_the_commands_of_a_process_manager_are_compared_in_order_and_without_their_ids() -> None:
    scenario = given(Steady, "x").when(OPENED)
    once = CloseAccount("n")
    scenario.then(once, once)
    assert len({command.id for command in scenario.commands}) == 2
    for wrong in ([once], [once, CloseAccount("m")], []):
        with pytest.raises(AssertionError, match="expected the commands"):
            scenario.then(*wrong)
    scenario.when(AccountClosed()).then_nothing()
    with pytest.raises(AssertionError, match="nothing has happened yet"):
        given(Steady, "x").then_nothing()


def test_the_commands_of_a_process_manager_have_the_ids_that_a_worker_gives_them() -> None:
    with inline(MemoryEventStore()) as bus:
        execute_command(OpenAccount("x", owner="Ada"))
        (event,) = bus.events
    expected = with_derived_ids(Steady().opened(event), cause=event.id, subscriber="unit.steady")
    assert [command.id for command in given(Steady, "x").when(OPENED).commands] == [each.id for each in expected]


class Asking(ProcessManager):
    abstract = True
    name = "unit.asking"

    @handles(AccountOpened)
    def opened(self, event: AccountOpened) -> Iterator[Command]:
        known = current_metadata()
        yield CloseAccount(f"{known.causation_id} {known.correlation_id == event.command_id}")


def test_a_process_manager_finds_the_metadata_that_a_worker_gives_it() -> None:
    with inline(MemoryEventStore(), followed_by=[Asking]) as bus:
        execute_command(OpenAccount("x", owner="Ada"))
    assert [result.aggregate_root_id for result in bus.results] == ["x", "x/1/0 True"]
    given(Asking, "x").when(OPENED).then(CloseAccount("x/1/0 True"))


class Busy(DomainException):
    type_name = "unit.Busy"
    durable = False


def test_a_refusal_that_is_not_stored_reaches_no_process_manager() -> None:
    with pytest.raises(DefinitionError, match=r"Busy\(.*\) is not stored .*, so unit.steady .* never get it"):
        given(Steady, "x").when(Busy("later"))


class Ask(Command):
    type_name = "unit.Ask"


def test_handlers_do_not_find_the_metadata_of_the_test_around_them() -> None:
    found: list[Metadata] = []

    @command_handler(Ask)
    def ask(command: Ask, context: CommandContext) -> None:
        found.extend([current_metadata(), context.metadata])

    with inline(MemoryEventStore()), metadata(user_id="17"):
        execute_command(Ask("x"))
        assert current_metadata() == Metadata(user_id="17")
    assert found == [Metadata(), Metadata(user_id="17")]


class Refresh(Command):
    type_name = "unit.Refresh"


def test_errors_that_pass_are_tried_again_at_once_and_as_often_as_in_a_worker() -> None:
    attempts: list[int] = []

    @command_handler(Refresh)
    def refresh(command: Refresh, context: CommandContext) -> None:
        attempts.append(len(attempts))
        if len(attempts) % 7 < 4:
            raise Retry("not yet", after=1_000.0)

    with inline(MemoryEventStore()):
        result = try_command(Refresh("x"))
        assert (result.status, len(attempts)) == (CommandStatus.NOTHING_CHANGED, 4)
        with override_settings(ENODE={"WORKERS": {"ATTEMPTS": 2}}):
            attempts[:] = range(6)
            result = try_command(Refresh("x"))
        assert (result.status, result.error_type, len(attempts)) == (CommandStatus.FAILED, "Retry", 8)
    given(Counter, "x").when(Refresh("x"))


def test_a_store_that_is_away_is_not_waited_for_inside_a_test() -> None:
    class Away(MemoryEventStore):
        def load(self, aggregate_root_id: str, **options: Any) -> Any:
            raise StoreUnavailable("away")

    @command_handler(Look)
    def look(command: Look, context: CommandContext) -> None:
        context.find(Counter, "other")

    with inline(Away()):
        result = try_command(Look("x"))
    assert (result.status, result.error_type) == (CommandStatus.FAILED, "StoreUnavailable")


class Look(Command):
    type_name = "unit.Look"


def test_what_no_scenario_can_be_made_of_is_refused() -> None:
    wrong: Any = Command
    with pytest.raises(DefinitionError, match=r"given\(\) takes events, after a class of aggregates, process managers"):
        given(wrong, "x")
    wrong = OpenAccount("x", owner="Ada")
    with pytest.raises(DefinitionError, match=r"when\(\) takes an event or a refusal, got OpenAccount"):
        given(Steady, "x").when(wrong)
    with pytest.raises(DefinitionError, match=r"take domain events, got OpenAccount"):
        given(Steady, "x", wrong)
    with pytest.raises(DefinitionError, match=r"take domain events, got OpenAccount"):
        given(AccountSummaries).when(wrong)
    wrong = given
    with pytest.raises(DefinitionError, match=r'whose events Steady handles: given\(Steady, "some id", …\)'):
        wrong(Steady, OPENED)
    with pytest.raises(DefinitionError, match=r"take domain events, got 'x'"):
        wrong("x", OPENED)


def test_the_row_of_a_projection_is_compared_by_the_fields_that_are_named() -> None:
    row = given(AccountSummaries, "a", OPENED)
    row.then(owner="Ada", aggregate_root_id="a").then()
    with pytest.raises(AssertionError, match="expected owner to be 'Bob', got 'Ada'"):
        row.then(owner="Bob")
    fields = "aggregate_root_id, version, .*owner"
    with pytest.raises(DefinitionError, match=f"AccountSummary has no field 'ownr'; its fields are .*{fields}"):
        row.then(ownr="Ada")
    with pytest.raises(AssertionError, match="expected no row, got <AccountSummary"):
        row.then_no_row()
    with pytest.raises(AssertionError, match="but there is none"):
        given(AccountSummaries, "a").then_no_row().then(owner="Ada")


def test_an_async_function_cannot_be_decorated_since_it_would_run_outside() -> None:
    async def test() -> None: ...

    with pytest.raises(DefinitionError, match=r"@inline\(\) would end before .*test begins; .* with inline\(\):"):
        inline()(test)


def test_a_decorated_function_has_a_bus_of_its_own_each_time() -> None:
    @inline(MemoryEventStore(), followed_by=iter([]))
    def buses() -> tuple[object, object]:
        with inline(MemoryEventStore()) as inner:
            assert current_bus() is inner
        return current_bus(), current_bus()

    (first, still), (second, _) = buses(), buses()
    assert first is still
    assert first is not second
    assert current_bus() not in (first, second)
