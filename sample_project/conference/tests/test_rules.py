"""The rules of customers, conferences and orders, and what the process of an order sends."""

from __future__ import annotations

from django.test import SimpleTestCase

from enode_django import CancelDeadline, Deadline
from enode_django.testing import given
from sample_project.conference.domain import (
    CancelOrder,
    Conference,
    ConferenceOpened,
    ConfirmOrder,
    DeclinePayment,
    MarkReserved,
    NotToBePaid,
    Order,
    OrderCancelled,
    OrderConfirmed,
    OrderPaid,
    OrderPlaced,
    OrderReserved,
    PaymentDeclined,
    PayOrder,
    ReleaseSeats,
    ReserveSeats,
    SeatsReleased,
    SeatsReserved,
    SeatsSold,
    SellSeats,
    TooFewSeats,
    WrongAmount,
)
from sample_project.conference.process_managers import TIME_TO_PAY, Booking, Bookings
from sample_project.conference.projections import Availabilities

OPENED = ConferenceOpened(title="PyCon", seats=3, price=100)
PLACED = OrderPlaced(customer="customer-ada", conference="conference-py", seats=2)
RESERVED = OrderReserved(conference="conference-py", seats=2, amount=200)
PAID = OrderPaid(customer="customer-ada", amount=200)
CANCELLED = OrderCancelled(conference="conference-py", released=2, reason="late")
CONFIRMED = OrderConfirmed(conference="conference-py", seats=2)


NOT_PAID = CancelOrder("order-1", reason="it was not paid in time")


def reserve(order: str, seats: int) -> ReserveSeats:
    return ReserveSeats("conference-py", order=order, seats=seats)


class Seats(SimpleTestCase):
    def test_they_are_reserved_until_too_few_are_left(self) -> None:
        conference = given(Conference, "conference-py", OPENED)
        conference.when(reserve("order-1", 2)).then(SeatsReserved(order="order-1", seats=2, amount=200))
        conference.when(reserve("order-2", 2)).then_refused(TooFewSeats, order="order-2", left=1)
        conference.when(reserve("order-3", 1)).then(SeatsReserved(order="order-3", seats=1, amount=100))

    def test_released_seats_are_free_again(self) -> None:
        conference = given(Conference, "conference-py", OPENED, SeatsReserved(order="order-1", seats=3, amount=300))
        conference.when(ReleaseSeats("conference-py", order="order-1")).then(SeatsReleased(order="order-1"))
        conference.when(reserve("order-2", 3)).then(SeatsReserved(order="order-2", seats=3, amount=300))

    def test_sold_seats_stay_sold(self) -> None:
        conference = given(Conference, "conference-py", OPENED, SeatsReserved(order="order-1", seats=3, amount=300))
        conference.when(SellSeats("conference-py", order="order-1")).then(SeatsSold(order="order-1"))
        conference.when(ReleaseSeats("conference-py", order="order-1")).then_nothing()
        conference.when(reserve("order-2", 1)).then_refused(TooFewSeats, left=0)


class Orders(SimpleTestCase):
    def test_a_reserved_order_is_paid_and_confirmed(self) -> None:
        order = given(Order, "order-1", PLACED)
        order.when(MarkReserved("order-1", amount=200)).then(RESERVED)
        order.when(PayOrder("order-1", amount=200)).then(PAID)
        order.when(ConfirmOrder("order-1")).then(CONFIRMED)

    def test_only_a_reserved_order_is_paid_and_with_its_price(self) -> None:
        given(Order, "order-1", PLACED).when(PayOrder("order-1", amount=200)).then_refused(NotToBePaid)
        order = given(Order, "order-1", PLACED, RESERVED)
        order.when(PayOrder("order-1", amount=1)).then_refused(WrongAmount, amount=200)
        order.when(PayOrder("order-1", amount=200)).then(PAID)
        order.when(PayOrder("order-1", amount=200)).then_refused(NotToBePaid)

    def test_a_paid_order_is_not_cancelled(self) -> None:
        given(Order, "order-1", PLACED, RESERVED, PAID).when(CancelOrder("order-1", reason="late")).then_nothing()

    def test_a_cancelled_order_is_neither_paid_nor_declined_nor_reserved(self) -> None:
        order = given(Order, "order-1", PLACED, RESERVED)
        order.when(CancelOrder("order-1", reason="late")).then(CANCELLED)
        order.when(PayOrder("order-1", amount=200)).then_refused(NotToBePaid)
        order.when(DeclinePayment("order-1")).then_refused(NotToBePaid)
        order.when(MarkReserved("order-1", amount=200)).then_nothing()
        order.when(CancelOrder("order-1", reason="again")).then_nothing()


class TheProcess(SimpleTestCase):
    """The scenario is the process of one order. ``of`` names the conference, where something happens to its seats."""

    def test_it_reserves_sells_and_confirms(self) -> None:
        process = given(Bookings, "order-1")
        process.when(PLACED).then(reserve("order-1", 2))
        seats_reserved = SeatsReserved(order="order-1", seats=2, amount=200)
        process.when(seats_reserved, of="conference-py").then(MarkReserved("order-1", amount=200))
        process.when(RESERVED).then(Deadline("payment", NOT_PAID, after=TIME_TO_PAY))
        process.when(PAID).then(CancelDeadline("payment"), SellSeats("conference-py", order="order-1"))
        process.when(SeatsSold(order="order-1"), of="conference-py").then(ConfirmOrder("order-1"))
        process.when(CONFIRMED).then_nothing().then_ended()

    def test_it_cancels_an_order_that_gets_no_seats(self) -> None:
        process = given(Bookings, "order-1", PLACED)
        refusal = TooFewSeats("too few seats are left: 1", order="order-1", left=1)
        process.when(refusal, of="conference-py").then(CancelOrder("order-1", reason="too few seats are left: 1"))

    def test_it_releases_the_seats_of_a_cancelled_order(self) -> None:
        process = given(Bookings, "order-1", PLACED, RESERVED).when(CANCELLED)
        process.then(CancelDeadline("payment"), ReleaseSeats("conference-py", order="order-1")).then_ended()

    def test_it_counts_declined_payments_and_cancels_at_the_third(self) -> None:
        process = given(Bookings, "order-1", PLACED, RESERVED)
        for _ in range(2):
            process.when(PaymentDeclined()).then_nothing()
        process.then_state(Booking(conference="conference-py", declined=2))
        process.when(PaymentDeclined()).then(CancelOrder("order-1", reason="the payment was declined 3 times"))


class TheSeatsOnThePage(SimpleTestCase):
    def test_events_of_many_orders_are_counted_in_any_order(self) -> None:
        row = given(Availabilities, "conference-py", OPENED)
        row.when(RESERVED, id="order-1").when(RESERVED, id="order-2").then("conference-py", seats=3, reserved=4)
        row.when(CONFIRMED, id="order-1").when(CANCELLED, id="order-2").then("conference-py", reserved=0, confirmed=2)
        row.then_in_any_order()
