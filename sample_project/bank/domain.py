"""Accounts: opened, filled, emptied, closed."""

from __future__ import annotations

from decimal import Decimal

from enode_django import AggregateRoot, Command, DomainEvent, DomainException, applies


class OpenAccount(Command):
    owner: str


class Deposit(Command):
    amount: Decimal


class Withdraw(Command):
    amount: Decimal


class CloseAccount(Command):
    pass


class AccountOpened(DomainEvent):
    owner: str


class Deposited(DomainEvent):
    amount: Decimal
    balance: Decimal


class Withdrawn(DomainEvent):
    amount: Decimal
    balance: Decimal


class AccountClosed(DomainEvent):
    pass


class InvalidAmount(DomainException):
    amount: Decimal


class InsufficientFunds(DomainException):
    balance: Decimal
    amount: Decimal


class AccountIsClosed(DomainException):
    pass


class AccountNotEmpty(DomainException):
    balance: Decimal


class BankAccount(AggregateRoot):
    owner: str = ""
    balance: Decimal = Decimal(0)
    closed: bool = False

    @classmethod
    def open(cls, id: str, owner: str) -> BankAccount:
        account = cls(id)
        account.apply(AccountOpened(owner=owner))
        return account

    def deposit(self, amount: Decimal) -> None:
        self._check(amount)
        self.apply(Deposited(amount=amount, balance=self.balance + amount))

    def withdraw(self, amount: Decimal) -> None:
        self._check(amount)
        if amount > self.balance:
            raise InsufficientFunds("the balance is too low", balance=self.balance, amount=amount)
        self.apply(Withdrawn(amount=amount, balance=self.balance - amount))

    def close(self) -> None:
        """Closing a closed account changes nothing."""
        if self.closed:
            return
        if self.balance:
            raise AccountNotEmpty("withdraw what is left first", balance=self.balance)
        self.apply(AccountClosed())

    def _check(self, amount: Decimal) -> None:
        if self.closed:
            raise AccountIsClosed("the account is closed")
        if amount <= 0:
            raise InvalidAmount("the amount must be positive", amount=amount)

    @applies(AccountOpened)
    def _opened(self, event: AccountOpened) -> None:
        self.owner = event.owner

    @applies(Deposited, Withdrawn)
    def _moved(self, event: Deposited | Withdrawn) -> None:
        self.balance = event.balance

    @applies(AccountClosed)
    def _closed(self, event: AccountClosed) -> None:
        self.closed = True
