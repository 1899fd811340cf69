"""Bank accounts. Money that a transfer moves is reserved first.

A refusal of a reservation names the transfer, so that the transfer can be cancelled.
"""

from __future__ import annotations

from decimal import Decimal

from enode_django import AggregateRoot, Command, DomainEvent, DomainException, applies, command_handler
from sample_project.bank.domain.money import check_amount


class OpenAccount(Command):
    owner: str


class Deposit(Command[Decimal]):
    amount: Decimal


class Withdraw(Command[Decimal]):
    amount: Decimal


class CloseAccount(Command):
    pass


class ReserveWithdrawal(Command):
    exposed = False
    transfer: str
    amount: Decimal


class ReserveDeposit(Command):
    exposed = False
    transfer: str
    amount: Decimal


class ConfirmWithdrawal(Command):
    exposed = False
    transfer: str


class ConfirmDeposit(Command):
    exposed = False
    transfer: str


class CancelReservation(Command):
    exposed = False
    transfer: str


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


class WithdrawalReserved(DomainEvent):
    transfer: str
    amount: Decimal


class DepositReserved(DomainEvent):
    transfer: str
    amount: Decimal


class WithdrawalConfirmed(DomainEvent):
    transfer: str
    amount: Decimal
    balance: Decimal


class DepositConfirmed(DomainEvent):
    transfer: str
    amount: Decimal
    balance: Decimal


class ReservationCancelled(DomainEvent):
    """``released`` is the amount that may be spent again: 0 if a deposit was reserved."""

    transfer: str
    released: Decimal


class InsufficientFunds(DomainException):
    balance: Decimal
    amount: Decimal
    reserved: Decimal = Decimal(0)
    transfer: str | None = None


class AccountIsClosed(DomainException):
    transfer: str | None = None


class UnknownAccount(DomainException):
    """A reservation for an unknown account: a refusal, because an `AggregateNotFound` would not be published."""

    transfer: str


class NothingReserved(DomainException):
    transfer: str


class AccountNotEmpty(DomainException):
    balance: Decimal


class TransfersUnderWay(DomainException):
    transfers: list[str]


class BankAccount(AggregateRoot):
    """A bank account. ``outgoing`` and ``incoming`` are the reserved amounts by transfer."""

    owner: str = ""
    balance: Decimal = Decimal(0)
    closed: bool = False
    outgoing: dict[str, Decimal] = {}
    incoming: dict[str, Decimal] = {}

    @property
    def reserved(self) -> Decimal:
        """The part of the balance that must not be spent."""
        return sum(self.outgoing.values(), Decimal(0))

    @command_handler(creates=True)
    def open(self, command: OpenAccount) -> None:
        self.apply(AccountOpened(owner=command.owner))

    @command_handler
    def deposit(self, command: Deposit) -> Decimal:
        self._check(command.amount)
        self.apply(Deposited(amount=command.amount, balance=self.balance + command.amount))
        return self.balance

    @command_handler
    def withdraw(self, command: Withdraw) -> Decimal:
        self._check(command.amount)
        self._check_funds(command.amount)
        self.apply(Withdrawn(amount=command.amount, balance=self.balance - command.amount))
        return self.balance

    @command_handler
    def close(self, command: CloseAccount) -> None:
        """Close the account. Does nothing if it is closed."""
        if self.closed:
            return
        if self.outgoing or self.incoming:
            raise TransfersUnderWay("wait for its transfers to end", transfers=[*self.outgoing, *self.incoming])
        if self.balance:
            raise AccountNotEmpty("withdraw what is left first", balance=self.balance)
        self.apply(AccountClosed())

    # -- transfers: the handlers of the first three are functions, because the account may not exist ---------------

    def reserve_withdrawal(self, transfer: str, amount: Decimal) -> None:
        if transfer in self.outgoing:
            return
        self._check(amount, transfer)
        self._check_funds(amount, transfer)
        self.apply(WithdrawalReserved(transfer=transfer, amount=amount))

    def reserve_deposit(self, transfer: str, amount: Decimal) -> None:
        """Reserve a deposit. The account cannot be closed while it is reserved."""
        if transfer in self.incoming:
            return
        self._check(amount, transfer)
        self.apply(DepositReserved(transfer=transfer, amount=amount))

    def cancel_reservation(self, transfer: str) -> None:
        """Cancel a reservation. Does nothing if nothing is reserved: this account may be the one that refused."""
        if transfer in self.outgoing or transfer in self.incoming:
            released = self.outgoing.get(transfer, Decimal(0))
            self.apply(ReservationCancelled(transfer=transfer, released=released))

    @command_handler
    def confirm_withdrawal(self, command: ConfirmWithdrawal) -> None:
        amount = self._reserved_for(command.transfer, self.outgoing)
        self.apply(WithdrawalConfirmed(transfer=command.transfer, amount=amount, balance=self.balance - amount))

    @command_handler
    def confirm_deposit(self, command: ConfirmDeposit) -> None:
        amount = self._reserved_for(command.transfer, self.incoming)
        self.apply(DepositConfirmed(transfer=command.transfer, amount=amount, balance=self.balance + amount))

    # -- rules ----------------------------------------------------------------------------------------------------

    def _check(self, amount: Decimal, transfer: str | None = None) -> None:
        if self.closed:
            raise AccountIsClosed("the account is closed", transfer=transfer)
        check_amount(amount, transfer)

    def _check_funds(self, amount: Decimal, transfer: str | None = None) -> None:
        reserved = self.reserved
        if amount > self.balance - reserved:
            raise InsufficientFunds(
                "the balance is too low", balance=self.balance, amount=amount, reserved=reserved, transfer=transfer
            )

    @staticmethod
    def _reserved_for(transfer: str, reservations: dict[str, Decimal]) -> Decimal:
        if transfer not in reservations:
            raise NothingReserved("nothing is reserved for this transfer", transfer=transfer)
        return reservations[transfer]

    # -- appliers -------------------------------------------------------------------------------------------------

    @applies
    def _opened(self, event: AccountOpened) -> None:
        self.owner = event.owner

    @applies
    def _moved(self, event: Deposited | Withdrawn) -> None:
        self.balance = event.balance

    @applies
    def _closed(self, event: AccountClosed) -> None:
        self.closed = True

    @applies
    def _withdrawal_reserved(self, event: WithdrawalReserved) -> None:
        self.outgoing[event.transfer] = event.amount

    @applies
    def _deposit_reserved(self, event: DepositReserved) -> None:
        self.incoming[event.transfer] = event.amount

    @applies
    def _withdrawal_confirmed(self, event: WithdrawalConfirmed) -> None:
        del self.outgoing[event.transfer]
        self.balance = event.balance

    @applies
    def _deposit_confirmed(self, event: DepositConfirmed) -> None:
        del self.incoming[event.transfer]
        self.balance = event.balance

    @applies
    def _reservation_cancelled(self, event: ReservationCancelled) -> None:
        self.outgoing.pop(event.transfer, None)
        self.incoming.pop(event.transfer, None)
