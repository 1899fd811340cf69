"""Accounts whose methods handle commands."""

from __future__ import annotations

from decimal import Decimal

from enode_django import (
    AggregateRoot,
    Command,
    CommandContext,
    DomainEvent,
    DomainException,
    applies,
    command_handler,
)


class Open(Command):
    type_name = "methods.Open"
    owner: str


class OpenSavings(Command):
    type_name = "methods.OpenSavings"


class Withdraw(Command[Decimal]):
    type_name = "methods.Withdraw"
    amount: Decimal


class WithdrawAll(Withdraw):
    type_name = "methods.WithdrawAll"


class Rename(Command[str]):
    type_name = "methods.Rename"
    owner: str


class Restore(Command[str]):
    type_name = "methods.Restore"
    owner: str


class Ask(Command[str]):
    type_name = "methods.Ask"


class Unknown(Command):
    type_name = "methods.Unknown"


class Late(Command):
    type_name = "methods.Late"


class Later(Late):
    type_name = "methods.Later"


class Opened(DomainEvent):
    type_name = "methods.Opened"
    owner: str


class Withdrawn(DomainEvent):
    type_name = "methods.Withdrawn"
    balance: Decimal


class InsufficientFunds(DomainException):
    type_name = "methods.InsufficientFunds"
    balance: Decimal


class Base(AggregateRoot):
    """Shared by two kinds of aggregates, and none itself."""

    type_name = "methods.Base"
    owner: str = ""

    @command_handler
    def rename(self, command: Rename | Restore, context: CommandContext) -> str:
        self.apply(Opened(owner=command.owner))
        return f"{type(self).__name__} {context.aggregate_root_id}"

    @applies
    def _opened(self, event: Opened) -> None:
        self.owner = event.owner


class Account(Base):
    type_name = "methods.Account"
    balance: Decimal = Decimal(100)

    @command_handler(creates=True)
    def open(self, command: Open) -> None:
        if command.owner == "nobody":
            raise InsufficientFunds("nobody has nothing", balance=Decimal(0))
        if command.owner:
            self.apply(Opened(owner=command.owner))

    @command_handler
    def withdraw(self, command: Withdraw) -> Decimal:
        if command.amount > self.balance:
            raise InsufficientFunds("the balance is too low", balance=self.balance)
        self.apply(Withdrawn(balance=self.balance - command.amount))
        return self.balance

    @applies
    def _withdrawn(self, event: Withdrawn) -> None:
        self.balance = event.balance


class Savings(Account):
    type_name = "methods.Savings"

    @command_handler(creates=True)
    def open_savings(self, command: OpenSavings) -> None:
        self.apply(Opened(owner="saver"))

    def withdraw(self, command: Withdraw) -> Decimal:
        return super().withdraw(command) + 1

    @command_handler
    def rename(self, command: Rename | Restore, context: CommandContext) -> str:
        return super().rename(command, context).upper()


class Other(Base):
    type_name = "methods.Other"

    @command_handler(creates=True)
    def ask(self, command: Ask, context: CommandContext) -> str:
        context.set_result("set")
        self.apply(Opened(owner="other"))
        return "returned"


@command_handler
def unknown(command: Unknown) -> list[str]:
    return [command.aggregate_root_id]
