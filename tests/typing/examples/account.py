"""A whole account, as on the first screen of an application."""

from __future__ import annotations

from decimal import Decimal

from enode_django import (
    AggregateRoot,
    Command,
    DomainEvent,
    DomainException,
    applies,
    command_handler,
    execute_command,
)


class OpenAccount(Command):
    owner: str


class Withdraw(Command[Decimal]):
    amount: Decimal


class AccountOpened(DomainEvent):
    owner: str


class Withdrawn(DomainEvent):
    balance: Decimal


class InsufficientFunds(DomainException):
    balance: Decimal


class Account(AggregateRoot):
    owner: str = ""
    balance: Decimal = Decimal(100)

    @command_handler(creates=True)
    def open(self, command: OpenAccount) -> None:
        self.apply(AccountOpened(owner=command.owner))

    @command_handler
    def withdraw(self, command: Withdraw) -> Decimal:
        if command.amount > self.balance:
            raise InsufficientFunds("the balance is too low", balance=self.balance)
        self.apply(Withdrawn(balance=self.balance - command.amount))
        return self.balance

    @applies
    def _opened(self, event: AccountOpened) -> None:
        self.owner = event.owner

    @applies
    def _withdrawn(self, event: Withdrawn) -> None:
        self.balance = event.balance


execute_command(OpenAccount("ada", owner="Ada"))
assert execute_command(Withdraw("ada", amount=Decimal(30))).value == 70
