"""The pages: what is free, for everybody; and the registration desk, with customers and their orders."""

from __future__ import annotations

from typing import Any

from django.contrib.auth.mixins import PermissionRequiredMixin
from django.db import transaction
from django.http import HttpResponse, HttpResponseRedirect
from django.shortcuts import get_object_or_404
from django.urls import reverse, reverse_lazy
from django.views.generic import DetailView, ListView

from enode_django import WaitFor, send_command
from enode_django.forms import CommandForm
from enode_django.views import CommandView
from sample_project.conference.forms import DeclineForm, OpenForm, OrderForm, PayForm, RegisterForm
from sample_project.conference.models import Availability, CustomerSummary, OrderSummary, Wish

MOST_SHOWN = 50


class Conferences(ListView):  # type: ignore[type-arg]
    queryset = Availability.objects.exclude(title="").order_by("title")[:MOST_SHOWN]
    template_name = "conference/conferences.html"


class Desk:
    """A mixin of the pages for those who register customers."""

    permission_required: Any = "conference.run_desk"
    login_url: Any = reverse_lazy("bank:login")


class Customers(Desk, PermissionRequiredMixin, ListView):  # type: ignore[type-arg]
    queryset = CustomerSummary.objects.exclude(name="").order_by("name")[:MOST_SHOWN]
    template_name = "conference/customers.html"


class Customer(Desk, PermissionRequiredMixin, DetailView):  # type: ignore[type-arg]
    model = CustomerSummary
    pk_url_kwarg = "customer"
    template_name = "conference/customer.html"

    def get_context_data(self, **context: Any) -> dict[str, Any]:
        orders = self.object.orders.prefetch_related("conference").order_by("-placed_at")[:MOST_SHOWN]
        return super().get_context_data(**{"orders": orders, **context})


class Order(Desk, PermissionRequiredMixin, DetailView):  # type: ignore[type-arg]
    """The page of an order. It says so if the order is still on its way."""

    template_name = "conference/order.html"

    def get_object(self, queryset: Any = None) -> OrderSummary | None:
        return OrderSummary.objects.filter(pk=self.kwargs["order"]).first()

    def get_context_data(self, **context: Any) -> dict[str, Any]:
        return super().get_context_data(**{"wish": Wish.objects.filter(pk=self.kwargs["order"]).first(), **context})


class DeskCommand(Desk, CommandView):
    """A page with a form. The next page shows the effect, so the view waits until the command is handled."""

    template_name = "conference/command.html"
    wait_for = WaitFor.HANDLED


class OpenConference(DeskCommand):
    form_class = OpenForm
    success_url = reverse_lazy("conference:conferences")
    extra_context = {"title": "Open a conference"}


class Register(DeskCommand):
    form_class = RegisterForm
    extra_context = {"title": "Register a customer"}

    def get_success_url(self) -> str:
        assert self.result is not None
        return reverse("conference:customer", args=[self.result.aggregate_root_id])


class PlaceOrder(DeskCommand):
    """Takes an order: the wishes are written, and the command is sent, in one transaction. So there is no order without
    its wishes, and there are none without their order. The seats are reserved later."""

    form_class = OrderForm
    extra_context = {"title": "Order seats"}

    def get_object(self) -> CustomerSummary:
        return get_object_or_404(CustomerSummary, pk=self.kwargs["customer"])

    def get_command_values(self) -> dict[str, Any]:
        return {"customer": self.object.pk}

    def form_valid(self, form: CommandForm) -> HttpResponse:
        command, wishes = form.command(), form.cleaned_data["wishes"]
        with transaction.atomic():
            if wishes:
                Wish.objects.update_or_create(order=command.aggregate_root_id, defaults={"text": wishes})
            send_command(command, outbox=True)
        return HttpResponseRedirect(reverse("conference:order", args=[command.aggregate_root_id]))


class Payment(DeskCommand):
    """Stands for the payment service: it says that an order is paid, or that the payment was declined."""

    model = OrderSummary
    aggregate_url_kwarg = "order"

    def get_success_url(self) -> str:
        return reverse("conference:order", args=[self.object.pk])


class Pay(Payment):
    form_class = PayForm
    extra_context = {"title": "Payment received"}

    def get_initial(self) -> dict[str, Any]:
        return {"amount": self.object.amount}


class Decline(Payment):
    form_class = DeclineForm
    extra_context = {"title": "Payment declined"}
