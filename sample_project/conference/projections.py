"""The rows of the pages."""

from __future__ import annotations

from enode_django import ModelProjection, MultiProjection, handles
from sample_project.conference.domain import (
    ConferenceOpened,
    CustomerRegistered,
    OrderCancelled,
    OrderConfirmed,
    OrderPaid,
    OrderPlaced,
    OrderReserved,
    OrderState,
)
from sample_project.conference.models import Availability, CustomerSummary, OrderSummary


class Orders(ModelProjection[OrderSummary]):
    """A row for each order, from its own events."""

    @handles(creates=True)
    def placed(self, row: OrderSummary, event: OrderPlaced) -> None:
        row.customer_id, row.conference_id, row.seats = event.customer, event.conference, event.seats
        row.state, row.placed_at = OrderState.PLACED.value, event.timestamp

    @handles
    def reserved(self, row: OrderSummary, event: OrderReserved) -> None:
        row.state, row.amount = OrderState.RESERVED.value, event.amount

    @handles
    def paid(self, row: OrderSummary, event: OrderPaid) -> None:
        row.state = OrderState.PAID.value

    @handles
    def confirmed(self, row: OrderSummary, event: OrderConfirmed) -> None:
        row.state = OrderState.CONFIRMED.value

    @handles
    def cancelled(self, row: OrderSummary, event: OrderCancelled) -> None:
        row.state, row.reason = OrderState.CANCELLED.value, event.reason


class Availabilities(MultiProjection[Availability], key=lambda event: event.conference):
    """A row for each conference, from its own event and those of all its orders, which come in any order: so they add
    and subtract."""

    @handles(key=lambda event: event.aggregate_root_id)
    def opened(self, row: Availability, event: ConferenceOpened) -> None:
        row.title, row.seats, row.price = event.title, event.seats, event.price

    @handles
    def reserved(self, row: Availability, event: OrderReserved) -> None:
        row.reserved += event.seats

    @handles
    def confirmed(self, row: Availability, event: OrderConfirmed) -> None:
        row.reserved -= event.seats
        row.confirmed += event.seats

    @handles
    def cancelled(self, row: Availability, event: OrderCancelled) -> None:
        row.reserved -= event.released


class Customers(MultiProjection[CustomerSummary], key=lambda event: event.customer):
    """A row for each customer, from the registration and all orders of the customer."""

    @handles(key=lambda event: event.aggregate_root_id)
    def registered(self, row: CustomerSummary, event: CustomerRegistered) -> None:
        row.name, row.email = event.name, event.email

    @handles
    def placed(self, row: CustomerSummary, event: OrderPlaced) -> None:
        row.placed += 1

    @handles
    def paid(self, row: CustomerSummary, event: OrderPaid) -> None:
        row.paid += event.amount
