from __future__ import annotations

from enode_django import CommandContext, command_handler
from enode_django.exceptions import AggregateTypeMismatch
from enode_django.ids import check_id
from sample_project.bank.domain import (
    BankAccount,
    CancelReservation,
    CancelTransfer,
    CloseAccount,
    ConfirmDeposit,
    ConfirmWithdrawal,
    Deposit,
    MoneyTransfer,
    NoteMoved,
    NoteReserved,
    OpenAccount,
    ReserveDeposit,
    ReserveWithdrawal,
    StartTransfer,
    UnknownAccount,
    Withdraw,
)


@command_handler(OpenAccount)
def open_account(command: OpenAccount, context: CommandContext) -> None:
    context.add(BankAccount.open(command.aggregate_root_id, command.owner))


@command_handler(Deposit)
def deposit(command: Deposit, context: CommandContext) -> None:
    account = context.get(BankAccount)
    account.deposit(command.amount)
    context.set_result(account.balance)


@command_handler(Withdraw)
def withdraw(command: Withdraw, context: CommandContext) -> None:
    account = context.get(BankAccount)
    account.withdraw(command.amount)
    context.set_result(account.balance)


@command_handler(CloseAccount)
def close_account(command: CloseAccount, context: CommandContext) -> None:
    context.get(BankAccount).close()


# -- an account's part in a transfer ------------------------------------------------------------------------------


@command_handler(ReserveWithdrawal)
def reserve_withdrawal(command: ReserveWithdrawal, context: CommandContext) -> None:
    _account_to_reserve(context, command.transfer).reserve_withdrawal(command.transfer, command.amount)


@command_handler(ReserveDeposit)
def reserve_deposit(command: ReserveDeposit, context: CommandContext) -> None:
    _account_to_reserve(context, command.transfer).reserve_deposit(command.transfer, command.amount)


@command_handler(ConfirmWithdrawal)
def confirm_withdrawal(command: ConfirmWithdrawal, context: CommandContext) -> None:
    context.get(BankAccount).confirm_withdrawal(command.transfer)


@command_handler(ConfirmDeposit)
def confirm_deposit(command: ConfirmDeposit, context: CommandContext) -> None:
    context.get(BankAccount).confirm_deposit(command.transfer)


@command_handler(CancelReservation)
def cancel_reservation(command: CancelReservation, context: CommandContext) -> None:
    account = _find_account(context)
    if account is not None:
        account.cancel_reservation(command.transfer)


def _account_to_reserve(context: CommandContext, transfer: str) -> BankAccount:
    """Raises `InvalidId` for a transfer that can be none: no answer of the account could be sent there."""
    check_id(transfer, "transfer")
    account = _find_account(context)
    if account is None:
        raise UnknownAccount("there is no such account", transfer=transfer)
    return account


def _find_account(context: CommandContext) -> BankAccount | None:
    """None for an id that is another aggregate's, too: whoever starts a transfer may name anything."""
    try:
        return context.find(BankAccount)
    except AggregateTypeMismatch:
        return None


# -- transfers ----------------------------------------------------------------------------------------------------


@command_handler(StartTransfer)
def start_transfer(command: StartTransfer, context: CommandContext) -> None:
    context.add(MoneyTransfer.start(command.aggregate_root_id, command.source, command.target, command.amount))


@command_handler(NoteReserved)
def note_reserved(command: NoteReserved, context: CommandContext) -> None:
    context.get(MoneyTransfer).note_reserved(command.side)


@command_handler(NoteMoved)
def note_moved(command: NoteMoved, context: CommandContext) -> None:
    context.get(MoneyTransfer).note_moved(command.side)


@command_handler(CancelTransfer)
def cancel_transfer(command: CancelTransfer, context: CommandContext) -> None:
    context.get(MoneyTransfer).cancel(command.reason)
