from __future__ import annotations

from enode_django import CommandContext, command_handler
from sample_project.bank.domain import BankAccount, CloseAccount, Deposit, OpenAccount, Withdraw


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
