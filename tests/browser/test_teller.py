"""The counter of the sample's bank, as a teller's browser sees it."""

from __future__ import annotations

import pytest
from django.contrib.auth.models import User
from playwright.sync_api import Browser, expect
from pytest_django.live_server_helper import LiveServer

from enode_django.testing import inline
from sample_project.bank.models import LedgerEntry
from sample_project.bank.tellers import tellers


@pytest.mark.django_db(transaction=True)
def test_a_teller_serves_a_customer_without_javascript(live_server: LiveServer, browser: Browser) -> None:
    User.objects.create_user("tina", password="secret").groups.add(tellers())
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    with inline():
        page.goto(f"{live_server.url}/teller/")
        page.fill("#id_username", "tina")
        page.fill("#id_password", "secret")
        page.get_by_role("main").get_by_role("button", name="Log in").click()
        page.get_by_role("link", name="Open an account").click()
        page.fill("#id_owner", "Ada")
        page.get_by_role("button", name="Open an account").click()
        page.get_by_role("link", name="Deposit").click()
        page.fill("#id_amount", "10")
        page.get_by_role("button", name="Deposit").dblclick()
        expect(page.get_by_role("status").first).to_have_text("The money is on the account.")
        expect(page.locator("#balance")).to_have_text("10.00")

        page.get_by_role("link", name="Withdraw").click()
        page.fill("#id_amount", "10.01")
        page.get_by_role("button", name="Withdraw").click()
        expect(page.locator("#id_amount")).to_have_attribute("aria-invalid", "true")
        expect(page.locator(".errorlist")).to_have_text("the balance is too low")
        page.fill("#id_amount", "10")
        page.get_by_role("button", name="Withdraw").click()
        expect(page.locator("#balance")).to_have_text("0.00")
    context.close()
    assert [str(entry.amount) for entry in LedgerEntry.objects.order_by("version")] == ["10.00", "-10.00"]
