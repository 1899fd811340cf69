"""Every page of the admin, with data: nothing is off the screen, and axe finds nothing."""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe
from django.contrib.auth.models import User
from django.test import Client, override_settings
from django.utils import timezone
from playwright.sync_api import Browser, Page, expect
from pytest_django.live_server_helper import LiveServer

from enode_django import execute_command
from enode_django.equeue.messages import Commit
from enode_django.equeue.retrying import Failed, Message, encode_failed
from enode_django.equeue.transports.memory import MemoryTransport
from enode_django.models import DeadLetter, EventStream, Job, OperatorAction, ParkedEvent, Rebuild
from enode_django.operating.actions import Done, record
from enode_django.serialization.codec import encode_command
from enode_django.testing import inline
from sample_project.bank.domain import Deposit, OpenAccount
from tests.services import REAL_QUEUE
from tests.status.reports import figures, followed, write_report

pytestmark = pytest.mark.django_db(transaction=True)

_memory = MemoryTransport()
ADMIN = "/admin/enode_django"
PHONE, LAPTOP = {"width": 390, "height": 844}, {"width": 1280, "height": 800}


def shared_memory(location: str) -> MemoryTransport:
    return _memory


@pytest.fixture
def queue() -> Iterator[None]:
    global _memory
    _memory = MemoryTransport()
    for topic in ("commands", "events"):
        _memory.create_topic(topic, 8)
        _memory.send(topic, {queue: [encode_command(OpenAccount("ada", owner="Ada"), b"")] * 3 for queue in range(8)})
        for queue in range(8):
            lease = _memory.acquire("processors", topic, queue, "host-1", 60)
            _memory.commit("processors", topic, {queue: Commit(lease.epoch, 2)})
    _memory.create_topic("dead.billing", 1)
    failed = Failed(Message("orders", 0, 0, b"", 5), "ValueError: no", 1e9, 0.0)
    _memory.send("dead.billing", {0: [encode_failed(failed)]})
    with override_settings(ENODE={**REAL_QUEUE, "QUEUE": {"BACKEND": f"{__name__}.shared_memory"}}):
        yield


LONG = "bank.transfers.of.a.project.with.a.long.name.SettlementsOfForeignCurrencies"
ERROR = (
    "Traceback (most recent call last):\n  File x\nbank.errors.SettlementRefused: the account 0197c2a1-77aa is closed"
)


@pytest.fixture
def data(queue: None) -> dict[str, str]:
    """Rows on every page; returns the paths of single objects."""
    now = timezone.now()
    with inline():
        execute_command(OpenAccount("account-0197c2a1-77aa-7f00-8000-2b3c4d5e6f70", owner="Ada Lovelace"))
        for amount in range(1, 4):
            execute_command(
                Deposit("account-0197c2a1-77aa-7f00-8000-2b3c4d5e6f70", amount=Decimal(amount), id=f"deposit-{amount}")
            )
    times = {"first_failed_at": now, "last_failed_at": now, "next_try_at": now}
    parked = ParkedEvent.objects.create(
        subscriber=LONG,
        aggregate_root_type="bank.BankAccount",
        aggregate_root_id="account-0197c2a1-77aa-7f00-8000-2b3c4d5e6f70",
        version=2,
        command_id="deposit-1",
        attempts=5,
        error_type="SettlementRefused",
        error=ERROR,
        **times,
    )
    letter = DeadLetter.objects.create(
        key=uuid.uuid4().hex,
        command_id=str(uuid.uuid4()),
        aggregate_root_id="account-0197c2a1-77aa-7f00-8000-2b3c4d5e6f70",
        command_type="bank.Deposit",
        topic="commands",
        queue=1,
        message_offset=4_711,
        error_type="KeyError",
        error=ERROR,
        body=encode_command(Deposit("ada", amount=Decimal(1)), b""),
        attempts=3,
        is_answered=False,
        first_failed_at=now,
        last_failed_at=now,
    )
    lease: Any = {"owner": uuid.uuid4(), "started_at": now, "lease_until": now + timedelta(hours=1)}
    progress = {"stage": "replay", "tasks": 16, "done": 4, "left": 72, "streams": 1_200_000, "a_second": 50_000}
    Job.objects.create(kind="rebuild", name="bank.Ledger", progress=progress, **lease)
    job = Job.objects.create(kind="rebuild", name=LONG, state="failed", finished_at=now, error=ERROR, **lease)
    rebuild = Rebuild.objects.create(subscriber="bank.Ledger", generation=1, replaces=0, state="swapped")
    reason = "the customer has called, and the account was closed by mistake"
    for kind, id in (("deadletter", "c41f10e06bdd782781453590062a77d0f1b2c3d4e5f60718"), ("parkedevent", LONG)):
        record("root@a-host", OperatorAction.Source.COMMAND, Done("requeue", f"enode_django.{kind}", id, reason=reason))
    for at in range(5, 65, 5):
        write_report("a", 60 - at, figures(10 * at, subscribers={LONG: followed(2.5, at)}), lived=at, now=now)
    stream = EventStream.objects.order_by("pk").last()
    assert stream is not None
    return {
        "parked": f"parkedevent/{parked.pk}/change/",
        "letter": f"deadletter/{letter.pk}/change/",
        "job": f"job/{job.pk}/change/",
        "rebuild": f"rebuild/{rebuild.pk}/change/",
        "stream": f"eventstream/{stream.pk}/change/",
    }


PAGES = [
    *("processorreport/", "eventstream/", "subscriber/", "topic/", "job/", "rebuild/", "parkedevent/", "deadletter/"),
    *("generationcheck/", "topic/commands/change/", "topic/commands/messages/1/", "topic/commands/messages/1/0/"),
    *("topic/dead.billing/letters/", "topic/commands/operate/set-offset/", "job/start/rebuild/", "operatoraction/"),
    "eventstream/aggregates/account-0197c2a1-77aa-7f00-8000-2b3c4d5e6f70/",
]


