"""The effects of commands on accounts, transfers and notes, for the builder of runs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, Protocol

Fields = dict[str, Any]
Events = list[tuple[str, Fields]]


class Refused(Exception):
    def __init__(self, name: str, **fields: Any) -> None:
        super().__init__(name)
        self.fields = fields


class NoSuch(Exception):
    """A failure that is not stored."""


@dataclass
class Account:
    owner: str
    opened_at: int
    balance: Decimal = Decimal(0)
    closed: bool = False
    outgoing: dict[str, Decimal] = field(default_factory=dict)
    incoming: dict[str, Decimal] = field(default_factory=dict)

    def check(self, amount: Decimal, transfer: str | None) -> None:
        if self.closed:
            raise Refused("bank.AccountIsClosed", transfer=transfer)
        if amount <= 0:
            raise Refused("bank.InvalidAmount", amount=amount, transfer=transfer)

    def check_funds(self, amount: Decimal, transfer: str | None) -> None:
        reserved = sum(self.outgoing.values(), Decimal(0))
        if amount > self.balance - reserved:
            raise Refused("bank.InsufficientFunds", balance=self.balance, amount=amount, transfer=transfer)


@dataclass
class Transfer:
    source: str
    target: str
    amount: Decimal
    status: str = "started"
    reserved: set[str] = field(default_factory=set)
    moved: set[str] = field(default_factory=set)


@dataclass
class Note:
    title: str
    changed_at: int
    deleted: bool = False


class Bank(Protocol):
    """``now`` in microseconds since 1970."""

    state: dict[str, Account | Transfer | Note]
    now: int


Outcome = tuple[Events, Any]
NOTHING: Outcome = ([], None)


def _open(bank: Bank, id: str, known: Any, fields: Fields) -> Outcome:
    if known is not None:
        raise NoSuch("AggregateExists")
    bank.state[id] = Account(fields["owner"], bank.now)
    return [("bank.AccountOpened", {"owner": fields["owner"]})], None


def _deposit(bank: Bank, id: str, known: Any, fields: Fields) -> Outcome:
    account = _existing(known)
    account.check(fields["amount"], None)
    account.balance += fields["amount"]
    return [("bank.Deposited", {"amount": fields["amount"], "balance": account.balance})], account.balance


def _withdraw(bank: Bank, id: str, known: Any, fields: Fields) -> Outcome:
    account = _existing(known)
    account.check(fields["amount"], None)
    account.check_funds(fields["amount"], None)
    account.balance -= fields["amount"]
    return [("bank.Withdrawn", {"amount": fields["amount"], "balance": account.balance})], account.balance


def _close(bank: Bank, id: str, known: Any, fields: Fields) -> Outcome:
    account = _existing(known)
    if account.closed:
        return NOTHING
    if account.outgoing or account.incoming:
        raise Refused("bank.TransfersUnderWay", transfers=[*account.outgoing, *account.incoming])
    if account.balance:
        raise Refused("bank.AccountNotEmpty", balance=account.balance)
    account.closed = True
    return [("bank.AccountClosed", {})], None


def _reserve_withdrawal(bank: Bank, id: str, known: Any, fields: Fields) -> Outcome:
    if not isinstance(known, Account):
        raise Refused("bank.UnknownAccount", transfer=fields["transfer"])
    known.check(fields["amount"], fields["transfer"])
    known.check_funds(fields["amount"], fields["transfer"])
    known.outgoing[fields["transfer"]] = fields["amount"]
    return [("bank.WithdrawalReserved", fields)], None


def _reserve_deposit(bank: Bank, id: str, known: Any, fields: Fields) -> Outcome:
    if not isinstance(known, Account):
        raise Refused("bank.UnknownAccount", transfer=fields["transfer"])
    known.check(fields["amount"], fields["transfer"])
    known.incoming[fields["transfer"]] = fields["amount"]
    return [("bank.DepositReserved", fields)], None


def _confirm_withdrawal(bank: Bank, id: str, known: Any, fields: Fields) -> Outcome:
    amount = known.outgoing.pop(fields["transfer"])
    known.balance -= amount
    return [("bank.WithdrawalConfirmed", {**fields, "amount": amount, "balance": known.balance})], None


def _confirm_deposit(bank: Bank, id: str, known: Any, fields: Fields) -> Outcome:
    amount = known.incoming.pop(fields["transfer"])
    known.balance += amount
    return [("bank.DepositConfirmed", {**fields, "amount": amount, "balance": known.balance})], None


def _cancel_reservation(bank: Bank, id: str, known: Any, fields: Fields) -> Outcome:
    transfer = fields["transfer"]
    if not isinstance(known, Account) or transfer not in {*known.outgoing, *known.incoming}:
        return NOTHING
    known.incoming.pop(transfer, None)
    released = known.outgoing.pop(transfer, Decimal(0))
    return [("bank.ReservationCancelled", {"transfer": transfer, "released": released})], None


def _start(bank: Bank, id: str, known: Any, fields: Fields) -> Outcome:
    if known is not None:
        raise NoSuch("AggregateExists")
    if fields["source"] == fields["target"]:
        raise Refused("bank.SameAccount", account=fields["source"])
    if fields["amount"] <= 0:
        raise Refused("bank.InvalidAmount", amount=fields["amount"], transfer=None)
    bank.state[id] = Transfer(**fields)
    return [("bank.TransferStarted", fields)], None


def _note_reserved(bank: Bank, id: str, transfer: Any, fields: Fields) -> Outcome:
    if transfer.status != "started":
        return NOTHING
    transfer.reserved.add(fields["side"])
    events: Events = [("bank.ReservationNoted", fields)]
    if len(transfer.reserved) == 2:
        transfer.status = "confirmed"
        events.append(("bank.TransferConfirmed", {"source": transfer.source, "target": transfer.target}))
    return events, None


def _note_moved(bank: Bank, id: str, transfer: Any, fields: Fields) -> Outcome:
    transfer.moved.add(fields["side"])
    events: Events = [("bank.MovementNoted", fields)]
    if len(transfer.moved) == 2:
        transfer.status = "completed"
        events.append(("bank.TransferCompleted", {}))
    return events, None


def _cancel(bank: Bank, id: str, known: Any, fields: Fields) -> Outcome:
    if known is None:
        raise NoSuch("AggregateNotFound")
    if known.status == "cancelled":
        return NOTHING
    if known.status != "started":
        raise Refused("bank.TransferIsConfirmed")
    known.status = "cancelled"
    return [("bank.TransferCancelled", {"source": known.source, "target": known.target, **fields})], None


def _create_note(bank: Bank, id: str, known: Any, fields: Fields) -> Outcome:
    if known is not None:
        raise NoSuch("AggregateExists")
    bank.state[id] = Note(fields["title"].strip(), bank.now)
    return [("notes.NoteCreated", {"title": fields["title"].strip()})], None


def _change_title(bank: Bank, id: str, known: Any, fields: Fields) -> Outcome:
    title = fields["title"].strip()
    if known is None:
        raise NoSuch("AggregateNotFound")
    if known.deleted:
        raise Refused("notes.NoteIsDeleted")
    if title == known.title:
        return NOTHING
    known.title, known.changed_at = title, bank.now
    return [("notes.TitleChanged", {"title": title})], None


def _delete_note(bank: Bank, id: str, known: Any, fields: Fields) -> Outcome:
    if known is None:
        raise NoSuch("AggregateNotFound")
    if known.deleted:
        return NOTHING
    known.deleted = True
    return [("notes.NoteDeleted", {})], None


def _existing(known: Any) -> Account:
    if not isinstance(known, Account):
        raise NoSuch("AggregateNotFound")
    return known


HANDLERS: dict[str, Callable[[Bank, str, Any, Fields], Outcome]] = {
    "bank.OpenAccount": _open,
    "bank.Deposit": _deposit,
    "bank.Withdraw": _withdraw,
    "bank.CloseAccount": _close,
    "bank.ReserveWithdrawal": _reserve_withdrawal,
    "bank.ReserveDeposit": _reserve_deposit,
    "bank.ConfirmWithdrawal": _confirm_withdrawal,
    "bank.ConfirmDeposit": _confirm_deposit,
    "bank.CancelReservation": _cancel_reservation,
    "bank.StartTransfer": _start,
    "bank.NoteReserved": _note_reserved,
    "bank.NoteMoved": _note_moved,
    "bank.CancelTransfer": _cancel,
    "notes.CreateNote": _create_note,
    "notes.ChangeTitle": _change_title,
    "notes.DeleteNote": _delete_note,
}
