"""The pages, as a browser gets them."""

from __future__ import annotations

from typing import Any

from django.contrib.auth.models import Permission, User
from django.test import TestCase

from enode_django import execute_command
from enode_django.testing import inline
from sample_project.conference.domain import OpenConference, PlaceOrder, RegisterCustomer
from sample_project.conference.models import Availability, CustomerSummary, OrderSummary, Wish

ORDER = "/conference/customers/customer-ada/order/"


class Pages(TestCase):
    def setUp(self) -> None:
        self.enterContext(inline())
        execute_command(OpenConference("conference-py", title="PyCon", seats=3, price=100))
        execute_command(RegisterCustomer("customer-ada", name="Ada", email="ada@example.org"))
        clerk = User.objects.create_user("clara")
        clerk.user_permissions.add(Permission.objects.get(codename="run_desk"))
        self.client.force_login(clerk)

    def send(self, path: str, **entered: Any) -> Any:
        """Send a form. What its transaction commits is done."""
        with self.captureOnCommitCallbacks(execute=True):
            return self.client.post(path, entered)

    def test_everybody_sees_what_is_free_and_only_the_desk_sees_customers(self) -> None:
        execute_command(PlaceOrder("order-1", customer="customer-ada", conference="conference-py", seats=2))
        self.client.logout()
        page = self.client.get("/conference/")
        self.assertContains(page, '<th scope="row">PyCon</th>')
        self.assertContains(page, '<td class="amount">1</td>')
        self.assertNotContains(page, "Open a conference")
        for path in ("customers/", "customers/customer-ada/", "orders/order-1/", "orders/order-1/pay/", "open/"):
            self.assertRedirects(self.client.get(f"/conference/{path}"), f"/teller/login/?next=/conference/{path}")
        self.client.force_login(User.objects.create_user("somebody"))
        assert self.client.get("/conference/customers/").status_code == 403

    def test_a_conference_is_opened(self) -> None:
        done = self.send("/conference/open/", title="DjangoCon", seats=10, price=50)
        self.assertRedirects(done, "/conference/")
        assert Availability.objects.get(title="DjangoCon").free == 10

    def test_a_customer_is_registered_and_a_taken_email_address_is_an_error_at_its_field(self) -> None:
        done = self.send("/conference/customers/register/", name="Bob", email="bob@example.org")
        self.assertContains(self.client.get(done["Location"]), "<h1>Bob</h1>")
        taken = self.send("/conference/customers/register/", name="Eve", email="Bob@Example.org")
        assert taken.status_code == 409
        self.assertFormError(taken.context["form"], "email", "This e-mail address is registered already.")
        assert not CustomerSummary.objects.filter(name="Eve").exists()

    def test_an_order_goes_from_the_form_to_the_confirmation(self) -> None:
        page = self.send(ORDER, conference="conference-py", seats=2, wishes="no nuts")["Location"]
        self.assertContains(self.client.get(page), "200 are to be paid.")
        self.assertContains(self.client.get(page), "no nuts")
        wrong = self.send(f"{page}pay/", amount=1)
        self.assertFormError(wrong.context["form"], "amount", "the price is 200")
        self.assertRedirects(self.send(f"{page}pay/", amount=200), page)
        self.assertContains(self.client.get(page), "<strong>confirmed</strong>")
        self.assertContains(self.client.get("/conference/customers/customer-ada/"), "2 seats, confirmed")

    def test_the_order_and_its_wishes_are_committed_together(self) -> None:
        page = self.client.post(ORDER, {"conference": "conference-py", "seats": 2, "wishes": "no nuts"})["Location"]
        assert Wish.objects.get().text == "no nuts"
        self.assertContains(self.client.get(page), "The order is on its way.")  # TestCase has not committed yet
        assert not OrderSummary.objects.exists()

    def test_a_form_that_is_sent_twice_is_one_order(self) -> None:
        token = self.client.get(ORDER).context["form"]["command_id"].value()
        sent = {"conference": "conference-py", "seats": 2, "wishes": "no nuts", "command_id": token}
        assert self.send(ORDER, **sent)["Location"] == self.send(ORDER, **sent)["Location"]
        assert OrderSummary.objects.count() == Wish.objects.count() == 1
        assert Availability.objects.get().reserved == 2

    def test_a_declined_payment_leaves_the_order_to_be_paid(self) -> None:
        page = self.send(ORDER, conference="conference-py", seats=1)["Location"]
        self.assertRedirects(self.send(f"{page}decline/"), page)
        self.assertContains(self.client.get(page), "100 are to be paid.")

    def test_orders_for_an_unknown_conference_are_shown(self) -> None:
        execute_command(PlaceOrder("order-1", customer="customer-ada", conference="conference-nowhere", seats=1))
        for path in ("customers/customer-ada/", "orders/order-1/"):
            self.assertContains(self.client.get(f"/conference/{path}"), "Unknown conference")

    def test_what_does_not_exist_is_not_found(self) -> None:
        for path in ("customers/nobody/", "customers/nobody/order/", "orders/nothing/pay/", "orders/%00/"):
            assert self.client.get(f"/conference/{path}").status_code == 404, path
