"""The forms of a teller. The account's refusals become form errors."""

from __future__ import annotations

from django import forms
from django.core.exceptions import ValidationError

from enode_django.forms import CommandForm
from sample_project.bank.domain import CloseAccount, Deposit, OpenAccount, StartTransfer, Withdraw
from sample_project.bank.models import AccountSummary


class Amount(forms.DecimalField):
    def __init__(self, **attributes: bool) -> None:
        widget = forms.NumberInput(attrs={"inputmode": "decimal", **attributes})
        super().__init__(max_digits=20, decimal_places=2, widget=widget)


class OpenForm(CommandForm):
    owner = forms.CharField(max_length=100, widget=forms.TextInput(attrs={"autofocus": True}))

    class Meta:
        command = OpenAccount


class DepositForm(CommandForm):
    amount = Amount(autofocus=True)

    class Meta:
        command = Deposit


class WithdrawForm(CommandForm):
    amount = Amount(autofocus=True)

    class Meta:
        command = Withdraw


class CloseForm(CommandForm):
    class Meta:
        command = CloseAccount


class TransferForm(CommandForm):
    """The form of a transfer. The money moves later, when both accounts agree, so the form reports foreseeable failures
    now. The view checks the amount: when a form is sent again, its own transfer has already taken the money."""

    target = forms.CharField(label="To account", max_length=255, widget=forms.TextInput(attrs={"autofocus": True}))
    amount = forms.DecimalField(
        max_digits=20, decimal_places=2, widget=forms.NumberInput(attrs={"inputmode": "decimal"})
    )

    class Meta:
        command = StartTransfer

    def clean_target(self) -> str:
        target: str = self.cleaned_data["target"]
        if not AccountSummary.objects.filter(pk=target, closed=False).exists():
            raise ValidationError("There is no open account with this number.", code="unknown")
        return target
