"""The rows of the pages."""

from __future__ import annotations

from enode_django import ModelProjection, handles
from sample_project.conference.domain import (
    OrderCancelled,
    OrderConfirmed,
    OrderPaid,
    OrderPlaced,
    OrderReserved,
    OrderState,
)
from sample_project.conference.models import OrderSummary


class Orders(ModelProjection[OrderSummary]):
    @handles
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
