"""The process of an order, from its placement to the confirmation or the way back."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta

from enode_django import (
    CancelDeadline,
    Command,
    CommandCrashed,
    Deadline,
    ProcessManager,
    ends,
    handles,
    handles_crash,
    starts,
)
from sample_project.conference.domain import (
    CancelOrder,
    ConfirmOrder,
    MarkReserved,
    OrderCancelled,
    OrderConfirmed,
    OrderPaid,
    OrderPlaced,
    OrderReserved,
    PaymentDeclined,
    ReleaseSeats,
    ReserveSeats,
    SeatsReserved,
    SeatsSold,
    SellSeats,
    TooFewSeats,
)

TIME_TO_PAY = timedelta(minutes=15)
MOST_DECLINED = 3
"""Payments, until the order is cancelled."""


def order_of(crash: CommandCrashed) -> str:
    assert isinstance(crash.command, ReserveSeats)  # no other crash is handled
    return crash.command.order


@dataclass
class Booking:
    """The state of one order's process."""

    conference: str = ""
    declined: int = 0


class Bookings(ProcessManager[Booking]):
    name = "conference.bookings"
    start = "beginning"  # includes orders that were placed before the first worker ran

    @starts
    def placed(self, booking: Booking, event: OrderPlaced) -> Iterator[Command]:
        booking.conference = event.conference
        yield ReserveSeats(event.conference, order=event.aggregate_root_id, seats=event.seats)

    @handles(key=lambda event: event.order)
    def reserved(self, booking: Booking, event: SeatsReserved) -> Iterator[Command]:
        yield MarkReserved(event.order, amount=event.amount)

    @handles(key=lambda refusal: refusal.order)
    def too_few(self, booking: Booking, refusal: TooFewSeats) -> Iterator[Command]:
        yield CancelOrder(refusal.order, reason=refusal.message)

    @handles_crash(ReserveSeats, key=order_of)
    def not_reserved(self, booking: Booking, crash: CommandCrashed) -> Iterator[Command]:
        """Cancel the order, for example because there is no such conference."""
        yield CancelOrder(order_of(crash), reason="the seats could not be reserved")

    @handles
    def payable(self, booking: Booking, event: OrderReserved) -> Iterator[Deadline]:
        yield Deadline(
            "payment", CancelOrder(event.aggregate_root_id, reason="it was not paid in time"), after=TIME_TO_PAY
        )

    @handles
    def declined(self, booking: Booking, event: PaymentDeclined) -> Iterator[Command]:
        booking.declined += 1
        if booking.declined == MOST_DECLINED:
            yield CancelOrder(event.aggregate_root_id, reason=f"the payment was declined {MOST_DECLINED} times")

    @handles
    def paid(self, booking: Booking, event: OrderPaid) -> Iterator[Command | CancelDeadline]:
        yield CancelDeadline("payment")
        yield SellSeats(booking.conference, order=event.aggregate_root_id)

    @handles(key=lambda event: event.order)
    def sold(self, booking: Booking, event: SeatsSold) -> Iterator[Command]:
        yield ConfirmOrder(event.order)

    @ends
    def confirmed(self, booking: Booking, event: OrderConfirmed) -> None: ...

    @ends
    def cancelled(self, booking: Booking, event: OrderCancelled) -> Iterator[Command | CancelDeadline]:
        if event.released:
            yield CancelDeadline("payment")
            yield ReleaseSeats(booking.conference, order=event.aggregate_root_id)
