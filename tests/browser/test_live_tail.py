"""The live tail in a browser: rows come by themselves, wait during a pause, and are few."""

from __future__ import annotations

import re

import pytest
from django.conf import settings
from django.contrib.auth.models import Permission, User
from django.test import Client
from playwright.sync_api import Page, Route, expect
from pytest_django.live_server_helper import LiveServer

from enode_django import execute_command
from enode_django.admin import live_tail
from enode_django.api import tail
from enode_django.testing import inline
from sample_project.bank.domain import OpenAccount

pytestmark = pytest.mark.django_db(transaction=True)
POLICY = "default-src 'self'; frame-ancestors 'none'; base-uri 'none'"
HOSTILE = "<img src=x onerror=alert(1)>"
SHOW = """isHidden => {
    Object.defineProperty(document, "hidden", {configurable: true, get: () => isHidden});
    document.dispatchEvent(new Event("visibilitychange"));
}"""


def open_account(id: str) -> None:
    with inline():
        execute_command(OpenAccount(id, owner=HOSTILE))


def with_policy(route: Route) -> None:
    answer = route.fetch()
    route.fulfill(response=answer, headers={**answer.headers, "content-security-policy": POLICY})


@pytest.fixture
def address(live_server: LiveServer, page: Page, monkeypatch: pytest.MonkeyPatch) -> str:
    """The address of the page, for a user who is logged in and may read payloads."""
    monkeypatch.setattr(tail, "RETRY", 100)
    user = User.objects.create_user("auditor", is_staff=True)
    user.user_permissions.set(Permission.objects.filter(codename__in=("view_eventstream", "view_payload")))
    client = Client()
    client.force_login(user)
    cookie = client.cookies[settings.SESSION_COOKIE_NAME]
    page.context.add_cookies([{"name": cookie.key, "value": cookie.value, "url": live_server.url}])
    page.route(re.compile(r"/tail/(\?.*)?$"), with_policy)
    return f"{live_server.url}/admin/enode_django/eventstream/tail/"


def test_streams_appear_as_they_are_stored_and_wait_during_a_pause(
    address: str, page: Page, monkeypatch: pytest.MonkeyPatch
) -> None:
    complaints: list[str] = []
    page.on("console", lambda message: complaints.append(message.text) if "Policy" in message.text else None)
    monkeypatch.setattr(live_tail, "MOST_ROWS", 3)
    open_account("before")
    page.goto(address)
    state, rows = page.locator(".enode-tail-state"), page.locator("#enode-tail tbody tr")
    expect(state).to_have_text("Following; nothing was stored yet")
    open_account("one")
    expect(rows).to_have_count(1)
    expect(rows.first).to_contain_text("bank.AccountOpened")
    expect(rows.first).to_contain_text(f"owner: {HOSTILE}")

    pause = page.get_by_role("button", name="Pause")
    pause.click()
    for id in ("two", "three", "four"):
        open_account(id)
    expect(state).to_have_text("Paused; 3 waiting")
    expect(rows).to_have_count(1)
    pause.click()
    expect(state).to_have_text("Following")
    expect(rows.locator("a")).to_have_text(["four", "three", "two"])
    rows.first.get_by_role("link").click()
    expect(page).to_have_url(re.compile("/aggregates/four/"))
    assert complaints == []


def test_filters_stay_in_the_address(address: str, page: Page) -> None:
    page.goto(address)
    page.get_by_label("Aggregate id").fill("wanted")
    page.get_by_label("Event or refusal type").fill("bank.AccountOpened")
    page.get_by_role("button", name="Filter").click()
    expect(page).to_have_url(re.compile("id=wanted&event=bank.AccountOpened"))
    expect(page.locator(".enode-tail-state")).to_have_text("Following; nothing was stored yet")
    open_account("other")
    open_account("wanted")
    rows = page.locator("#enode-tail tbody tr")
    expect(rows.locator("a")).to_have_text(["wanted"])


def test_a_page_that_nobody_looks_at_follows_nothing_and_says_so(address: str, page: Page) -> None:
    page.goto(address)
    expect(page.locator(".enode-tail-state")).to_have_text("Following; nothing was stored yet")
    page.evaluate(SHOW, True)
    open_account("hidden")
    with page.expect_response(re.compile("/tail/feed/")):
        page.evaluate(SHOW, False)
    expect(page.locator("#enode-tail tbody")).to_contain_text("while the page was hidden")
    open_account("seen")
    expect(page.locator("#enode-tail tbody tr a")).to_have_text(["seen"])


def test_it_fits_on_a_phone(address: str, page: Page) -> None:
    page.set_viewport_size({"width": 390, "height": 844})
    page.goto(address)
    expect(page.locator(".enode-tail-state")).to_have_text("Following; nothing was stored yet")
    open_account("one")
    expect(page.locator("#enode-tail tbody tr")).to_have_count(1)
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
