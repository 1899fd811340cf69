"""The process of a transfer from one account to another."""

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
    """The process manager of transfers. It handles a transfer's events in order, so an account receives the command to
    reserve before the one to cancel. So no reservation outlives its transfer, even if it is made after the
    cancellation."""

    name = "bank.transfers"
    start = "beginning"  # includes transfers that were started before the first worker ran

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
        """Cancel the transfer of a refused reservation. Refused deposits and withdrawals name no transfer."""
        if refusal.transfer is not None:
            yield CancelTransfer(refusal.transfer, reason=refusal.message)

    @handles_crash(ReserveWithdrawal, ReserveDeposit)
    def not_reserved(self, crash: CommandCrashed) -> Iterator[Command]:
        """Cancel the transfer: no money has moved yet, so it need not wait for a fix. A command that crashes later must
        be carried out eventually: it becomes a dead letter, to be sent again."""
        command = crash.command
        if isinstance(command, ReserveWithdrawal | ReserveDeposit):
            yield CancelTransfer(command.transfer, reason="It could not be carried out.")

    @handles
    def cancelled(self, event: TransferCancelled) -> Iterator[Command]:
        yield CancelReservation(event.source, transfer=event.aggregate_root_id)
        yield CancelReservation(event.target, transfer=event.aggregate_root_id)
