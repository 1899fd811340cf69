"""The display of jobs, in the admin and by ``manage.py enode jobs``."""

from __future__ import annotations

import io
import uuid
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import Permission, User
from django.core.management import CommandError, call_command
from django.test import Client
from django.utils import timezone

from enode_django.jobs.texts import figures_of, progress_of
from enode_django.models import Job

pytestmark = pytest.mark.django_db

LIST = "/admin/enode_django/job/"


def job(name: str, *, lasts: float = 3661, left: bool = False, **fields: Any) -> Job:
    now = timezone.now()
    return Job.objects.create(
        kind="snapshots",
        name=name,
        owner=uuid.uuid4(),
        started_at=now - timedelta(seconds=lasts),
        lease_until=now + timedelta(hours=-1 if left else 1),
        **fields,
    )


@pytest.fixture
def running() -> Job:
    return job("bank.BankAccount", progress={"stage": "making snapshots", "made": 12000})


@pytest.fixture
def left() -> Job:
    return job("*", left=True)


@pytest.fixture
def failed() -> Job:
    error = "Traceback\n  <script>alert(1)</script>\nZeroDivisionError: no\n"
    return job("bank.Other", state="failed", finished_at=timezone.now(), error=error, figures={"made": 7})


def test_the_list_says_how_each_job_stands(admin_client: Client, running: Job, left: Job, failed: Job) -> None:
    page = admin_client.get(LIST).content.decode()
    assert "making snapshots: made 12,000" in page
    assert "running (its lease ran out)" in page
    assert "1:01:01" in page
    assert admin_client.get(LIST, {"q": "bank."}).context["cl"].result_count == 2


def test_a_jobs_page_shows_its_figures_and_its_error(admin_client: Client, failed: Job) -> None:
    page = admin_client.get(f"{LIST}{failed.pk}/change/").content.decode()
    assert '<th scope="row">snapshots made</th><td><pre class="enode-text">7</pre></td>' in page
    assert "ZeroDivisionError: no" in page
    assert "<script>alert(1)</script>" not in page


REBUILT = {"streams": 1517, "aggregates": 51, "parked": ["a", "b"], "differences": 0, "behind": 0, "swapped": True}


def test_a_job_that_succeeded_says_what_it_did(admin_client: Client) -> None:
    ended = {"finished_at": timezone.now(), "state": "succeeded"}
    rebuilt = job("bank.Ledger", progress={"stage": "swap", "streams": 0}, figures=REBUILT, **ended)
    assert progress_of(rebuilt) == "1,517 event streams replayed, 51 aggregates replayed, 0 rows that differ"
    assert progress_of(job("b", figures={"made": {"x.A": 2, "x.B": 3}}, **ended)) == "5 snapshots made"
    assert progress_of(job("c", progress={"stage": "counting", "tasks": 2, "done": 0}, **ended)) == "done"
    page = admin_client.get(f"{LIST}{rebuilt.pk}/change/").content.decode()
    assert '<th scope="row">aggregates behind the tables in use</th>' in page
    assert '<pre class="enode-text">a\nb</pre>' in page
    assert "swap: streams" not in page
    assert "&quot;" not in page
    assert dict(figures_of(rebuilt))["new tables in use"] == "yes"
    assert "aggregates parked: a, b" in jobs("show", str(rebuilt.pk))


def test_a_job_that_ended_otherwise_says_what_it_reached_and_no_time_left() -> None:
    progress = {"stage": "writing", "tasks": 9, "done": 4, "left": 38, "a_second": 7}
    for state in ("failed", "cancelled"):
        ended = job(state, progress=progress, state=state, finished_at=timezone.now())
        assert progress_of(ended) == "reached writing: 4 of 9 tasks done"
    job("left", progress=progress, left=True)
    assert jobs("list")[1].endswith("reached writing: 4 of 9 tasks done")


