"""Handlers of an account's part in a transfer. They are functions because a transfer may name an unknown account."""

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
    """Raises `InvalidId` for a transfer that cannot be an id: no answer could be sent to it."""
    check_id(transfer, "transfer")
    if account := _find_account(context):
        return account
    raise UnknownAccount("there is no such account", transfer=transfer)


def _find_account(context: CommandContext) -> BankAccount | None:
    """Return the account; None if there is none, or if the id belongs to another aggregate."""
    try:
        return context.find(BankAccount)
    except AggregateTypeMismatch:
        return None
