"""The pages of a teller, as a browser gets them."""

from __future__ import annotations

import re
from decimal import Decimal
from typing import Any

from django.contrib.auth.models import User
from django.test import TestCase, override_settings

from enode_django import execute_command, send_commands
from enode_django.exceptions import CommandTimeout, TransportUnavailable
from enode_django.models import EventStream
from enode_django.runtime import use_bus
from enode_django.testing import InlineCommandBus, inline
from sample_project.bank.domain import CloseAccount, Deposit, OpenAccount, Withdraw
from sample_project.bank.models import AccountSummary
from sample_project.bank.tellers import tellers

IN_THIS_PROCESS = {"default": {"BACKEND": "django.core.cache.backends.locmem.LocMemCache"}}
NASTY = "<script>alert(1)</script>"


@override_settings(CACHES=IN_THIS_PROCESS)
class Counter(TestCase):
    def setUp(self) -> None:
        self.bus: InlineCommandBus = self.enterContext(inline())
        send_commands(
            [
                OpenAccount("a", owner="Ada"),
                OpenAccount("b", owner=NASTY),
                Deposit("a", amount=Decimal(10)),
            ]
        )
        teller = User.objects.create_user("tina")
        teller.groups.add(tellers())
        self.client.force_login(teller)

    def page(self, path: str, status: int = 200) -> str:
        response = self.client.get(f"/teller/{path}")
        assert response.status_code == status
        return str(response.content.decode())

    def hidden(self, page: str) -> dict[str, str]:
        found = re.findall(r'<input type="hidden" name="(command_id|expected_version)" value="([^"]*)"', page)
        assert found
        return dict(found)

    def send(self, path: str, **entered: Any) -> Any:
        """Fill in the form of a page, and send it."""
        return self.client.post(f"/teller/{path}", {**self.hidden(self.page(path)), **entered})

    def balance(self, account: str = "a") -> Decimal:
        return AccountSummary.objects.get(pk=account).balance

    # -- the work of a teller -------------------------------------------------------------------------------------

    def test_accounts_are_found_by_number_and_by_name(self) -> None:
        assert "Ada" in self.page("?q=a")
        assert "Ada" in self.page("?q=AD")
        for nobody in ("da", "%25", "' OR 1=1 --", "x" * 3000):
            assert "There is no such account." in self.page(f"?q={nobody}")
        assert "Ada" in self.page("?q=%00")

    def test_what_customers_are_called_stays_text(self) -> None:
        for path in ("", "accounts/b/", "accounts/b/deposit/"):
            page = self.page(path)
            assert "&lt;script&gt;" in page
            assert NASTY not in page

    def test_an_account_is_opened_once_however_often_the_form_is_sent(self) -> None:
        sent = {**self.hidden(self.page("open/")), "owner": "Bob"}
        first, again = (self.client.post("/teller/open/", sent) for _ in range(2))
        assert first["Location"] == again["Location"]
        page = self.client.get(first["Location"])
        self.assertContains(page, "The account is open.")
        self.assertContains(page, "Bob")
        assert AccountSummary.objects.filter(owner="Bob").count() == 1

    def test_a_deposit_takes_effect_once_and_is_among_the_entries(self) -> None:
        sent = {**self.hidden(self.page("accounts/a/deposit/")), "amount": "5.50"}
        for _ in range(2):
            self.assertRedirects(self.client.post("/teller/accounts/a/deposit/", sent), "/teller/accounts/a/")
        assert self.balance() == Decimal("15.50")
        page = self.page("accounts/a/")
        assert page.count("<td>Deposit</td>") == 2
        assert '<dd class="amount" id="balance">15.50</dd>' in page

    def test_a_refusal_is_an_error_of_the_form_and_may_be_mended(self) -> None:
        refused = self.send("accounts/a/withdraw/", amount="11")
        assert refused.status_code == 409
        self.assertFormError(refused.context["form"], "amount", ["the balance is too low"])
        mended = {**self.hidden(refused.content.decode()), "amount": "10"}
        self.assertRedirects(self.client.post("/teller/accounts/a/withdraw/", mended), "/teller/accounts/a/")
        assert self.balance() == 0

    def test_what_is_no_amount_is_not_sent(self) -> None:
        before = len(self.bus.results)
        for wrong in ("", "ten", "1.234", "NaN", "1e999"):
            assert self.send("accounts/a/deposit/", amount=wrong).status_code == 200
        assert self.send("accounts/a/deposit/", amount="-5").status_code == 409
        assert len(self.bus.results) == before + 1

    def test_money_is_transferred(self) -> None:
        done = self.send("accounts/a/transfer/", target="b", amount="4")
        self.assertRedirects(done, "/teller/accounts/a/")
        assert (self.balance("a"), self.balance("b")) == (Decimal(6), Decimal(4))
        assert "<td>Transfer Out</td>" in self.page("accounts/a/")

    def test_a_transfer_that_is_sent_twice_is_not_refused_for_the_money_that_it_took(self) -> None:
        sent = {**self.hidden(self.page("accounts/a/transfer/")), "target": "b", "amount": "6"}
        for _ in range(2):
            self.assertRedirects(self.client.post("/teller/accounts/a/transfer/", sent), "/teller/accounts/a/")
        assert (self.balance("a"), self.balance("b")) == (Decimal(4), Decimal(6))

    def test_a_transfer_to_nowhere_or_of_too_much_is_not_started(self) -> None:
        send_commands([OpenAccount("c", owner="Cy"), CloseAccount("c")])
        before = len(self.bus.results)
        for target in ("nobody", "c", ""):
            refused = self.send("accounts/a/transfer/", target=target, amount="1")
            assert set(refused.context["form"].errors) == {"target"}
        refused = self.send("accounts/a/transfer/", target="b", amount="11")
        self.assertFormError(refused.context["form"], "amount", ["the balance is too low"])
        assert len(self.bus.results) == before
        same = self.send("accounts/a/transfer/", target="a", amount="1")
        self.assertFormError(same.context["form"], None, ["a transfer needs two accounts"])

    def test_an_account_is_closed_as_it_was_seen_or_not_at_all(self) -> None:
        execute_command(Withdraw("a", amount=Decimal(10)))
        seen = self.hidden(self.page("accounts/a/close/"))
        send_commands([Deposit("a", amount=Decimal(1)), Withdraw("a", amount=Decimal(1))])
        late = self.client.post("/teller/accounts/a/close/", seen)
        assert late.status_code == 412
        self.assertContains(late, "It was changed meanwhile.", status_code=412)
        again = self.client.post("/teller/accounts/a/close/", self.hidden(late.content.decode()))
        self.assertRedirects(again, "/teller/accounts/a/")
        page = self.page("accounts/a/")
        assert "<em>closed</em>" in page
        assert "deposit/" not in page

    # -- permissions ----------------------------------------------------------------------------------------------

    def test_nobody_else_sees_the_counter(self) -> None:
        paths = [
            "",
            "open/",
            "accounts/a/",
            *(f"accounts/a/{do}/" for do in ("deposit", "withdraw", "transfer", "close")),
        ]
        self.client.logout()
        for path in paths:
            for send in (self.client.get, self.client.post):
                self.assertRedirects(send(f"/teller/{path}"), f"/teller/login/?next=/teller/{path}")
        self.client.force_login(User.objects.create_user("guest", is_staff=True))
        for path in paths:
            for send in (self.client.get, self.client.post):
                assert send(f"/teller/{path}").status_code == 403
        assert self.balance() == 10

    def test_logging_in_leads_to_the_page_that_was_asked_for(self) -> None:
        self.client.logout()
        teller = User.objects.get(username="tina")
        teller.set_password("secret")
        teller.save()
        login = {"username": "tina", "password": "secret", "next": "/teller/accounts/a/"}
        self.assertRedirects(self.client.post("/teller/login/", login), "/teller/accounts/a/")
        elsewhere = {**login, "next": "https://elsewhere.example/"}
        self.assertRedirects(self.client.post("/teller/login/", elsewhere), "/teller/")

    def test_what_another_site_sends_is_refused(self) -> None:
        strict = self.client_class(enforce_csrf_checks=True)
        strict.force_login(User.objects.get(username="tina"))
        assert strict.post("/teller/accounts/a/deposit/", {"amount": "5"}).status_code == 403
        assert self.balance() == 10

    def test_an_account_that_is_none_is_not_found(self) -> None:
        before = EventStream.objects.count()
        for account in ("nobody", "x" * 300, "%00", "a%00"):
            for path in ("", "deposit/", "close/"):
                assert self.client.get(f"/teller/accounts/{account}/{path}").status_code == 404
        assert self.client.post("/teller/accounts/nobody/deposit/", {"amount": "5"}).status_code == 404
        assert EventStream.objects.count() == before

    # -- unavailable workers or queue -----------------------------------------------------------------------------

    def test_a_command_that_is_late_is_asked_for_again(self) -> None:
        path, sent = "/teller/accounts/a/deposit/", {**self.hidden(self.page("accounts/a/deposit/")), "amount": "5"}
        with use_bus(Late(self.bus)):
            late = self.client.post(path, sent)
        self.assertContains(late, "This was not answered in time.", status_code=504)
        assert self.balance() == 15  # it was executed without an answer
        again = {**self.hidden(late.content.decode()), "amount": "5"}
        self.assertRedirects(self.client.post(path, again), "/teller/accounts/a/")
        assert self.balance() == 15

    def test_a_queue_that_is_away_is_an_error_of_the_form(self) -> None:
        with use_bus(Away(self.bus)):
            response = self.send("accounts/a/deposit/", amount="5")
        self.assertContains(response, "This cannot be taken at the moment.", status_code=503)
        assert response["Retry-After"] == "5"
        assert 'value="5"' in response.content.decode()


class Late(InlineCommandBus):
    """A bus that executes, but does not answer in time."""

    def __init__(self, bus: InlineCommandBus) -> None:
        self.bus = bus

    def execute(self, *command: Any, **options: Any) -> Any:
        self.bus.execute(*command, **options)
        raise CommandTimeout("too late")


class Away(Late):
    def execute(self, *command: Any, **options: Any) -> Any:
        raise TransportUnavailable("the queue is away")
