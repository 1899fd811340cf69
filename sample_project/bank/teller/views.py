"""The pages of a teller: find an account, and deposit, withdraw, transfer or close it.

Deposits and withdrawals use the bank's API (``teller.js``). Without JavaScript each form is sent to its own page.
"""

from __future__ import annotations

from typing import Any

from django.contrib import messages
from django.contrib.auth.mixins import PermissionRequiredMixin
from django.contrib.auth.views import LoginView, LogoutView
from django.core.exceptions import ValidationError
from django.db.models import Q, QuerySet
from django.http import Http404, HttpResponse
from django.urls import NoReverseMatch, reverse, reverse_lazy
from django.views.generic import DetailView, ListView, TemplateView

from enode_django import CommandResult, WaitFor, result_of
from enode_django.exceptions import InvalidId
from enode_django.forms import CommandForm
from enode_django.ids import check_id
from enode_django.views import CommandView
from sample_project.bank.models import AccountSummary, LedgerEntry
from sample_project.bank.teller.forms import CloseForm, DepositForm, OpenForm, TransferForm, WithdrawForm
from sample_project.bank.tellers import SERVE

MOST_FOUND = 20
MOST_ENTRIES = 20


class Home(TemplateView):
    """Leads to everything that the sample has."""

    template_name = "bank/teller/home.html"


class Login(LoginView):
    template_name = "bank/teller/login.html"
    next_page = "bank:accounts"


class Logout(LogoutView):
    next_page = "bank:login"


class Teller:
    """A mixin of all pages except login and logout."""

    permission_required: Any = SERVE
    login_url: Any = reverse_lazy("bank:login")


class Accounts(Teller, PermissionRequiredMixin, ListView):  # type: ignore[type-arg]
    template_name = "bank/teller/accounts.html"

    @property
    def sought(self) -> str:
        return self.request.GET.get("q", "").replace("\0", "").strip()

    def get_queryset(self) -> QuerySet[AccountSummary]:
        accounts = AccountSummary.objects.order_by("owner", "pk")
        if self.sought:
            accounts = accounts.filter(Q(pk=self.sought) | Q(owner__istartswith=self.sought))
        return accounts[:MOST_FOUND]

    def get_context_data(self, **context: Any) -> dict[str, Any]:
        return super().get_context_data(**{"sought": self.sought, "most": MOST_FOUND, **context})


class Account(Teller, PermissionRequiredMixin, DetailView):  # type: ignore[type-arg]
    model = AccountSummary
    pk_url_kwarg = "account"
    template_name = "bank/teller/account.html"

    def get_object(self, queryset: QuerySet[AccountSummary] | None = None) -> AccountSummary:
        try:
            check_id(self.kwargs["account"])
        except InvalidId as error:  # for example a NUL, which a database refuses
            raise Http404(str(error)) from error
        return super().get_object(queryset)  # type: ignore[no-any-return]

    def get_context_data(self, **context: Any) -> dict[str, Any]:
        entries = LedgerEntry.objects.filter(account=self.object.pk).order_by("-version")[:MOST_ENTRIES]
        return super().get_context_data(**{"entries": entries, **context})


class TellerCommand(Teller, CommandView):
    """A page for a command. ``title`` heads the page, ``done`` is the message afterwards. The next page shows the
    effect, so the view waits until the command is handled."""

    template_name = "bank/teller/command.html"
    model = AccountSummary
    aggregate_url_kwarg = "account"
    wait_for = WaitFor.HANDLED
    title = ""
    done = ""
    api = ""
    """The name of the API's URL for the same command."""

    def get_context_data(self, **context: Any) -> dict[str, Any]:
        return super().get_context_data(**{"title": self.title, "done": self.done, "api": self.get_api(), **context})

    def get_api(self) -> str:
        try:
            return reverse(self.api, args=[self.object.pk]) if self.api else ""
        except NoReverseMatch:  # an id with a slash does not fit into the URL
            return ""

    def command_done(self, form: CommandForm, result: CommandResult) -> HttpResponse:
        messages.success(self.request, self.done)
        return super().command_done(form, result)

    def get_success_url(self) -> str:
        assert self.result is not None
        return reverse("bank:account", args=[self.kwargs.get("account", self.result.aggregate_root_id)])


class Open(TellerCommand):
    form_class = OpenForm
    title, done = "Open an account", "The account is open."


class PayIn(TellerCommand):
    form_class = DepositForm
    title, done = "Deposit", "The money is on the account."
    api = "bank:api-account-deposit"


class PayOut(TellerCommand):
    form_class = WithdrawForm
    title, done = "Withdraw", "The money is taken from the account."
    api = "bank:api-account-withdraw"


class Close(TellerCommand):
    """The page that closes an account. It is refused if the account has changed since the page was shown."""

    form_class = CloseForm
    expects_version = True
    title, done = "Close the account", "The account is closed."


class Transfer(TellerCommand):
    """The page that starts a transfer. The command makes a new aggregate; the account of the URL is the source."""

    form_class = TransferForm
    title = "Transfer"
    done = "The transfer is under way. It is among the entries when both accounts have agreed."

    def form_valid(self, form: CommandForm) -> HttpResponse:
        command = form.command()
        is_started = result_of(command.id, command.aggregate_root_id) is not None
        if not is_started and form.cleaned_data["amount"] > self.object.available:
            form.add_error("amount", ValidationError("the balance is too low", code="low"))
            return self.form_invalid(form)
        return super().form_valid(form)

    def get_form_kwargs(self) -> dict[str, Any]:
        return {**super().get_form_kwargs(), "aggregate_root_id": None}

    def get_command_values(self) -> dict[str, Any]:
        return {"source": self.object.pk}
