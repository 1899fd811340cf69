"""Transfers of money between two accounts.

A transfer is started; both accounts reserve the amount; it is confirmed; both accounts move the money; it is completed.
Unless it is confirmed it can be cancelled: then both accounts let go of what they reserved. Once it is confirmed no
account can refuse any more, so nothing has to be taken back.
"""

from __future__ import annotations

from decimal import Decimal
from enum import Enum

from enode_django import AggregateRoot, Command, DomainEvent, DomainException, applies
from enode_django.ids import check_id
from sample_project.bank.domain.money import check_amount


class Side(Enum):
    SOURCE = "source"
    TARGET = "target"


class TransferStatus(Enum):
    STARTED = "started"
    CONFIRMED = "confirmed"
    COMPLETED = "completed"
    CANCELLED = "cancelled"


class StartTransfer(Command):
    source: str
    target: str
    amount: Decimal


class NoteReserved(Command):
    exposed = False
    side: Side


class NoteMoved(Command):
    exposed = False
    side: Side


class CancelTransfer(Command):
    exposed = False
    reason: str


class TransferStarted(DomainEvent):
    source: str
    target: str
    amount: Decimal


class ReservationNoted(DomainEvent):
    side: Side


class TransferConfirmed(DomainEvent):
    source: str
    target: str


class MovementNoted(DomainEvent):
    side: Side


class TransferCompleted(DomainEvent):
    pass


class TransferCancelled(DomainEvent):
    source: str
    target: str
    reason: str


class SameAccount(DomainException):
    account: str


class TransferIsConfirmed(DomainException):
    pass


class MoneyTransfer(AggregateRoot):
    source: str = ""
    target: str = ""
    amount: Decimal = Decimal(0)
    status: TransferStatus = TransferStatus.STARTED
    reserved: set[Side] = set()
    moved: set[Side] = set()

    @classmethod
    def start(cls, id: str, source: str, target: str, amount: Decimal) -> MoneyTransfer:
        """Raises `InvalidId` for what cannot be an account's id: no command could be sent there."""
        check_id(source, "source")
        check_id(target, "target")
        if source == target:
            raise SameAccount("a transfer needs two accounts", account=source)
        check_amount(amount)
        transfer = cls(id)
        transfer.apply(TransferStarted(source=source, target=target, amount=amount))
        return transfer

    @property
    def has_ended(self) -> bool:
        return self.status in (TransferStatus.COMPLETED, TransferStatus.CANCELLED)

    def note_reserved(self, side: Side) -> None:
        """Changes nothing if it was cancelled meanwhile: then the account will cancel the reservation, too."""
        if self.status is not TransferStatus.STARTED or side in self.reserved:
            return
        self.apply(ReservationNoted(side=side))
        if self.reserved == set(Side):
            self.apply(TransferConfirmed(source=self.source, target=self.target))

    def note_moved(self, side: Side) -> None:
        if self.status is not TransferStatus.CONFIRMED or side in self.moved:
            return
        self.apply(MovementNoted(side=side))
        if self.moved == set(Side):
            self.apply(TransferCompleted())

    def cancel(self, reason: str) -> None:
        """Cancelling again changes nothing: both accounts may have refused."""
        if self.status is TransferStatus.CANCELLED:
            return
        if self.status is not TransferStatus.STARTED:
            raise TransferIsConfirmed("both accounts have agreed; start a transfer the other way")
        self.apply(TransferCancelled(source=self.source, target=self.target, reason=reason))

    @applies(TransferStarted)
    def _started(self, event: TransferStarted) -> None:
        self.source, self.target, self.amount = event.source, event.target, event.amount

    @applies(ReservationNoted)
    def _reservation_noted(self, event: ReservationNoted) -> None:
        self.reserved.add(event.side)

    @applies(TransferConfirmed)
    def _confirmed(self, event: TransferConfirmed) -> None:
        self.status = TransferStatus.CONFIRMED

    @applies(MovementNoted)
    def _movement_noted(self, event: MovementNoted) -> None:
        self.moved.add(event.side)

    @applies(TransferCompleted)
    def _completed(self, event: TransferCompleted) -> None:
        self.status = TransferStatus.COMPLETED

    @applies(TransferCancelled)
    def _cancelled(self, event: TransferCancelled) -> None:
        self.status = TransferStatus.CANCELLED