def test_nobody_adds_changes_or_deletes_a_job(admin_client: Client, running: Job) -> None:
    assert admin_client.get(f"{LIST}add/").status_code == 403
    assert admin_client.post(f"{LIST}{running.pk}/change/", {"state": "failed"}).status_code == 403
    assert admin_client.post(f"{LIST}{running.pk}/delete/", {"post": "yes"}).status_code == 403
    assert Job.objects.get().state == "running"


def cancel(client: Client, *jobs: Job) -> str:
    data = {"action": "cancel", "_selected_action": [each.pk for each in jobs]}
    return client.post(LIST, data, follow=True).content.decode()


def test_cancelling_asks_what_runs_and_ends_what_was_left(
    admin_client: Client, running: Job, left: Job, failed: Job
) -> None:
    page = cancel(admin_client, running, left, failed)
    assert "snapshots of bank.BankAccount) was asked to stop" in page
    assert "running (is to stop)" in page
    states = dict(Job.objects.values_list("pk", "state"))
    assert states == {running.pk: "running", left.pk: "cancelled", failed.pk: "failed"}
    asked = set(Job.objects.filter(cancel_requested_at__isnull=False).values_list("pk", flat=True))
    assert asked == {running.pk, left.pk}
    assert LogEntry.objects.count() == 2


def test_cancelling_needs_the_permission_to_change_jobs(client: Client, running: Job) -> None:
    clerk = User.objects.create_user("clerk", is_staff=True)
    client.force_login(clerk)
    assert client.get(LIST).status_code == 403
    clerk.user_permissions.add(Permission.objects.get(codename="view_job"))
    assert client.get(LIST).status_code == 200
    cancel(client, running)
    assert Job.objects.get().cancel_requested_at is None
    clerk.user_permissions.add(Permission.objects.get(codename="change_job"))
    cancel(client, running)
    assert Job.objects.get().cancel_requested_at is not None


def jobs(*arguments: str) -> list[str]:
    out = io.StringIO()
    call_command("enode", "jobs", *arguments, stdout=out, no_color=True)
    return out.getvalue().splitlines()


def test_the_command_lists_the_newest_first(running: Job, left: Job, failed: Job) -> None:
    lines = jobs("list")
    assert [line.split()[0] for line in lines[1:-1]] == [str(each.pk) for each in (failed, left, running)]
    assert "ZeroDivisionError: no" in lines[1]
    Job.objects.filter(pk=failed.pk).update(error=f"{failed.error}DETAIL: nothing to divide by")
    assert "ZeroDivisionError: no" in jobs("list")[1]
    assert "running (its lease ran out)" in lines[2]
    assert lines[3].endswith("making snapshots: made 12,000")
    assert jobs("list", "--limit", "1")[-1] == "1 jobs"
    assert jobs("list", "--running")[-1] == "2 jobs"


def test_the_command_shows_one_with_its_whole_error(running: Job, failed: Job) -> None:
    lines = jobs("show", str(failed.pk))
    assert lines[:4] == [f"id: {failed.pk}", "kind: snapshots", "name: bank.Other", "state: failed"]
    assert "snapshots made: 7" in lines
    assert lines[-3:] == ["Traceback", "  <script>alert(1)</script>", "ZeroDivisionError: no"]
    assert "progress: making snapshots: made 12,000" in jobs("show", str(running.pk))
    with pytest.raises(CommandError, match="there is no job 0; manage"):
        jobs("show", "0")


def test_the_command_cancels(running: Job, failed: Job) -> None:
    assert jobs("cancel", str(running.pk)) == [
        f"job {running.pk} was asked to stop; manage.py enode jobs list shows its state",
    ]
    assert "running (is to stop)" in jobs("list", "--running")[1]
    with pytest.raises(CommandError, match=f"no job {failed.pk} runs"):
        jobs("cancel", str(failed.pk))
    with pytest.raises(CommandError, match="'0' is not a number"):
        jobs("list", "--limit", "0")
