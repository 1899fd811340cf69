"""An account's part in a transfer, where there may be no such account: whoever starts a transfer may name anything."""

from __future__ import annotations

from enode_django import CommandContext, command_handler
from enode_django.exceptions import AggregateTypeMismatch
from enode_django.ids import check_id
from sample_project.bank.domain import (
    BankAccount,
    CancelReservation,
    ReserveDeposit,
    ReserveWithdrawal,
    UnknownAccount,
)


@command_handler
def reserve_withdrawal(command: ReserveWithdrawal, context: CommandContext) -> None:
    _account_to_reserve(context, command.transfer).reserve_withdrawal(command.transfer, command.amount)


@command_handler
def reserve_deposit(command: ReserveDeposit, context: CommandContext) -> None:
    _account_to_reserve(context, command.transfer).reserve_deposit(command.transfer, command.amount)


@command_handler
def cancel_reservation(command: CancelReservation, context: CommandContext) -> None:
    if account := _find_account(context):
        account.cancel_reservation(command.transfer)


def _account_to_reserve(context: CommandContext, transfer: str) -> BankAccount:
    """Raises `InvalidId` for a transfer that can be none: no answer of the account could be sent there."""
    check_id(transfer, "transfer")
    if account := _find_account(context):
        return account
    raise UnknownAccount("there is no such account", transfer=transfer)


def _find_account(context: CommandContext) -> BankAccount | None:
    """None for an id that is another aggregate's, too."""
    try:
        return context.find(BankAccount)
    except AggregateTypeMismatch:
        return None