def sign_in(live_server: LiveServer, page: Page) -> None:
    client = Client()
    client.force_login(User.objects.create_superuser("root"))
    page.context.add_cookies(
        [{"name": "sessionid", "value": client.cookies["sessionid"].value, "url": live_server.url}]
    )


OFF_SCREEN = """() => [...document.querySelectorAll("#content *")].filter((one) => {
    const box = one.getBoundingClientRect();
    if (!box.width || box.right <= innerWidth + 1 || one.closest(".visually-hidden")) return false;
    for (let above = one.parentElement; above && above.id !== "content"; above = above.parentElement) {
        if (["auto", "scroll"].includes(getComputedStyle(above).overflowX)) return false;
    }
    return true;
}).map((one) => `${one.tagName}.${one.className} ${one.textContent.trim().slice(0, 40)}`)"""

SCROLLED = """() => [...document.querySelectorAll(".results, .enode-wide")]
    .filter((one) => one.scrollWidth > one.clientWidth + 1).map((one) => one.scrollWidth - one.clientWidth)"""

OTHER_TIMES = re.compile(r"[A-Z][a-z]{2,8}\.? \d{1,2}, \d{4}|\d{4}-\d\d-\d\d \d\d:\d\d(?!:\d\d[+-]\d\d:\d\d)")
"""Times that are not ISO 8601 with seconds and zone."""

OURS = {"include": [["#content"]], "exclude": [["#changelist-search"], ["#changelist-filter"]]}
"""The part of a page that is not Django's own."""


def test_nothing_is_off_the_screen_and_axe_finds_nothing(
    live_server: LiveServer, page: Page, data: dict[str, str]
) -> None:
    sign_in(live_server, page)
    found: dict[str, Any] = {}
    for path in [*PAGES, *data.values()]:
        page.set_viewport_size(PHONE)
        answer = page.goto(f"{live_server.url}{ADMIN}/{path}")
        assert answer is not None
        assert answer.status == 200, path
        shown = "\n".join(page.locator("#content :is(td, th, dd, time, .readonly)").all_inner_texts())
        if other := OTHER_TIMES.findall(shown):
            found[f"{path}: times of another form"] = other
        violations = Axe().run(page, context=OURS).response["violations"]
        if violations:
            found[f"{path}: axe"] = [(one["id"], [node["html"][:160] for node in one["nodes"]]) for one in violations]
        for viewport in (PHONE, LAPTOP):
            page.set_viewport_size(viewport)
            if off := page.evaluate(OFF_SCREEN):
                found[f"{path} at {viewport['width']}"] = off[:4]
            if scrolled := page.evaluate(SCROLLED):
                found[f"{path} at {viewport['width']}: columns that must be scrolled to"] = scrolled
    assert found == {}


LOOKS = """(one) => ({ ...one.getBoundingClientRect().toJSON(), back: getComputedStyle(one).backgroundColor })"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("viewport", [LAPTOP, PHONE], ids=["laptop", "phone"])
def test_the_reason_is_a_field_and_actions_are_buttons_above_the_error(
    live_server: LiveServer, page: Page, data: dict[str, str], viewport: Any, scheme: Any
) -> None:
    sign_in(live_server, page)
    page.emulate_media(color_scheme=scheme)
    page.set_viewport_size(viewport)
    page.goto(f"{live_server.url}{ADMIN}/{data['parked']}")
    reason, retry = (
        page.get_by_label("Reason:").evaluate(LOOKS),
        page.get_by_role("button", name="Retry").evaluate(LOOKS),
    )
    assert reason["back"] == page.locator("body").evaluate(LOOKS)["back"] != retry["back"]
    assert reason["height"] < 45
    assert retry["height"] >= 28
    assert retry["width"] >= 60
    assert retry["bottom"] < page.get_by_text("SettlementRefused: the account").first.evaluate(LOOKS)["top"]
    expect(page.get_by_text("File x")).to_be_hidden()
    page.get_by_text("Traceback", exact=True).click()
    expect(page.get_by_text("File x")).to_be_visible()


def test_the_reason_of_an_action_stands_apart_and_within_the_page(
    live_server: LiveServer, page: Page, data: dict[str, str]
) -> None:
    sign_in(live_server, page)
    for viewport in (LAPTOP, PHONE):
        page.set_viewport_size(viewport)
        page.goto(f"{live_server.url}{ADMIN}/parkedevent/")
        boxes = [page.locator(f"#changelist .actions {one}").bounding_box() for one in ("", "select", "label >> nth=1")]
        bar, select, reason = (box or {} for box in boxes)
        assert reason["x"] >= select["x"] + select["width"] + 8 or reason["y"] >= select["y"] + select["height"]
        field = page.locator("#changelist .actions input[name=reason]").bounding_box() or {}
        assert field["x"] + field["width"] <= bar["x"] + bar["width"]


def test_a_time_says_what_the_browsers_clock_has(
    live_server: LiveServer, browser: Browser, data: dict[str, str]
) -> None:
    context = browser.new_context(timezone_id="Asia/Tokyo", locale="en-GB")
    page = context.new_page()
    sign_in(live_server, page)
    Job.objects.update(started_at=datetime(2026, 1, 31, 23, 30, tzinfo=UTC))
    page.goto(f"{live_server.url}{ADMIN}/{data['job']}")
    moment = page.locator(".field-started_at time")
    expect(moment).to_have_text("2026-01-31 23:30:00+00:00")
    expect(moment).to_have_attribute("title", re.compile("1 February 2026.*08:30:00"))
    context.close()
