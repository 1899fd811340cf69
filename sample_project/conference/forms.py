"""The forms of the desk. Refusals become errors of the form, at the field that they name."""

from __future__ import annotations

from django import forms

from enode_django.forms import CommandForm
from sample_project.conference.domain import DeclinePayment, OpenConference, PayOrder, PlaceOrder, RegisterCustomer
from sample_project.conference.models import Availability


class OpenForm(CommandForm):
    title = forms.CharField(max_length=100)

    class Meta:
        command = OpenConference
        labels = {"price": "Price of a seat"}


class RegisterForm(CommandForm):
    name = forms.CharField(max_length=100)
    email = forms.EmailField(label="E-mail address")

    class Meta:
        command = RegisterCustomer


class OrderForm(CommandForm):
    conference = forms.ModelChoiceField(Availability.objects.order_by("title"))
    wishes = forms.CharField(
        required=False, max_length=500, help_text="Food, access, a quiet seat …", widget=forms.Textarea({"rows": 2})
    )

    class Meta:
        command = PlaceOrder

    def clean_conference(self) -> str:
        return str(self.cleaned_data["conference"].pk)


class PayForm(CommandForm):
    class Meta:
        command = PayOrder


class DeclineForm(CommandForm):
    class Meta:
        command = DeclinePayment
