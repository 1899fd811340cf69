"""Commands executed in the test's own transaction."""

from __future__ import annotations

from datetime import timedelta
from decimal import Decimal

from django.test import SimpleTestCase, TestCase

from enode_django import (
    CommandResult,
    CommandStatus,
    Metadata,
    aexecute_command,
    aresult_of,
    asend_command,
    cancel_command,
    current_metadata,
    execute_command,
    metadata,
    result_of,
    send_command,
    send_command_on_commit,
    send_commands,
    try_command,
)
from enode_django.eventstore.memory import MemoryEventStore
from enode_django.models import EventStream
from enode_django.testing import inline
from sample_project.bank.domain import BankAccount, CloseAccount, Deposit, Deposited, OpenAccount, Withdraw


class Accounts(TestCase):
    def test_what_is_paid_in_can_be_taken_out_once(self) -> None:
        with inline():
            execute_command(OpenAccount("a", owner="Ada"))
            execute_command(Deposit("a", amount=Decimal(5)))
            withdraw = Withdraw("a", amount=Decimal(5))
            first, again = execute_command(withdraw), execute_command(withdraw)
            refused = try_command(Withdraw("a", amount=Decimal(1)))
        assert (first.status, first.value, first.version) == (CommandStatus.SUCCESS, Decimal(0), 3)
        assert again == first
        assert (result_of(withdraw.id, "a"), result_of(refused.command_id, "a")) == (first, refused)
        assert BankAccount.load("a", version=2).balance == Decimal(5)
        assert refused.error_type == "bank.InsufficientFunds"
        assert refused.error_fields == {
            "balance": Decimal(0), "amount": Decimal(1), "reserved": Decimal(0), "transfer": None
        }  # fmt: skip
        assert list(
            EventStream.objects.filter(aggregate_root_id="a").order_by("sequence").values_list("version", flat=True)
        ) == [1, 2, 3, None]

    def test_events_are_seen_as_they_were_stored(self) -> None:
        with inline() as bus:
            send_commands(
                [
                    OpenAccount("a", owner="Ada"),
                    Deposit("a", amount=Decimal(5), id="d1"),
                ]
            )
        event = bus.events[-1]
        assert event == Deposited(amount=Decimal(5), balance=Decimal(5))
        assert (event.id, event.version, event.command_id) == ("a/2/0", 2, "d1")

    def test_a_command_for_after_the_commit_waits_for_it(self) -> None:
        with inline() as bus:
            with self.captureOnCommitCallbacks(execute=True):
                send_command_on_commit(OpenAccount("a", owner="Ada"))
                assert bus.results == []
            assert bus.results[0].status == CommandStatus.SUCCESS

    def test_a_closing_that_is_cancelled_before_its_time_does_not_happen(self) -> None:
        with inline() as bus:
            execute_command(OpenAccount("a", owner="Ada"))
            closing = CloseAccount("a")
            send_command(closing, after=timedelta(days=30))
            assert cancel_command(closing.id)
            bus.advance(days=31)
            assert not BankAccount.load("a").closed

    def test_a_test_leaves_nothing_behind(self) -> None:
        assert not EventStream.objects.exists()


class TheCounter(SimpleTestCase):
    """In memory."""

    async def test_an_async_view_pays_in_and_waits_for_the_balance(self) -> None:
        with inline(MemoryEventStore()):
            await asend_command(OpenAccount("a", owner="Ada"))
            result: CommandResult = await aexecute_command(Deposit("a", amount=Decimal(5)))
            assert await aresult_of(result.command_id, "a") == result
            assert (await BankAccount.aload("a")).balance == Decimal(5)
        assert (result.value, result.version) == (Decimal(5), 2)

    def test_an_event_says_who_wanted_it(self) -> None:
        with inline(MemoryEventStore()) as bus, metadata(user_id="17", request="r1"):
            assert current_metadata() == Metadata(user_id="17", request="r1")
            send_command(OpenAccount("a", owner="Ada", id="c1"))
        (event,) = bus.events
        assert event.metadata == Metadata(user_id="17", request="r1", causation_id="c1", correlation_id="c1")
