"""How a transfer gets from one account to the other."""

from __future__ import annotations

from collections.abc import Iterator

from enode_django import Command, CommandCrashed, ProcessManager, handles, handles_crash
from sample_project.bank.domain import (
    AccountIsClosed,
    CancelReservation,
    CancelTransfer,
    ConfirmDeposit,
    ConfirmWithdrawal,
    DepositConfirmed,
    DepositReserved,
    InsufficientFunds,
    InvalidAmount,
    NoteMoved,
    NoteReserved,
    ReserveDeposit,
    ReserveWithdrawal,
    Side,
    TransferCancelled,
    TransferConfirmed,
    TransferStarted,
    UnknownAccount,
    WithdrawalConfirmed,
    WithdrawalReserved,
)

Refusal = InsufficientFunds | AccountIsClosed | UnknownAccount | InvalidAmount


class TransferProcess(ProcessManager):
    """An account is told to reserve before it is told to cancel, as the transfer's events are handled in order. So no
    reservation outlives its transfer, even where it is made when the transfer is cancelled already."""

    name = "bank.transfers"
    start = "beginning"  # a transfer that was started before the first worker ran is a transfer, too

    @handles
    def started(self, event: TransferStarted) -> Iterator[Command]:
        transfer = event.aggregate_root_id
        yield ReserveWithdrawal(event.source, transfer=transfer, amount=event.amount)
        yield ReserveDeposit(event.target, transfer=transfer, amount=event.amount)

    @handles
    def withdrawal_reserved(self, event: WithdrawalReserved) -> Iterator[Command]:
        yield NoteReserved(event.transfer, side=Side.SOURCE)

    @handles
    def deposit_reserved(self, event: DepositReserved) -> Iterator[Command]:
        yield NoteReserved(event.transfer, side=Side.TARGET)

    @handles
    def confirmed(self, event: TransferConfirmed) -> Iterator[Command]:
        yield ConfirmWithdrawal(event.source, transfer=event.aggregate_root_id)
        yield ConfirmDeposit(event.target, transfer=event.aggregate_root_id)

    @handles
    def withdrawal_confirmed(self, event: WithdrawalConfirmed) -> Iterator[Command]:
        yield NoteMoved(event.transfer, side=Side.SOURCE)

    @handles
    def deposit_confirmed(self, event: DepositConfirmed) -> Iterator[Command]:
        yield NoteMoved(event.transfer, side=Side.TARGET)

    @handles
    def refused(self, refusal: Refusal) -> Iterator[Command]:
        """Deposits and withdrawals at the counter are refused, too: those name no transfer."""
        if refusal.transfer is not None:
            yield CancelTransfer(refusal.transfer, reason=refusal.message)

    @handles_crash(ReserveWithdrawal, ReserveDeposit)
    def not_reserved(self, crash: CommandCrashed) -> Iterator[Command]:
        """Nothing has moved yet, so nobody needs to wait until it is mended. What crashes later has to be done in the
        end: it becomes a dead letter, to be sent again."""
        command = crash.command
        if isinstance(command, ReserveWithdrawal | ReserveDeposit):
            yield CancelTransfer(command.transfer, reason="It could not be carried out.")

    @handles
    def cancelled(self, event: TransferCancelled) -> Iterator[Command]:
        yield CancelReservation(event.source, transfer=event.aggregate_root_id)
        yield CancelReservation(event.target, transfer=event.aggregate_root_id)
