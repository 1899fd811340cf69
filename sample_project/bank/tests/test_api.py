"""The HTTP API of accounts."""

from __future__ import annotations

from decimal import Decimal
from typing import Any
from urllib.parse import quote

from django.contrib.auth.models import User
from django.test import TestCase, override_settings
from rest_framework.test import APIClient

from enode_django import send_commands
from enode_django.exceptions import TransportUnavailable
from enode_django.ids import new_id
from enode_django.runtime import use_bus
from enode_django.testing import InlineCommandBus, inline
from sample_project.bank.domain import Deposit, OpenAccount
from sample_project.bank.tellers import tellers

ACCOUNTS = "/bank/accounts/"
IN_THIS_PROCESS = {"default": {"BACKEND": "django.core.cache.backends.locmem.LocMemCache"}}


@override_settings(CACHES=IN_THIS_PROCESS)
class Accounts(TestCase):
    def setUp(self) -> None:
        self.bus: InlineCommandBus = self.enterContext(inline())
        send_commands([OpenAccount("a", owner="Ada"), Deposit("a", amount=Decimal("10.50"))])
        teller = User.objects.create_user("tina")
        teller.groups.add(tellers())
        self.api = APIClient()
        self.api.force_authenticate(teller)

    def post(self, path: str, data: Any, **headers: str) -> Any:
        return self.api.post(ACCOUNTS + path, data, format="json", headers=headers)

    def test_an_account_is_read_with_its_version_as_etag(self) -> None:
        response = self.api.get(f"{ACCOUNTS}a/")
        assert response["ETag"] == '"2"'
        account = {name: response.json()[name] for name in ("aggregate_root_id", "owner", "balance", "version")}
        assert account == {"aggregate_root_id": "a", "owner": "Ada", "balance": "10.50", "version": 2}
        assert self.api.get(f"{ACCOUNTS}a/", headers={"If-None-Match": '"2"'}).status_code == 304
        assert self.api.get(f"{ACCOUNTS}a/", headers={"If-None-Match": '"1"'}).status_code == 200

    def test_accounts_are_listed(self) -> None:
        (account,) = self.api.get(ACCOUNTS).json()["results"]
        assert account["aggregate_root_id"] == "a"
        for cursor in ("x", "cD0lMDA=", "%00", "b=-1"):  # the second one is "p=%00"
            assert self.api.get(ACCOUNTS, {"cursor": cursor}).status_code in (200, 404), cursor

    def test_a_deposit_answers_with_what_became_of_it(self) -> None:
        response = self.post("a/deposit/", {"amount": "4.50"})
        assert (response.status_code, response["ETag"]) == (200, '"3"')
        answer = response.json()
        assert answer.pop("command_id") == self.bus.results[-1].command_id
        assert answer == {"status": "success", "aggregate_root_id": "a", "version": 3, "value": "15.00"}

    def test_an_account_is_opened(self) -> None:
        answer = self.post("open/", {"owner": "Bob"}).json()
        assert self.api.get(f"{ACCOUNTS}{answer['aggregate_root_id']}/").json()["owner"] == "Bob"

    def test_a_change_takes_effect_on_the_version_that_was_seen(self) -> None:
        assert self.post("a/withdraw/", {"amount": "1"}, **{"If-Match": '"2"'}).status_code == 200
        late = self.post("a/withdraw/", {"amount": "1"}, **{"If-Match": '"2"'})
        assert late.status_code == 412
        assert "It was changed meanwhile." in late.json()["detail"]
        for other in ('W/"3"', "3", '"3", "4"', '"x"', f'"{9**99}"'):
            assert self.post("a/withdraw/", {"amount": "1"}, **{"If-Match": other}).status_code == 412
        assert self.post("a/withdraw/", {"amount": "1"}, **{"If-Match": "*"}).json()["version"] == 4

    def test_what_is_sent_again_with_its_key_takes_effect_once(self) -> None:
        key = {"Idempotency-Key": new_id()}
        once, again = (self.post("a/deposit/", {"amount": "1.50"}, **key) for _ in range(2))
        assert (once.status_code, once.json()) == (again.status_code, again.json()) == (200, once.json())
        for path, amount in (("a/deposit/", "1.51"), ("a/withdraw/", "1.50")):
            other = self.post(path, {"amount": amount}, **key)
            assert other.status_code == 422
            assert "was used for another command" in other.json()["detail"]
        opened = {self.post("open/", {"owner": "Eve"}, **{"Idempotency-Key": "eve"}).content for _ in range(2)}
        assert len(opened) == 1
        assert self.post("a/deposit/", {"amount": "1"}, **{"Idempotency-Key": "x" * 300}).status_code == 400

    def test_a_refusal_is_a_conflict_at_the_field_it_names(self) -> None:
        refused = self.post("a/withdraw/", {"amount": "11"})
        assert (refused.status_code, refused.json()) == (409, {"amount": ["the balance is too low"]})
        refused = self.post("a/close/", {})
        assert (refused.status_code, refused.json()) == (409, {"non_field_errors": ["withdraw what is left first"]})

    def test_what_does_not_fit_is_said_for_each_field(self) -> None:
        wrong: list[Any] = [
            {},
            {"amount": 1.5},
            {"amount": "x"},
            {"amount": None},
            {"amount": []},
            {"amount": "1e9999"},
        ]
        for data in wrong:
            response = self.post("a/deposit/", data)
            assert (response.status_code, list(response.json())) == (400, ["amount"]), data
        assert self.post("a/deposit/", []).status_code == 400

    def test_json_that_is_too_deep_or_too_large_is_refused(self) -> None:
        for body, status in (("[" * 100_000, 400), ('{"amount": NaN}', 400), (" " * 1024 * 1024 + "{}", 413)):
            sent = self.api.post(f"{ACCOUNTS}a/deposit/", body, content_type="application/json")
            assert sent.status_code == status

    def test_what_is_not_there_is_not_found(self) -> None:
        for account in ("nobody", "a%00", quote("<b>"), "x" * 300):
            assert self.api.get(f"{ACCOUNTS}{account}/").status_code == 404
            assert self.post(f"{account}/deposit/", {"amount": "1"}).status_code in (400, 404)

    def test_nobody_else_may(self) -> None:
        guest = User.objects.create_superuser("root")
        for user, status in ((None, 403), (User.objects.create_user("guest", is_staff=True), 403), (guest, 200)):
            api = APIClient()
            if user is not None:
                api.force_authenticate(user)
            assert api.get(f"{ACCOUNTS}a/").status_code in (status, 401 if user is None else status)
            assert api.post(f"{ACCOUNTS}a/deposit/", {"amount": "1"}).status_code in (
                status,
                401 if user is None else status,
            )

    def test_a_session_of_a_browser_needs_its_token(self) -> None:
        strict = APIClient(enforce_csrf_checks=True)
        strict.force_login(User.objects.get(username="tina"))
        assert strict.post(f"{ACCOUNTS}a/deposit/", {"amount": "1"}).status_code == 403

    def test_a_browser_gets_a_page_with_a_form(self) -> None:
        page = self.api.get(f"{ACCOUNTS}a/", headers={"Accept": "text/html"})
        assert b"<h1>Account" in page.content
        sent = self.api.post(f"{ACCOUNTS}a/deposit/", {"amount": "1"}, headers={"Accept": "text/html"})
        assert sent.status_code == 200
        refused = self.api.post(f"{ACCOUNTS}a/withdraw/", {"amount": "100"}, headers={"Accept": "text/html"})
        assert refused.status_code == 409
        assert b"the balance is too low" in refused.content

    def test_a_queue_that_is_away_asks_to_come_again(self) -> None:
        with use_bus(Away(self.bus)):
            response = self.post("a/deposit/", {"amount": "1"})
        assert (response.status_code, response["Retry-After"]) == (503, "5")


class Away(InlineCommandBus):
    def __init__(self, bus: InlineCommandBus) -> None:
        pass

    def execute(self, *command: Any, **options: Any) -> Any:
        raise TransportUnavailable("the queue is away")
