"""Transfers of money between two accounts.

A transfer is started; both accounts reserve the amount; it is confirmed; both accounts move the money; it is completed.
Before it is confirmed it can be cancelled: then both accounts release their reservations. After that no account can
refuse, so nothing has to be reversed.
"""

from __future__ import annotations

from decimal import Decimal
from enum import Enum

from enode_django import AggregateRoot, Command, DomainEvent, DomainException, applies, command_handler
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

    @property
    def has_ended(self) -> bool:
        return self.status in (TransferStatus.COMPLETED, TransferStatus.CANCELLED)

    @command_handler(creates=True)
    def start(self, command: StartTransfer) -> None:
        """Start a transfer. Raises `InvalidId` for an invalid account id, to which no command could be sent."""
        check_id(command.source, "source")
        check_id(command.target, "target")
        if command.source == command.target:
            raise SameAccount("a transfer needs two accounts", account=command.source)
        check_amount(command.amount)
        self.apply(TransferStarted(source=command.source, target=command.target, amount=command.amount))

    @command_handler
    def note_reserved(self, command: NoteReserved) -> None:
        """Note a reservation. Does nothing if the transfer was cancelled: the account then cancels its reservation."""
        if self.status is not TransferStatus.STARTED or command.side in self.reserved:
            return
        self.apply(ReservationNoted(side=command.side))
        if self.reserved == set(Side):
            self.apply(TransferConfirmed(source=self.source, target=self.target))

    @command_handler
    def note_moved(self, command: NoteMoved) -> None:
        if self.status is not TransferStatus.CONFIRMED or command.side in self.moved:
            return
        self.apply(MovementNoted(side=command.side))
        if self.moved == set(Side):
            self.apply(TransferCompleted())

    @command_handler
    def cancel(self, command: CancelTransfer) -> None:
        """Cancel the transfer. Does nothing if it is cancelled: both accounts may have refused."""
        if self.status is TransferStatus.CANCELLED:
            return
        if self.status is not TransferStatus.STARTED:
            raise TransferIsConfirmed("both accounts have agreed; start a transfer the other way")
        self.apply(TransferCancelled(source=self.source, target=self.target, reason=command.reason))

    @applies
    def _started(self, event: TransferStarted) -> None:
        self.source, self.target, self.amount = event.source, event.target, event.amount

    @applies
    def _reservation_noted(self, event: ReservationNoted) -> None:
        self.reserved.add(event.side)

    @applies
    def _confirmed(self, event: TransferConfirmed) -> None:
        self.status = TransferStatus.CONFIRMED

    @applies
    def _movement_noted(self, event: MovementNoted) -> None:
        self.moved.add(event.side)

    @applies
    def _completed(self, event: TransferCompleted) -> None:
        self.status = TransferStatus.COMPLETED

    @applies
    def _cancelled(self, event: TransferCancelled) -> None:
        self.status = TransferStatus.CANCELLED
