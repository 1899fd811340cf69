"""An account, replayed: its balance, its reservations, its ledger, and its row in the read model."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, NamedTuple, TypeAlias

from chaos.checker.decoding import Event

TYPE = "bank.BankAccount"
ZERO = Decimal(0)


class Booking(NamedTuple):
    """A row of the ledger. ``amount`` is negative for withdrawals; ``transfer`` is empty without a transfer."""

    version: int
    kind: str
    amount: Decimal
    balance: Decimal
    transfer: str
    at: int


class Movement(NamedTuple):
    account: str
    amount: Decimal


@dataclass(slots=True)
class Account:
    """An account. ``problems`` are sentences about events that the bank's rules do not allow."""

    id: str
    version: int = 0
    owner: str = ""
    opened_at: int = 0
    balance: Decimal = ZERO
    available: Decimal = ZERO
    closed: bool = False
    paid_in: Decimal = ZERO
    outgoing: dict[str, Decimal] = field(default_factory=dict)
    incoming: dict[str, Decimal] = field(default_factory=dict)
    bookings: list[Booking] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    def apply(self, version: int, at: int, event: Event) -> None:
        """Apply an event. Raises LookupError, TypeError or ValueError if it is not an account's."""
        self.version = version
        _APPLIERS[event.type_name](self, at, event.fields)

    def settle(self, transfer: str, reserved: dict[str, Decimal], amount: Decimal) -> None:
        """Remove a confirmed reservation."""
        expected = reserved.pop(transfer, None)
        if expected != amount:
            self.complain(f"moves {amount} for transfer {transfer}, for which {expected} is reserved")

    def move(self, kind: str, at: int, amount: Decimal, fields: Mapping[str, Any]) -> None:
        self.balance += amount
        if fields["balance"] != self.balance:
            self.complain(f"says that the balance is {fields['balance']}; it is {self.balance}")
            self.balance = fields["balance"]
        self.bookings.append(Booking(self.version, kind, amount, self.balance, fields.get("transfer", ""), at))
        self.check()

    def check(self) -> None:
        if self.balance < 0:
            self.complain(f"has the balance {self.balance}")
        elif self.available < 0:
            self.complain(f"has reserved more than it holds: {self.available} is left")

    def complain(self, text: str) -> None:
        self.problems.append(f"version {self.version} of account {self.id} {text}")


def _opened(account: Account, at: int, fields: Mapping[str, Any]) -> None:
    account.owner, account.opened_at = fields["owner"], at


def _deposited(account: Account, at: int, fields: Mapping[str, Any]) -> None:
    account.paid_in += fields["amount"]
    account.available += fields["amount"]
    account.move("deposit", at, fields["amount"], fields)


def _withdrawn(account: Account, at: int, fields: Mapping[str, Any]) -> None:
    account.paid_in -= fields["amount"]
    account.available -= fields["amount"]
    account.move("withdrawal", at, -fields["amount"], fields)


def _withdrawal_reserved(account: Account, at: int, fields: Mapping[str, Any]) -> None:
    account.outgoing[fields["transfer"]] = fields["amount"]
    account.available -= fields["amount"]
    account.check()


def _deposit_reserved(account: Account, at: int, fields: Mapping[str, Any]) -> None:
    account.incoming[fields["transfer"]] = fields["amount"]


def _withdrawal_confirmed(account: Account, at: int, fields: Mapping[str, Any]) -> None:
    account.settle(fields["transfer"], account.outgoing, fields["amount"])
    account.move("transfer out", at, -fields["amount"], fields)


def _deposit_confirmed(account: Account, at: int, fields: Mapping[str, Any]) -> None:
    account.settle(fields["transfer"], account.incoming, fields["amount"])
    account.available += fields["amount"]
    account.move("transfer in", at, fields["amount"], fields)


def _reservation_cancelled(account: Account, at: int, fields: Mapping[str, Any]) -> None:
    released = account.outgoing.pop(fields["transfer"], ZERO)
    account.incoming.pop(fields["transfer"], None)
    account.available += fields["released"]
    if released != fields["released"]:
        account.complain(f"releases {fields['released']} of {released} for transfer {fields['transfer']}")


def _closed(account: Account, at: int, fields: Mapping[str, Any]) -> None:
    account.closed = True
    if account.balance or account.outgoing or account.incoming:
        account.complain(f"closes it with the balance {account.balance} or transfers under way")


Apply: TypeAlias = Callable[[Account, int, Mapping[str, Any]], None]

_APPLIERS: Mapping[str, Apply] = {
    "bank.AccountOpened": _opened,
    "bank.Deposited": _deposited,
    "bank.Withdrawn": _withdrawn,
    "bank.WithdrawalReserved": _withdrawal_reserved,
    "bank.DepositReserved": _deposit_reserved,
    "bank.WithdrawalConfirmed": _withdrawal_confirmed,
    "bank.DepositConfirmed": _deposit_confirmed,
    "bank.ReservationCancelled": _reservation_cancelled,
    "bank.AccountClosed": _closed,
}


def movements(accounts: Iterable[Account]) -> dict[str, list[Movement]]:
    """Return the amounts that each transfer has added to accounts, by the transfer's id."""
    moved: dict[str, list[Movement]] = {}
    for account in accounts:
        for booking in account.bookings:
            if booking.transfer:
                moved.setdefault(booking.transfer, []).append(Movement(account.id, booking.amount))
    return moved
