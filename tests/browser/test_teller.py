"""The counter of the sample's bank, as a teller's browser sees it."""

from __future__ import annotations

from decimal import Decimal

import pytest
from axe_playwright_python.sync_playwright import Axe
from django.contrib.auth.models import User
from playwright.sync_api import Browser, Page, Route, expect
from pytest_django.live_server_helper import LiveServer

from enode_django import execute_command
from enode_django.testing import inline
from sample_project.bank.domain import Deposit
from sample_project.bank.models import LedgerEntry
from sample_project.bank.tellers import tellers


def open_account(page: Page, live_server: LiveServer) -> None:
    User.objects.create_user("tina", password="secret").groups.add(tellers())
    page.goto(f"{live_server.url}/teller/")
    page.fill("#id_username", "tina")
    page.fill("#id_password", "secret")
    page.get_by_role("main").get_by_role("button", name="Log in").click()
    page.get_by_role("link", name="Open an account").click()
    page.fill("#id_owner", "Ada")
    page.get_by_role("button", name="Open an account").click()
    expect(page.get_by_role("link", name="Deposit")).to_be_visible()


def fill_form_with_script(page: Page, name: str, amount: str) -> None:
    """Follow the link to a form, and fill it when its script has run: earlier, the browser itself would send it."""
    page.get_by_role("link", name=name).click()
    page.wait_for_function("document.querySelector('form[data-api]') && document.readyState === 'complete'")
    page.fill("#id_amount", amount)


@pytest.mark.django_db(transaction=True)
def test_a_teller_serves_a_customer_without_javascript(live_server: LiveServer, browser: Browser) -> None:
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    with inline():
        open_account(page, live_server)
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


@pytest.mark.django_db(transaction=True)
def test_with_javascript_money_goes_in_and_out_by_the_api_and_once(live_server: LiveServer, browser: Browser) -> None:
    """The answer to the first request is lost; it is sent again with the same key, then once more without script."""
    context = browser.new_context()
    page = context.new_page()
    asked: list[tuple[str, str | None]] = []

    def lose_the_first(route: Route) -> None:
        request = route.request
        asked.append((request.method, request.headers.get("idempotency-key")))
        if len(asked) == 1:
            route.fetch()
            route.abort()
        else:
            route.continue_()

    context.route("**/bank/accounts/*/*/", lose_the_first)
    with inline():
        open_account(page, live_server)
        fill_form_with_script(page, "Deposit", "10")
        page.get_by_role("button", name="Deposit").click()
        expect(page.get_by_role("alert")).to_have_text("The bank cannot be reached. Send it again: it is done once.")
        page.get_by_role("button", name="Deposit").click()
        expect(page.get_by_role("status")).to_have_text("The money is on the account.")
        expect(page.locator("#balance")).to_have_text("10.00")
        assert [method for method, _ in asked] == ["POST", "POST"]
        assert len({key for _, key in asked} - {None}) == 1

        page.go_back()
        page.get_by_role("link", name="Back").click()
        expect(page.get_by_role("status")).to_have_count(0)
        fill_form_with_script(page, "Withdraw", "10.01")
        page.get_by_role("button", name="Withdraw").click()
        expect(page.get_by_role("alert")).to_have_text("the balance is too low")
        page.evaluate("document.querySelector('form[data-api]').dataset.api += 'unknown/'")
        page.get_by_role("button", name="Withdraw").click()
        expect(page.get_by_role("alert")).to_have_text("That did not work. Send it again.")
        page.evaluate(
            "const { dataset } = document.querySelector('form[data-api]'); dataset.api = dataset.api.slice(0, -8)"
        )
        page.fill("#id_amount", "4")
        page.get_by_role("button", name="Withdraw").click()
        expect(page.locator("#balance")).to_have_text("6.00")
    context.close()
    assert [str(entry.amount) for entry in LedgerEntry.objects.order_by("version")] == ["10.00", "-4.00"]


@pytest.mark.django_db(transaction=True)
def test_axe_finds_nothing_on_an_account_whose_entries_are_wider_than_a_phone(
    live_server: LiveServer, page: Page
) -> None:
    with inline():
        open_account(page, live_server)
        execute_command(Deposit(page.url.split("/")[-2], amount=Decimal("123456789012.50")))
    page.set_viewport_size({"width": 300, "height": 844})
    page.reload()
    entries = page.get_by_role("region", name="Last entries")
    assert entries.evaluate("(one) => one.scrollWidth > one.clientWidth")
    violations = Axe().run(page).response["violations"]
    assert [(one["id"], [node["html"][:160] for node in one["nodes"]]) for one in violations] == []


@pytest.mark.django_db(transaction=True)
def test_a_form_says_that_it_waits_keeps_the_focus_and_is_sent_once(live_server: LiveServer, page: Page) -> None:
    held: list[Route] = []
    page.route("**/bank/accounts/*/deposit/", lambda route: held.append(route))
    with inline():
        open_account(page, live_server)
        fill_form_with_script(page, "Deposit", "10")
        button = page.get_by_role("button", name="Deposit")
        button.focus()
        page.keyboard.press("Enter")
        expect(page.get_by_role("status")).to_have_text("The bank is at it …")
        expect(button).to_have_attribute("aria-disabled", "true")
        expect(button).to_be_focused()
        page.keyboard.press("Enter")
        assert len(held) == 1
        held.pop().abort()
        expect(page.get_by_role("alert")).to_contain_text("Send it again")
        expect(page.get_by_role("status")).to_be_empty()
        expect(button).to_be_focused()


@pytest.mark.django_db(transaction=True)
def test_the_front_page_leads_to_everything(live_server: LiveServer, page: Page) -> None:
    User.objects.create_superuser("root", password="secret")
    page.goto(f"{live_server.url}/admin/login/")
    page.fill("#id_username", "root")
    page.fill("#id_password", "secret")
    page.click("[type=submit]")
    page.goto(live_server.url)
    links = [link.get_attribute("href") for link in page.locator(".list a").all()]
    assert len(links) == 8
    answers = {link: page.request.get(f"{live_server.url}{link}").status for link in links}
    assert set(answers.values()) <= {200, 503}, answers
    assert [link for link, status in answers.items() if status == 503] in ([], ["/enode/health/ready"])
