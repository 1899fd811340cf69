"""Seats of conferences, and the orders of customers.

An order is placed. When the conference has reserved its seats, it can be paid; then the seats are sold, and the order
is confirmed. It is cancelled if too few seats are left, or if it is not paid in time: then its seats are released.
"""

from __future__ import annotations

from enum import Enum
from typing import Annotated

from msgspec import Meta

from enode_django import (
    AggregateId,
    AggregateRoot,
    Command,
    DomainEvent,
    DomainException,
    Unique,
    applies,
    command_handler,
)

Seats = Annotated[int, Meta(ge=1, le=1_000)]
Price = Annotated[int, Meta(ge=0, le=100_000)]


# -- customers --------------------------------------------------------------------------------------------------------


class RegisterCustomer(Command):
    name: str
    email: str


class CustomerRegistered(DomainEvent):
    name: str
    email: str


class Customer(AggregateRoot):
    id_prefix = "customer-"
    unique = Unique("email", normalize=str.casefold, message="This e-mail address is registered already.")
    email: str = ""

    @command_handler(creates=True)
    def register(self, command: RegisterCustomer) -> None:
        self.apply(CustomerRegistered(name=command.name, email=command.email))

    @applies
    def _registered(self, event: CustomerRegistered) -> None:
        self.email = event.email


# -- conferences ------------------------------------------------------------------------------------------------------


class OpenConference(Command):
    title: str
    seats: Seats
    price: Price


class ReserveSeats(Command):
    exposed = False  # only the process manager sends it
    order: str
    seats: Seats


class SellSeats(Command):
    exposed = False
    order: str


class ReleaseSeats(Command):
    exposed = False
    order: str


class ConferenceOpened(DomainEvent):
    title: str
    seats: int
    price: int


class SeatsReserved(DomainEvent):
    order: str
    seats: int
    amount: int


class SeatsSold(DomainEvent):
    order: str


class SeatsReleased(DomainEvent):
    order: str


class TooFewSeats(DomainException):
    order: str
    left: int


class Conference(AggregateRoot):
    """Decides who gets the last seat: its commands are handled one after the other. ``reserved`` has the seats of the
    orders that are not paid yet."""

    id_prefix = "conference-"
    price: int = 0
    left: int = 0
    reserved: dict[str, int] = {}

    @command_handler(creates=True)
    def open(self, command: OpenConference) -> None:
        self.apply(ConferenceOpened(title=command.title, seats=command.seats, price=command.price))

    @command_handler
    def reserve(self, command: ReserveSeats) -> None:
        if command.seats > self.left:
            raise TooFewSeats(f"too few seats are left: {self.left}", order=command.order, left=self.left)
        amount = command.seats * self.price
        self.apply(SeatsReserved(order=command.order, seats=command.seats, amount=amount))

    @command_handler
    def sell(self, command: SellSeats) -> None:
        if command.order in self.reserved:
            self.apply(SeatsSold(order=command.order))

    @command_handler
    def release(self, command: ReleaseSeats) -> None:
        if command.order in self.reserved:
            self.apply(SeatsReleased(order=command.order))

    @applies
    def _opened(self, event: ConferenceOpened) -> None:
        self.left, self.price = event.seats, event.price

    @applies
    def _reserved(self, event: SeatsReserved) -> None:
        self.left -= event.seats
        self.reserved[event.order] = event.seats

    @applies
    def _sold(self, event: SeatsSold) -> None:
        del self.reserved[event.order]

    @applies
    def _released(self, event: SeatsReleased) -> None:
        self.left += self.reserved.pop(event.order)


# -- orders -----------------------------------------------------------------------------------------------------------


class OrderState(Enum):
    PLACED = "placed"
    RESERVED = "reserved"
    PAID = "paid"
    CONFIRMED = "confirmed"
    CANCELLED = "cancelled"


class PlaceOrder(Command):
    customer: str
    conference: AggregateId
    seats: Seats


class PayOrder(Command):
    amount: int


class DeclinePayment(Command):
    pass


class MarkReserved(Command):
    exposed = False
    amount: int


class ConfirmOrder(Command):
    exposed = False


class CancelOrder(Command):
    exposed = False
    reason: str


class OrderPlaced(DomainEvent):
    customer: str
    conference: str
    seats: int


class OrderReserved(DomainEvent):
    conference: str
    seats: int
    amount: int


class OrderPaid(DomainEvent):
    customer: str
    amount: int


class PaymentDeclined(DomainEvent):
    pass


class OrderConfirmed(DomainEvent):
    conference: str
    seats: int


class OrderCancelled(DomainEvent):
    """``released`` is the number of seats that were reserved."""

    conference: str
    released: int
    reason: str


class NotToBePaid(DomainException):
    pass


class WrongAmount(DomainException):
    amount: int


class Order(AggregateRoot):
    """Decides whether a payment or the deadline came first."""

    id_prefix = "order-"
    customer: str = ""
    conference: str = ""
    seats: int = 0
    amount: int = 0
    state: OrderState = OrderState.PLACED

    @command_handler(creates=True)
    def place(self, command: PlaceOrder) -> None:
        self.apply(OrderPlaced(customer=command.customer, conference=command.conference, seats=command.seats))

    @command_handler
    def mark_reserved(self, command: MarkReserved) -> None:
        if self.state is OrderState.PLACED:
            self.apply(OrderReserved(conference=self.conference, seats=self.seats, amount=command.amount))

    @command_handler
    def pay(self, command: PayOrder) -> None:
        self._check_payable()
        if command.amount != self.amount:
            raise WrongAmount(f"the price is {self.amount}", amount=self.amount)
        self.apply(OrderPaid(customer=self.customer, amount=command.amount))

    @command_handler
    def decline_payment(self, command: DeclinePayment) -> None:
        self._check_payable()
        self.apply(PaymentDeclined())

    @command_handler
    def confirm(self, command: ConfirmOrder) -> None:
        if self.state is OrderState.PAID:
            self.apply(OrderConfirmed(conference=self.conference, seats=self.seats))

    @command_handler
    def cancel(self, command: CancelOrder) -> None:
        """Cancel the order. Does nothing if it is paid, or cancelled already."""
        if self.state in (OrderState.PLACED, OrderState.RESERVED):
            released = self.seats if self.state is OrderState.RESERVED else 0
            self.apply(OrderCancelled(conference=self.conference, released=released, reason=command.reason))

    def _check_payable(self) -> None:
        if self.state is not OrderState.RESERVED:
            raise NotToBePaid(f"the order is {self.state.value}")

    @applies
    def _placed(self, event: OrderPlaced) -> None:
        self.customer, self.conference, self.seats = event.customer, event.conference, event.seats

    @applies
    def _reserved(self, event: OrderReserved) -> None:
        self.amount, self.state = event.amount, OrderState.RESERVED

    @applies
    def _paid(self, event: OrderPaid) -> None:
        self.state = OrderState.PAID

    @applies
    def _declined(self, event: PaymentDeclined) -> None: ...

    @applies
    def _confirmed(self, event: OrderConfirmed) -> None:
        self.state = OrderState.CONFIRMED

    @applies
    def _cancelled(self, event: OrderCancelled) -> None:
        self.state = OrderState.CANCELLED
