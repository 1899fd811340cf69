"""The live dashboard in a browser: charts appear, follow new reports, and are readable in the dark and on a phone."""

from __future__ import annotations

import re
from datetime import datetime

import pytest
from django.contrib.auth.models import User
from django.test import Client
from django.utils import timezone
from playwright.sync_api import ElementHandle, Locator, Page, Route, expect
from pytest_django.live_server_helper import LiveServer

from enode_django.admin import dashboard
from enode_django.models import ParkedEvent
from tests.status.reports import JUST_NOW, figures, followed, write_report

POLICY = "default-src 'self'; frame-ancestors 'none'; base-uri 'none'"
PAGE = "/admin/enode_django/processorreport/"
HOSTILE = "<img src=x onerror=alert(1)>"
LINE_LIGHT, LINE_DARK = [0x1D, 0x6F, 0xA5], [0x6C, 0xB8, 0xEA]
"""The colour of the first line of a chart, as ``dashboard.css`` has it."""

HAS_COLOUR = """([canvas, colour]) => {
    const {data} = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
    for (let at = 0; at < data.length; at += 4) {
        if (data[at + 3] === 255 && colour.every((part, place) => data[at + place] === part)) return true;
    }
    return false;
}"""


HALF_A_LABEL = 16
"""The most pixels of a time on the axis that lie to the right of its tick."""


def right_of(shown: ElementHandle | None) -> float:
    box = shown.bounding_box() if shown else None
    assert box
    return box["x"] + box["width"]


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
    """Write the report of second ``at``. It is dated ahead, so that a slow browser does not find the supervisor
    silent."""
    subscribers = {HOSTILE: followed(2.5, at)}
    write_report("a", 60 - at, figures(commands, subscribers=subscribers), lived=at, now=now)


def canvas_of(chart: Locator) -> ElementHandle:
    (canvas,) = chart.locator(".enode-plot canvas").element_handles()
    return canvas


