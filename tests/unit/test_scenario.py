from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from django.test import override_settings

from enode_django import (
    Command,
    CommandContext,
    CommandStatus,
    ProcessManager,
    Retry,
    command_handler,
    execute_command,
    handles,
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
    with pytest.raises(DefinitionError, match=r"given\(\) takes domain events, got <class .*Created'>"):
        given(Counter, "x", wrong)
    wrong = Created()
    with pytest.raises(DefinitionError, match=r"when\(\) takes a command, got Created\(\)"):
        given(Counter, "x").when(wrong)
    with pytest.raises(AssertionError, match="nothing has happened yet"):
        given(Counter, "x").then_nothing()


OPENED = AccountOpened(owner="Ada")


class Restless(ProcessManager):
    abstract = True  # so that nobody else runs it
    name = "unit.restless"
    sent = 0

    @handles(AccountOpened)
    def opened(self, event: AccountOpened) -> Iterator[Command]:
        Restless.sent += 1
        yield CloseAccount(aggregate_root_id=f"n{Restless.sent}")


class Steady(ProcessManager):
    abstract = True
    name = "unit.steady"

    @handles(AccountOpened)
    def opened(self, event: AccountOpened) -> Iterator[Command]:
        yield CloseAccount(aggregate_root_id="n")
        yield CloseAccount(aggregate_root_id="n")

    @handles(AccountClosed)
    def closed(self, event: AccountClosed) -> None: ...


def test_a_process_manager_that_sends_something_else_to_a_redelivered_event_is_found() -> None:
    with pytest.raises(AssertionError, match=r"brings .*'n1'.* and delivered again .*'n2'"):
        given(Restless, "x").when(OPENED)


def test_the_commands_of_a_process_manager_are_compared_in_order_and_without_their_ids() -> None:
    scenario = given(Steady, "x").when(OPENED)
    once = CloseAccount(aggregate_root_id="n")
    scenario.then(once, once)
    assert len({command.id for command in scenario.commands}) == 2
    for wrong in ([once], [once, CloseAccount(aggregate_root_id="m")], []):
        with pytest.raises(AssertionError, match="expected the commands"):
            scenario.then(*wrong)
    scenario.when(AccountClosed()).then_nothing()
    with pytest.raises(AssertionError, match="nothing has happened yet"):
        given(Steady, "x").then_nothing()


def test_the_commands_of_a_process_manager_have_the_ids_that_a_worker_gives_them() -> None:
    with inline(MemoryEventStore()) as bus:
        execute_command(OpenAccount(aggregate_root_id="x", owner="Ada"))
        (event,) = bus.events
    expected = with_derived_ids(Steady().opened(event), cause=event.id, subscriber="unit.steady")
    assert [command.id for command in given(Steady, "x").when(OPENED).commands] == [each.id for each in expected]


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
        result = try_command(Refresh(aggregate_root_id="x"))
        assert (result.status, len(attempts)) == (CommandStatus.NOTHING_CHANGED, 4)
        with override_settings(ENODE={"WORKERS": {"ATTEMPTS": 2}}):
            attempts[:] = range(6)
            result = try_command(Refresh(aggregate_root_id="x"))
        assert (result.status, result.error_type, len(attempts)) == (CommandStatus.FAILED, "Retry", 8)
    given(Counter, "x").when(Refresh(aggregate_root_id="x"))


def test_a_store_that_is_away_is_not_waited_for_inside_a_test() -> None:
    class Away(MemoryEventStore):
        def load(self, aggregate_root_id: str, **options: Any) -> Any:
            raise StoreUnavailable("away")

    @command_handler(Look)
    def look(command: Look, context: CommandContext) -> None:
        context.find(Counter, "other")

    with inline(Away()):
        result = try_command(Look(aggregate_root_id="x"))
    assert (result.status, result.error_type) == (CommandStatus.FAILED, "StoreUnavailable")


class Look(Command):
    type_name = "unit.Look"


def test_what_no_scenario_can_be_made_of_is_refused() -> None:
    wrong: Any = Command
    with pytest.raises(DefinitionError, match=r"given\(\) takes a class of aggregates, process managers or Model"):
        given(wrong, "x")
    wrong = OpenAccount(aggregate_root_id="x", owner="Ada")
    with pytest.raises(DefinitionError, match=r"when\(\) takes an event or a refusal, got OpenAccount"):
        given(Steady, "x").when(wrong)
    with pytest.raises(DefinitionError, match=r"given\(\) takes domain events"):
        given(Steady, "x", wrong)


def test_the_row_of_a_projection_is_compared_by_the_fields_that_are_named() -> None:
    row = given(AccountSummaries, "a", OPENED)
    row.then(owner="Ada", aggregate_root_id="a").then()
    with pytest.raises(AssertionError, match="expected owner to be 'Bob', got 'Ada'"):
        row.then(owner="Bob")
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
