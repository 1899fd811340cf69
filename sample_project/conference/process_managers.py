"""The process of an order, from its placement to the confirmation or the way back."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta

from enode_django import Command, CommandCrashed, ProcessManager, ends, handles, handles_crash, starts
from sample_project.conference.domain import (
    CancelOrder,
    ConfirmOrder,
    MarkReserved,
    OrderCancelled,
    OrderConfirmed,
    OrderPaid,
    OrderPlaced,
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


def its_order(message: SeatsReserved | SeatsSold | TooFewSeats) -> str:
    """Return the key of the process for what happens to a conference."""
    return message.order


@dataclass
class Booking:
    """What the process of one order has to remember."""

    conference: str = ""
    declined: int = 0


class Bookings(ProcessManager):
    name = "conference.bookings"
    start = "beginning"  # includes orders that were placed before the first worker ran
    state = Booking

    @starts
    def placed(self, booking: Booking, event: OrderPlaced) -> Iterator[Command]:
        booking.conference = event.conference
        yield ReserveSeats(event.conference, order=event.aggregate_root_id, seats=event.seats)

    @handles(key=its_order)
    def reserved(self, booking: Booking, event: SeatsReserved) -> Iterator[Command]:
        yield MarkReserved(event.order, amount=event.amount)

    @handles(key=its_order)
    def too_few(self, booking: Booking, refusal: TooFewSeats) -> Iterator[Command]:
        yield CancelOrder(refusal.order, reason=refusal.message)

    @handles_crash(ReserveSeats, key=lambda crash: crash.command.order)
    def not_reserved(self, booking: Booking, crash: CommandCrashed) -> Iterator[Command]:
        """Cancel the order, for example because there is no such conference."""
        if isinstance(crash.command, ReserveSeats):
            yield CancelOrder(crash.command.order, reason="The seats could not be reserved.")

    @handles
    def declined(self, booking: Booking, event: PaymentDeclined) -> Iterator[Command]:
        booking.declined += 1
        if booking.declined == MOST_DECLINED:
            yield CancelOrder(event.aggregate_root_id, reason=f"The payment was declined {MOST_DECLINED} times.")

    @handles
    def paid(self, booking: Booking, event: OrderPaid) -> Iterator[Command]:
        yield SellSeats(booking.conference, order=event.aggregate_root_id)

    @handles(key=its_order)
    def sold(self, booking: Booking, event: SeatsSold) -> Iterator[Command]:
        yield ConfirmOrder(event.order)

    @ends
    def confirmed(self, booking: Booking, event: OrderConfirmed) -> None: ...

    @ends
    def cancelled(self, booking: Booking, event: OrderCancelled) -> Iterator[Command]:
        """Give the seats back. The conference ignores it if it has reserved none."""
        yield ReleaseSeats(booking.conference, order=event.aggregate_root_id)
