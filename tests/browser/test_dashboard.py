"""The live dashboard in a browser: charts appear, follow new reports, and are readable in the dark and on a phone."""

from __future__ import annotations

import re
from datetime import datetime

import pytest
from django.contrib.auth.models import User
from django.test import Client
from django.utils import timezone
from playwright.sync_api import Page, Route, expect
from pytest_django.live_server_helper import LiveServer

from enode_django.admin import dashboard
from tests.status.reports import figures, followed, write_report

POLICY = "default-src 'self'; frame-ancestors 'none'; base-uri 'none'"
PAGE = "/admin/enode_django/processorreport/"
HOSTILE = "<img src=x onerror=alert(1)>"


def with_policy(route: Route) -> None:
    answer = route.fetch()
    route.fulfill(response=answer, headers={**answer.headers, "content-security-policy": POLICY})


def sign_in(live_server: LiveServer, page: Page) -> None:
    client = Client()
    client.force_login(User.objects.create_superuser("root"))
    page.context.add_cookies(
        [{"name": "sessionid", "value": client.cookies["sessionid"].value, "url": live_server.url}]
    )


def write(now: datetime, at: int, commands: int) -> None:
    """After so many seconds of 100. Dated ahead, so that a slow browser does not find the supervisor silent."""
    subscribers = {HOSTILE: followed(2.5, at)}
    write_report("a", 60 - at, figures(commands, subscribers=subscribers), lived=at, now=now)


@pytest.mark.django_db(transaction=True)
def test_charts_follow_the_reports_in_light_and_dark_and_on_a_phone(
    live_server: LiveServer, page: Page, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dashboard, "POLL_INTERVAL", 0.5)
    complaints: list[str] = []
    page.on("console", lambda message: complaints.append(message.text) if "Policy" in message.text else None)
    page.route(re.compile(r"/processorreport/$"), with_policy)
    sign_in(live_server, page)
    page.goto(f"{live_server.url}{PAGE}")
    expect(page.locator(".enode-empty")).to_contain_text("run manage.py runprocessors")
    expect(page.locator(".enode-parts li", has_text="processors")).to_contain_text("bad")

    now = timezone.now()
    for at in range(5, 95, 5):
        write(now, at, 20 * at)
    commands = page.locator("[data-chart=commands]")
    expect(commands.locator(".enode-value")).to_have_text("20")
    line = commands.locator("svg.enode-plot path.enode-line-1").last
    before = line.get_attribute("d")
    expect(page.locator("[data-chart=lag] .enode-legend")).to_contain_text(HOSTILE)
    expect(commands.locator("desc")).to_contain_text("Now: finished 20")

    write(now, 95, 20 * 90 + 5 * 500)
    write(now, 100, 20 * 90 + 10 * 500)
    expect(commands.locator(".enode-value")).not_to_have_text("20")
    expect(line).not_to_have_attribute("d", before or "")

    plot = commands.locator("svg.enode-plot")
    plot.focus()
    page.keyboard.press("ArrowLeft")
    expect(commands.locator(".enode-when")).to_be_visible()
    expect(plot.locator(".enode-cursor")).to_have_attribute("visibility", "visible")
    commands.locator("summary").click()
    expect(commands.locator("tbody tr").first).to_be_visible()

    light = line.evaluate("line => getComputedStyle(line).stroke")
    page.emulate_media(color_scheme="dark")
    assert line.evaluate("line => getComputedStyle(line).stroke") != light
    page.set_viewport_size({"width": 390, "height": 844})
    expect(commands).to_be_visible()
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    assert complaints == []


@pytest.mark.django_db(transaction=True)
def test_a_page_that_nobody_looks_at_asks_for_nothing(live_server: LiveServer, page: Page) -> None:
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url) if "since=" in request.url else None)
    sign_in(live_server, page)
    page.clock.install()
    page.goto(f"{live_server.url}{PAGE}")
    expect(page.locator(".enode-empty")).to_be_visible()
    expect(page.locator(".enode-parts li").first).to_be_visible()
    show = """isHidden => {
        Object.defineProperty(document, "hidden", {configurable: true, get: () => isHidden});
        document.dispatchEvent(new Event("visibilitychange"));
    }"""
    page.evaluate(show, True)
    before = len(asked)
    page.clock.run_for(120_000)
    assert len(asked) == before
    with page.expect_request(re.compile("since=")):
        page.evaluate(show, False)


@pytest.mark.django_db(transaction=True)
def test_the_offsets_of_the_mailboxes_are_shown(live_server: LiveServer, page: Page) -> None:
    offsets = {"commands-0": {"max_offset": 1_200, "consume_offset": 1_150}, "events-0": {}}
    write_report("a", -60, figures(10, mailboxes=offsets), lived=60)  # dated ahead, for a slow browser
    sign_in(live_server, page)
    page.goto(f"{live_server.url}{PAGE}")
    page.locator(".enode-mailboxes summary").click()
    rows = page.locator(".enode-mailboxes tr")
    expect(rows).to_have_count(2)
    expect(rows.last.locator("td")).to_have_text(["a", "commands-0", "1,200", "1,150", "50"])
