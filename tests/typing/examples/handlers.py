"""Handlers of commands are methods of aggregates or functions; the command stands in the annotation or the mark."""

from __future__ import annotations

from decimal import Decimal
from typing import assert_type

from enode_django import AggregateRoot, Command, CommandContext, command_handler


class Open(Command):
    owner: str


class Withdraw(Command[Decimal]):
    amount: Decimal


class Deposit(Command[Decimal]):
    amount: Decimal


class Freeze(Command):
    pass


class Thaw(Command):
    pass


class Close(Command):
    pass


class Account(AggregateRoot):
    balance: Decimal = Decimal(0)

    @command_handler(creates=True)
    def open(self, command: Open) -> None: ...

    @command_handler
    def withdraw(self, command: Withdraw) -> Decimal:
        return self.balance - command.amount

    @command_handler
    def freeze(self, command: Freeze | Thaw, context: CommandContext) -> None: ...

    @command_handler(Deposit, retry_on=(OSError,))
    def deposit(self, command: Deposit) -> Decimal:
        return self.balance

    @command_handler(Deposit, Withdraw, Freeze, Thaw, Close)
    def five(self, command: Deposit | Withdraw | Freeze | Thaw | Close) -> None: ...

    @command_handler(Open, Deposit, Withdraw, Freeze, Thaw, Close)
    def six(self, command: Command) -> None: ...

    def call(self, context: CommandContext) -> None:
        assert_type(self.withdraw(Withdraw("a", amount=self.balance)), Decimal)
        self.freeze(Thaw("a"), context=context)
        self.withdraw(Freeze("a"))  # error


@command_handler
def upsert(command: Open, context: CommandContext) -> None:
    account = context.find(Account) or Account(command.aggregate_root_id)
    account.open(command)
    context.add(account)


@command_handler(Close)
def close(command: Close) -> str:
    return command.aggregate_root_id


@command_handler(Freeze, Thaw, retry_on=())
def either(command: Freeze | Thaw, context: CommandContext) -> None: ...


class Broken(AggregateRoot):
    @command_handler  # error
    def number(self, command: int) -> None: ...

    @command_handler(Open)  # error
    def close(self, command: Close) -> None: ...

    @command_handler(Open, Close)  # error
    def one_of_two(self, command: Close) -> None: ...

    @command_handler(Open, creates=True)  # error
    def creating(self, command: Close) -> None: ...

    @command_handler(Open, Close, Freeze, Thaw, Deposit)  # error
    def four_of_five(self, command: Open | Close | Freeze | Thaw) -> None: ...


class NoAggregate:
    @command_handler  # error
    def open(self, command: Open) -> None: ...


@command_handler  # error
def number(command: int, context: CommandContext) -> None: ...


@command_handler(Open)  # error
def another(command: Close, context: CommandContext) -> None: ...
