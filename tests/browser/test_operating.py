"""What operators see change by itself."""

from __future__ import annotations

import uuid
from datetime import timedelta

import pytest
from django.contrib.auth.models import User
from django.utils import timezone
from playwright.sync_api import Page, expect
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
    Job.objects.create(name="bank.Another", **running)
    expect(page.get_by_text("There are newer jobs.")).to_be_visible()

    page.goto(f"{live_server.url}/admin/enode_django/job/{job.pk}/change/")
    rows.update(state="succeeded", finished_at=now, figures={"streams": 4711})
    expect(page.get_by_text('"streams": 4711')).to_be_visible()
