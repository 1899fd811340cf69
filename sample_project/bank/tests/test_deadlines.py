"""A deadline in a test of its own: a transfer that is not confirmed within ten minutes is cancelled."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from decimal import Decimal

from enode_django import CancelDeadline, Deadline, ProcessManager, execute_command, handles
from enode_django.eventstore.memory import MemoryEventStore
from enode_django.testing import given, inline
from sample_project.bank.domain import (
    CancelTransfer,
    OpenAccount,
    StartTransfer,
    TransferCancelled,
    TransferConfirmed,
    TransferStarted,
)
from sample_project.bank.process_managers import TransferProcess

PATIENCE = timedelta(minutes=10)


class TransfersEnd(ProcessManager):
    name = "bank.transfers_end"
    abstract = True  # it runs in these tests only

    @handles
    def started(self, event: TransferStarted) -> Iterator[Deadline]:
        cancel = CancelTransfer(event.aggregate_root_id, reason="It took too long.")
        yield Deadline("confirmed", cancel, after=PATIENCE)

    @handles
    def ended(self, event: TransferConfirmed | TransferCancelled) -> Iterator[CancelDeadline]:
        yield CancelDeadline("confirmed")


STARTED = TransferStarted(source="ada", target="bob", amount=Decimal(5))


def test_it_sets_a_deadline_and_cancels_it() -> None:
    process = given(TransfersEnd, "t").when(STARTED)
    process.then(Deadline("confirmed", CancelTransfer("t", reason="It took too long."), after=PATIENCE))
    confirmed = TransferConfirmed(source="ada", target="bob")
    process.when(confirmed).then(CancelDeadline("confirmed"))


def test_a_transfer_that_hangs_is_cancelled() -> None:
    with inline(MemoryEventStore(), followed_by=[TransfersEnd]) as bus:
        execute_command(StartTransfer("t", source="ada", target="bob", amount=Decimal(5)))
        bus.advance(minutes=9)
        assert len(bus.events) == 1
        bus.advance(minutes=1)
        assert isinstance(bus.events[-1], TransferCancelled)
        assert list(bus.scheduled) == []


def test_a_transfer_that_is_confirmed_is_not() -> None:
    with inline(MemoryEventStore(), followed_by=[TransfersEnd, TransferProcess]) as bus:
        execute_command(OpenAccount("ada", owner="Ada"))
        execute_command(OpenAccount("bob", owner="Bob"))
        execute_command(StartTransfer("t", source="ada", target="bob", amount=Decimal(1)))
        before = len(bus.results)
        bus.advance(days=1)
        assert len(bus.results) == before
