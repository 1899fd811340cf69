"""Pages for operators update by themselves."""

from __future__ import annotations

import uuid
from datetime import timedelta

import pytest
from django.contrib.auth.models import User
from django.utils import timezone
from playwright.sync_api import Page, Route, expect
from pytest_django.live_server_helper import LiveServer

from enode_django.models import Job


@pytest.mark.django_db(transaction=True)
def test_the_progress_of_a_job_updates_by_itself_until_it_has_ended(live_server: LiveServer, page: Page) -> None:
    now = timezone.now()
    times = {"started_at": now, "lease_until": now + timedelta(hours=1)}
    running = {"kind": "rebuild", "owner": uuid.uuid4(), **times}
    job = Job.objects.create(name="bank.Ledger", progress={"stage": "replay", "events": 10}, **running)
    rows = Job.objects.filter(pk=job.pk)
    User.objects.create_superuser("root", password="secret")
    page.goto(f"{live_server.url}/admin/login/?next=/admin/enode_django/job/")
    page.fill("#id_username", "root")
    page.fill("#id_password", "secret")
    page.click("[type=submit]")
    expect(page.get_by_text("replay: events 10")).to_be_visible()

    rows.update(progress={"stage": "compare <b>rows</b>"})
    expect(page.get_by_text("compare <b>rows</b>")).to_be_visible()
    page.get_by_role("checkbox", name="Select this object").first.check()
    Job.objects.create(name="bank.Another", **running)
    expect(page.get_by_text("There are newer jobs.")).to_be_visible()
    page.get_by_role("checkbox", name="Select this object").first.uncheck()
    page.locator("body").click(position={"x": 1, "y": 1})
    expect(page.get_by_text("bank.Another")).to_be_visible()

    page.goto(f"{live_server.url}/admin/enode_django/job/{job.pk}/change/")
    rows.update(state="succeeded", finished_at=now, figures={"streams": 4711})
    expect(page.get_by_role("row", name="event streams replayed 4,711")).to_be_visible()


STRICT = "default-src 'self'; frame-ancestors 'none'"


@pytest.mark.django_db(transaction=True)
def test_pages_work_under_a_policy_without_inline_scripts_and_styles(live_server: LiveServer, page: Page) -> None:
    """Django's admin complies with this policy, and so do our pages."""
    violations: list[str] = []
    page.on("console", lambda message: violations.append(message.text) if "Content Security" in message.text else None)
    page.route("**/admin/**", _with_policy)
    times = {"started_at": timezone.now(), "lease_until": timezone.now() + timedelta(hours=1)}
    job = Job.objects.create(kind="rebuild", name="bank.Ledger", owner=uuid.uuid4(), **times)
    User.objects.create_superuser("root", password="secret")
    page.goto(f"{live_server.url}/admin/login/?next=/admin/")
    page.fill("#id_username", "root")
    page.fill("#id_password", "secret")
    page.click("[type=submit]")
    expect(page.get_by_role("heading", name="Site administration")).to_be_visible()
    for path in (
        "job/",
        f"job/{job.pk}/change/",
        "job/start/rebuild/",
        "topic/",
        "subscriber/",
        "rebuild/",
        "parkedevent/",
    ):
        page.goto(f"{live_server.url}/admin/enode_django/{path}")
    expect(page.get_by_role("heading", name="Select parked event to view")).to_be_visible()
    assert violations == []


def _with_policy(route: Route) -> None:
    response = route.fetch(max_redirects=0)
    route.fulfill(response=response, headers={**response.headers, "content-security-policy": STRICT})