@pytest.mark.django_db(transaction=True)
def test_charts_follow_the_reports_and_fit_on_a_phone(
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
    canvas = canvas_of(commands)
    page.wait_for_function(HAS_COLOUR, arg=[canvas, LINE_LIGHT])
    expect(page.locator(".enode-updated time")).to_have_text(re.compile(r"^20\d\d-\d\d-\d\d \d\d:\d\d:\d\d\+00:00$"))
    assert right_of(canvas) - right_of(commands.locator(".u-over").element_handle()) >= HALF_A_LABEL
    before = canvas.evaluate("canvas => canvas.toDataURL()")
    expect(page.locator("[data-chart=lag] .enode-legend")).to_contain_text(HOSTILE)
    expect(commands.locator(".enode-desc")).to_contain_text("Now: finished 20")

    write(now, 95, 20 * 90 + 5 * 500)
    write(now, 100, 20 * 90 + 10 * 500)
    expect(commands.locator(".enode-value")).not_to_have_text("20")
    assert canvas.evaluate("canvas => canvas.toDataURL()") != before

    plot = commands.locator(".enode-plot")
    expect(plot.locator(".u-cursor-x")).to_be_hidden()
    plot.focus()
    page.keyboard.press("ArrowLeft")
    expect(commands.locator(".enode-when")).to_be_visible()
    expect(plot.locator(".u-cursor-x")).to_be_visible()
    expect(page.locator("[data-chart=lag] .u-cursor-x")).to_be_visible()
    page.keyboard.press("Escape")
    expect(plot.locator(".u-cursor-x")).to_be_hidden()
    plot.locator(".u-over").hover()
    expect(commands.locator(".enode-when")).to_be_visible()
    commands.locator("summary").click()
    expect(commands.locator("tbody tr").first).to_be_visible()

    page.set_viewport_size({"width": 390, "height": 844})
    page.wait_for_function("canvas => canvas.getBoundingClientRect().right <= 390", arg=canvas)
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    assert complaints == []


@pytest.mark.django_db(transaction=True)
def test_a_longer_range_shows_what_is_older_and_stays_in_the_address(live_server: LiveServer, page: Page) -> None:
    now = timezone.now()
    for at in range(0, 3_600, 20):  # two hours ago
        write_report("a", 7_200 - at, figures(40 * at), lived=60 + at, now=now)
    write_report("a", 3_600, figures(40 * 3_600), lived=3_660, now=now, ended=True)
    sign_in(live_server, page)
    page.goto(f"{live_server.url}{PAGE}")
    expect(page.locator(".enode-empty")).to_contain_text("in the last 15 minutes")
    page.get_by_role("link", name="6 hours").click()
    expect(page).to_have_url(re.compile(r"\?range=6h$"))
    expect(page.get_by_role("navigation", name="Range").locator("[aria-current]")).to_have_text("6 hours")
    expect(page.locator("[data-chart=commands] .enode-desc")).to_contain_text("The last 6 hours")
    expect(page.locator("[data-chart=commands] .enode-desc")).to_contain_text("Highest: 40")
    page.reload()
    expect(page.locator("[data-chart=commands] .enode-desc")).to_contain_text("Highest: 40")


@pytest.mark.django_db(transaction=True)
def test_charts_are_drawn_anew_when_the_theme_changes(
    live_server: LiveServer, page: Page, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dashboard, "POLL_INTERVAL", 3600)
    now = timezone.now()
    for at in range(5, 95, 5):
        write(now, at, 20 * at)
    sign_in(live_server, page)
    page.goto(f"{live_server.url}{PAGE}")
    commands = page.locator("[data-chart=commands]")
    expect(commands.locator(".enode-value")).to_have_text("20")
    canvas = canvas_of(commands)
    page.wait_for_function(HAS_COLOUR, arg=[canvas, LINE_LIGHT])
    page.emulate_media(color_scheme="dark")
    page.wait_for_function(HAS_COLOUR, arg=[canvas, LINE_DARK])
    page.evaluate("document.documentElement.dataset.theme = 'light'")  # as the admin's button does
    page.wait_for_function(HAS_COLOUR, arg=[canvas, LINE_LIGHT])


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


def park(id: str) -> None:
    moment = timezone.now()
    times = {"first_failed_at": moment, "last_failed_at": moment, "next_try_at": moment}
    ParkedEvent.objects.create(subscriber="bank.AccountSummaries", aggregate_root_id=id, version=1, attempts=1, **times)


@pytest.mark.django_db(transaction=True)
def test_parts_of_the_status_count_what_waits_and_lead_to_where_one_can_act(
    live_server: LiveServer, page: Page
) -> None:
    park("a")
    park("b")
    write_report("a", JUST_NOW, figures(10), lived=60)
    sign_in(live_server, page)
    page.goto(f"{live_server.url}{PAGE}")
    chip = page.locator(".enode-parts li", has_text="parked")
    expect(chip.locator(".enode-count")).to_have_text("2")
    expect(page.locator(".enode-parts li", has_text="letters").locator(".enode-count")).to_have_count(0)
    expect(page.locator(".enode-problems a", has_text="parked").first).to_have_attribute("href", re.compile("parked"))
    expect(page.locator("[data-chart=lag] h2 a")).to_have_attribute("href", re.compile("/subscriber/$"))
    expect(page.locator("[data-chart=sizes] h2 a")).to_have_count(0)
    chip.get_by_role("link").click()
    expect(page.locator("#result_list tbody tr")).to_have_count(2)


@pytest.mark.django_db(transaction=True)
def test_the_offsets_of_the_mailboxes_are_shown(live_server: LiveServer, page: Page) -> None:
    offsets = {"commands-0": {"max_offset": 1_200, "consume_offset": 1_150}, "events-0": {}}
    write_report("a", JUST_NOW, figures(10, mailboxes=offsets), lived=60)
    sign_in(live_server, page)
    page.goto(f"{live_server.url}{PAGE}")
    page.locator(".enode-mailboxes summary").click()
    rows = page.locator(".enode-mailboxes tr")
    expect(rows).to_have_count(2)
    headings = ["runprocessors", "mailbox", "messages put in", "messages taken out", "messages waiting"]
    expect(rows.first.locator("th")).to_have_text(headings)
    expect(rows.last.locator("td")).to_have_text(["a", "commands-0", "1,200", "1,150", "50"])
