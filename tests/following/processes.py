"""Orders, their payments, and a process manager with a state for each order."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from decimal import Decimal

from enode_django import (
    AggregateRoot,
    CancelDeadline,
    Command,
    CommandCrashed,
    Deadline,
    DomainEvent,
    DomainException,
    ProcessManager,
    applies,
    ends,
    handles,
    handles_crash,
    starts,
)
from tests.following.domain import behaviour


class Placed(DomainEvent):
    type_name = "processes.Placed"
    price: int


class Finished(DomainEvent):
    type_name = "processes.Finished"


class Paid(DomainEvent):
    type_name = "processes.Paid"
    order: str
    amount: int


class Wired(DomainEvent):
    """A payment whose order is not a text: no key comes of it."""

    type_name = "processes.Wired"
    order: int


class NotPaid(DomainException):
    type_name = "processes.NotPaid"
    order: str | None = None


class Order(AggregateRoot):
    type_name = "processes.Order"

    @applies(Placed, Finished)
    def _ignore(self, event: DomainEvent) -> None: ...


class Payment(AggregateRoot):
    type_name = "processes.Payment"

    @applies(Paid, Wired)
    def _ignore(self, event: DomainEvent) -> None: ...


class Ship(Command):
    type_name = "processes.Ship"
    paid: int


class Deliver(Command):
    type_name = "processes.Deliver"
    order: str
    price: int


class Remind(Command):
    type_name = "processes.Remind"
    why: str


@dataclasses.dataclass
class Sale:
    price: int = 0
    paid: int = 0
    payments: list[str] = dataclasses.field(default_factory=list)
    rate: Decimal = Decimal(1)


class Sales(ProcessManager):
    name = "processes.sales"
    start = "beginning"
    state = Sale

    @starts
    def placed(self, sale: Sale, event: Placed) -> None:
        sale.price = event.price
        behaviour.handle(event)

    @handles(key=lambda event: event.order)
    def paid(self, sale: Sale, event: Paid) -> Iterator[Command]:
        sale.paid += event.amount
        sale.payments.append(event.id)
        behaviour.handle(event)
        if sale.price and sale.paid >= sale.price:
            yield Ship(f"parcel-{event.order}", paid=sale.paid)

    @handles(key=lambda event: event.order)
    def wired(self, sale: Sale, event: Wired) -> None: ...

    @handles(key=lambda refusal: refusal.order)
    def not_paid(self, sale: Sale, refusal: NotPaid) -> Iterator[Command]:
        behaviour.handle(refusal)
        yield Remind(f"customer-{refusal.order}", why=f"{sale.paid} of {sale.price}")

    @handles_crash(Ship, key=lambda crash: crash.command.aggregate_root_id.removeprefix("parcel-") or None)
    def not_shipped(self, sale: Sale, crash: CommandCrashed) -> Iterator[Command]:
        yield Remind("clerk", why=f"{crash.error_type} after {sale.paid}")

    @ends
    def finished(self, sale: Sale, event: Finished) -> None:
        behaviour.handle(event)


class Patience(ProcessManager):
    """Reminds a customer after an hour, unless any payment of the order has come before."""

    name = "processes.patience"
    abstract = True  # it runs only in tests that name it
    start = "beginning"
    state = Sale

    @starts
    def placed(self, sale: Sale, event: Placed) -> Iterator[Command | Deadline]:
        yield Deadline("paid", Remind(event.aggregate_root_id, why="not paid"), after=3600)

    @ends(key=lambda event: event.order)
    def paid(self, sale: Sale, event: Paid) -> Iterator[Command | CancelDeadline]:
        behaviour.handle(event)
        yield CancelDeadline("paid")


@dataclasses.dataclass
class Delivery:
    order: str = ""
    price: int = 0


class Deliveries(ProcessManager, key="order"):
    """Ships an order that is paid and finished, whichever comes first."""

    name = "processes.deliveries"
    abstract = True  # it runs only in tests that name it
    start = "beginning"
    state = Delivery

    @starts
    def placed(self, delivery: Delivery, event: Placed) -> None:
        delivery.price = event.price

    @handles(join=True)
    def complete(self, delivery: Delivery, event: Paid | Finished) -> Iterator[Command]:
        behaviour.handle(event)
        yield Deliver(f"parcel-{delivery.order}", order=delivery.order, price=delivery.price)

    @ends
    @handles_crash(Deliver)
    def failed(self, delivery: Delivery, failure: NotPaid | CommandCrashed) -> Iterator[Command]:
        yield Remind(delivery.order, why=type(failure).__name__)


class Parcels(ProcessManager[Placed], key="order"):
    """Ships an order that is paid and finished. It keeps the event that has begun it."""

    name = "processes.parcels"
    abstract = True  # it runs only in tests that name it
    start = "beginning"

    @starts
    def placed(self, order: Placed, event: Placed) -> Iterator[Command]:
        yield Remind(order.aggregate_root_id, why=f"placed for {order.price}")

    @handles(join=True)
    def complete(self, order: Placed, event: Paid | Finished) -> Iterator[Command]:
        behaviour.handle(event)
        yield Deliver(f"parcel-{order.aggregate_root_id}", order=order.command_id, price=order.price)

    @ends
    def failed(self, order: Placed, refusal: NotPaid) -> Iterator[Command]:
        yield Remind(order.aggregate_root_id, why="not paid")
