"""Orders from the first command to the last event, with every subscriber of the sample."""

from __future__ import annotations

import pytest
from django.test import TestCase

from enode_django import ValueTaken, execute_command
from enode_django.testing import InlineCommandBus, inline
from sample_project.conference.domain import (
    DeclinePayment,
    NotToBePaid,
    OpenConference,
    PayOrder,
    PlaceOrder,
    RegisterCustomer,
)
from sample_project.conference.models import Availability, CustomerSummary, OrderSummary


class Orders(TestCase):
    def setUp(self) -> None:
        self.bus: InlineCommandBus = self.enterContext(inline())
        execute_command(OpenConference("conference-py", title="PyCon", seats=3, price=100))
        execute_command(RegisterCustomer("customer-ada", name="Ada", email="ada@example.org"))

    def place(self, order: str, seats: int, conference: str = "conference-py") -> None:
        execute_command(PlaceOrder(order, customer="customer-ada", conference=conference, seats=seats))

    def assertState(self, order: str, state: str, reason: str = "") -> None:
        row = OrderSummary.objects.get(pk=order)
        assert (row.state, row.reason) == (state, reason)

    def assertSeats(self, *, reserved: int, confirmed: int, free: int) -> None:
        row = Availability.objects.get(pk="conference-py")
        assert (row.reserved, row.confirmed, row.free) == (reserved, confirmed, free)

    def test_an_order_is_reserved_paid_and_confirmed(self) -> None:
        self.place("order-1", seats=2)
        self.assertState("order-1", "reserved")
        self.assertSeats(reserved=2, confirmed=0, free=1)
        execute_command(PayOrder("order-1", amount=200))
        self.assertState("order-1", "confirmed")
        self.assertSeats(reserved=0, confirmed=2, free=1)

    def test_the_last_seat_goes_to_the_first_who_orders_it(self) -> None:
        self.place("order-1", seats=2)
        self.place("order-2", seats=2)
        self.place("order-3", seats=1)
        self.assertState("order-1", "reserved")
        self.assertState("order-2", "cancelled", "too few seats are left: 1")
        self.assertState("order-3", "reserved")
        self.assertSeats(reserved=3, confirmed=0, free=0)

    def test_an_order_that_is_not_paid_in_time_is_cancelled_and_its_seats_are_free_again(self) -> None:
        self.place("order-1", seats=3)
        self.bus.advance(minutes=14)
        self.assertState("order-1", "reserved")
        self.bus.advance(minutes=1)
        self.assertState("order-1", "cancelled", "it was not paid in time")
        self.assertSeats(reserved=0, confirmed=0, free=3)
        self.place("order-2", seats=3)
        self.assertState("order-2", "reserved")

    def test_a_payment_after_the_deadline_is_refused(self) -> None:
        self.place("order-1", seats=1)
        self.bus.advance(minutes=15)
        with pytest.raises(NotToBePaid, match="the order is cancelled"):
            execute_command(PayOrder("order-1", amount=100))

    def test_the_deadline_of_a_paid_order_passes_without_effect(self) -> None:
        self.place("order-1", seats=1)
        execute_command(PayOrder("order-1", amount=100))
        self.bus.advance(hours=1)
        self.assertState("order-1", "confirmed")

    def test_the_deadlines_of_two_orders_for_one_conference_are_apart(self) -> None:
        self.place("order-1", seats=1)
        self.bus.advance(minutes=10)
        self.place("order-2", seats=1)
        execute_command(PayOrder("order-2", amount=100))
        self.bus.advance(minutes=5)
        self.assertState("order-1", "cancelled", "it was not paid in time")
        self.assertState("order-2", "confirmed")

    def test_three_declined_payments_cancel_the_order(self) -> None:
        self.place("order-1", seats=1)
        for _ in range(3):
            execute_command(DeclinePayment("order-1"))
        self.assertState("order-1", "cancelled", "the payment was declined 3 times")
        self.assertSeats(reserved=0, confirmed=0, free=3)

    def test_an_order_for_an_unknown_conference_is_cancelled(self) -> None:
        self.place("order-1", seats=1, conference="conference-nowhere")
        self.assertState("order-1", "cancelled", "the seats could not be reserved")

    def test_two_customers_do_not_have_one_email_address(self) -> None:
        with pytest.raises(ValueTaken) as refused:
            execute_command(RegisterCustomer("customer-2", name="Ada too", email="ADA@example.org"))
        assert refused.value.fields == ("email",)
        assert not CustomerSummary.objects.filter(pk="customer-2").exists()

    def test_a_customer_sees_what_was_ordered_and_paid(self) -> None:
        self.place("order-1", seats=1)
        self.place("order-2", seats=2)
        execute_command(PayOrder("order-2", amount=200))
        row = CustomerSummary.objects.get(pk="customer-ada")
        assert (row.name, row.placed, row.paid) == ("Ada", 2, 200)
