"""Starting jobs, watching them, undoing rebuilds, deleting what has ended. tests/jobs has the list and cancelling."""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from celery import Celery
from django import forms
from django.contrib.admin.models import ADDITION, LogEntry
from django.db.models.functions import Now
from django.test import Client
from django.utils import timezone
from django.utils.html import escape

from enode_django.admin.job_operations import StartSnapshots
from enode_django.admin.operating import CONFIRMED
from enode_django.batch import KINDS
from enode_django.jobs.running import RunningJob
from enode_django.models import Job, Rebuild
from enode_django.monitoring.work import ask_jobs
from sample_project.celery import app
from tests.admin.users import client_of

LIST = "/admin/enode_django/job/"
SCRIPT = "<script>alert(1)</script>"
ALLOWED = [f"/archive of {SCRIPT}", "/archive"]
STARTS: dict[str, dict[str, str]] = {
    "snapshots": {"type": "bank.BankAccount"},
    "rebuild": {"projection": "bank.Ledger", "accept_differences": "on"},
    "export": {"path": f"/archive of {SCRIPT}", "json": "on", "compact": "on"},
}
STARTER = ("add_job", "view_payload")


@pytest.fixture(autouse=True)
def allowed(settings: Any) -> None:
    settings.ENODE = {**settings.ENODE, "JOBS": {"EXPORT_DIRECTORIES": ALLOWED}}


def make_job(state: str = "running", **fields: Any) -> Job:
    now = timezone.now()
    lease = now + timedelta(hours=1)
    return Job.objects.create(
        **{"kind": "snapshots", "name": "*", "state": state, "owner": uuid.uuid4(), "started_at": now, **fields},
        lease_until=lease,
    )


def make_rebuild(state: str = "swapped") -> Rebuild:
    return Rebuild.objects.create(subscriber="bank.Ledger", generation=1, replaces=0, state=state)


@pytest.fixture
def work(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[dict[str, Any]]]:
    """Yield the arguments that jobs were given. Tasks run when they are started."""
    given: list[dict[str, Any]] = []

    def note(job: RunningJob, **arguments: Any) -> None:
        given.append(arguments)

    for kind in STARTS:
        monkeypatch.setitem(KINDS, kind, note)
    app.conf.task_always_eager = True
    yield given
    app.conf.task_always_eager = False


@pytest.fixture
def without_broker() -> Iterator[None]:
    Celery("unconfigured").set_current()
    yield
    app.set_current()


@pytest.mark.django_db(transaction=True)
def test_each_kind_of_job_is_started_after_a_page_that_says_what_it_does(work: list[dict[str, Any]]) -> None:
    client = client_of(*STARTER)
    listed = client.get(LIST).content.decode()
    for kind, values in STARTS.items():
        url = f"{LIST}start/{kind}/"
        assert url in listed
        said = client.post(url, values)
        assert kind not in [*Job.objects.values_list("kind", flat=True)], "it was only said"
        assert len(said.context["consequences"]) == 2
        assert SCRIPT not in said.content.decode()
        done = client.post(url, {**values, CONFIRMED: "yes"}, follow=True)
        (job,) = Job.objects.filter(kind=kind)
        assert done.request["QUERY_STRING"] == f"q={job.task_id}"
        assert done.context["cl"].result_count == 1
        logged = LogEntry.objects.latest("pk")
        assert (logged.action_flag, logged.object_repr) == (ADDITION, f"{kind} of {job.name}")
    assert work == [
        {"type": "bank.BankAccount", "archive": None},
        {
            "name": "bank.Ledger",
            "accept_differences": True,
            "accept_uncompared": False,
            "archive": None,
            "compare_only": False,
        },
        {"path": STARTS["export"]["path"], "json": True, "compact": True},
    ]
    assert set(Job.objects.values_list("state", flat=True)) == {"succeeded"}


@pytest.mark.django_db(transaction=True)
def test_a_failed_job_is_started_again_from_its_page(work: list[dict[str, Any]]) -> None:
    client = client_of(*STARTER)
    names = {"snapshots": "bank.BankAccount", "rebuild": "bank.Ledger", "export": "/archive"}
    for kind, name in names.items():
        job = make_job("failed", kind=kind, name=name, finished_at=timezone.now())
        page = client.get(f"{LIST}{job.pk}/change/").content.decode()
        (url,) = re.findall(r'href="([^"]+)">Start it again<', page)
        assert f'<option value="{name}" selected>' in client.get(url).content.decode()
    assert "Start it again" not in client.get(f"{LIST}{make_job('succeeded').pk}/change/").content.decode()
    failed = make_job("failed")
    assert "Start it again" in client.get(f"{LIST}{failed.pk}/change/").content.decode()
    assert "Start it again" not in client_of("view_job").get(f"{LIST}{failed.pk}/change/").content.decode()


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize(
    ("chosen", "said"),
    [
        ({}, "is added to the archive at /archive."),
        ({"json": "on"}, "is added to the archive at /archive. From this run on, events are stored as JSON, too."),
        ({"compact": "on"}, "is added to the archive at /archive. All its increments are merged into one."),
    ],
)
def test_an_export_is_started_with_the_options_that_were_chosen(
    work: list[dict[str, Any]], chosen: dict[str, str], said: str
) -> None:
    client, url, values = client_of(*STARTER), f"{LIST}start/export/", {"path": "/archive", **chosen}
    fields = client.get(url).context["form"].fields
    assert all(fields[name].help_text for name in ("json", "compact"))
    assert client.post(url, values).context["consequences"][0].endswith(said)
    client.post(url, {**values, CONFIRMED: "yes"})
    assert work == [{"path": "/archive", "json": "json" in chosen, "compact": "compact" in chosen}]


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize(
    ("chosen", "said"),
    [
        ([], "and replace them if no row differs."),
        (["accept_differences"], "and replace them in any case."),
        (["compare_only"], "and dropped when they have been compared. The job fails if a row differs."),
        (["accept_differences", "compare_only"], "and dropped when they have been compared."),
    ],
)
def test_a_rebuild_is_started_with_the_options_that_were_chosen(
    work: list[dict[str, Any]], chosen: list[str], said: str
) -> None:
    client, url = client_of(*STARTER), f"{LIST}start/rebuild/"
    values = {"projection": "bank.Ledger", **dict.fromkeys(chosen, "on")}
    assert client.post(url, values).context["consequences"][0].endswith(said)
    client.post(url, {**values, CONFIRMED: "yes"})
    (given,) = work
    assert [name for name in ("accept_differences", "compare_only") if given[name]] == chosen


@pytest.mark.django_db(transaction=True)
def test_undoing_a_rebuild_puts_the_tables_of_that_projection_back(work: list[dict[str, Any]]) -> None:
    rebuild = make_rebuild()
    client = client_of("change_rebuild", "view_job")
    url = f"/admin/enode_django/rebuild/{rebuild.pk}/undo/"
    assert url in client.get("/admin/enode_django/rebuild/").content.decode()
    other = client.post(url, {"projection": "bank.AccountSummaries", CONFIRMED: "yes"})
    assert "not one of the available choices" in other.content.decode()
    assert "brought up to date and put back" in client.post(url, {"projection": "bank.Ledger"}).content.decode()
    assert work == []
    assert client.post(url, {"projection": "bank.Ledger", CONFIRMED: "yes"}).status_code == 302
    assert work == [{"name": "bank.Ledger", "take_back": True}]
    assert LogEntry.objects.get().object_id == str(rebuild.pk)


@pytest.mark.django_db
@pytest.mark.usefixtures("without_broker")
@pytest.mark.parametrize(
    ("kind", "command"),
    [
        ("snapshots", "manage.py enode buildsnapshots --type bank.BankAccount"),
        ("rebuild", "manage.py rebuildprojection bank.Ledger --accept-differences"),
        ("export", escape(f"manage.py enode exportevents '/archive of {SCRIPT}' --json --compact")),
    ],
)
@pytest.mark.parametrize("confirmed", [{}, {CONFIRMED: "yes"}])
def test_without_celery_the_page_names_the_command_to_run(kind: str, command: str, confirmed: dict[str, str]) -> None:
    page = client_of(*STARTER).post(f"{LIST}start/{kind}/", {**STARTS[kind], **confirmed}).content.decode()
    assert "the project has no Celery app with a broker; run this instead" in page
    assert command in page
    assert not LogEntry.objects.exists()


@pytest.mark.django_db
def test_a_broker_of_celery_that_cannot_be_reached_is_said() -> None:
    unreachable = Celery("unreachable", broker="redis://127.0.0.1:1/0")
    unreachable.conf.broker_transport_options = {"max_retries": 1, "interval_start": 0}
    unreachable.set_current()
    try:
        response = client_of("add_job").post(f"{LIST}start/snapshots/", {CONFIRMED: "yes"})
    finally:
        app.set_current()
    assert "Celery&#x27;s broker took no task" in response.content.decode()
    assert "manage.py enode buildsnapshots" in response.content.decode()


@pytest.mark.django_db
def test_what_is_worked_on_already_is_not_started_again(work: list[dict[str, Any]]) -> None:
    job = make_job()
    response = client_of("add_job").post(f"{LIST}start/snapshots/", {CONFIRMED: "yes"})
    assert f"job {job.pk} works on that already" in response.content.decode()
    assert work == []
    Job.objects.update(lease_until=Now() - timedelta(seconds=1))
    client_of("add_job").post(f"{LIST}start/snapshots/", {CONFIRMED: "yes"})
    assert len(work) == 1, "it takes over what was left"


@pytest.mark.django_db
def test_starting_and_undoing_need_their_permissions_and_a_token(work: list[dict[str, Any]], client: Client) -> None:
    undo = f"/admin/enode_django/rebuild/{make_rebuild().pk}/undo/"
    starts = [f"{LIST}start/{kind}/" for kind in STARTS]
    viewer = client_of("view_job", "change_job", "delete_job", "view_rebuild")
    forger = client_of(*STARTER, "change_rebuild", checks=True)
    for url in (*starts, undo):
        assert viewer.get(url).status_code == 403
        assert viewer.post(url, {**STARTS["rebuild"], CONFIRMED: "yes"}).status_code == 403
        assert forger.post(url, {**STARTS["rebuild"], CONFIRMED: "yes"}).status_code == 403
        assert client.post(url, {CONFIRMED: "yes"}).status_code == 302, "to the login"
    assert work == []
    assert "start/" not in viewer.get(LIST).content.decode()
    assert client_of("add_job").get(f"{LIST}start/burn/").status_code == 404


@pytest.mark.django_db
def test_an_export_needs_the_permission_to_read_what_it_writes(work: list[dict[str, Any]]) -> None:
    blind, url = client_of("add_job", "view_job", "change_job"), f"{LIST}start/export/"
    assert blind.get(url).status_code == 403
    assert blind.post(url, {**STARTS["export"], CONFIRMED: "yes"}).status_code == 403
    listed = blind.get(LIST).content.decode()
    assert f"{LIST}start/snapshots/" in listed
    assert url not in listed
    assert work == []


@pytest.mark.django_db
@pytest.mark.parametrize("path", ["/archive/../etc", "/archive/sub", "/etc", "file:///archive", "s3a://elsewhere", ""])
def test_an_export_goes_to_no_other_directory_than_those_of_the_settings(work: list[dict[str, Any]], path: str) -> None:
    page = client_of(*STARTER).post(f"{LIST}start/export/", {"path": path, CONFIRMED: "yes"}).content.decode()
    assert (escape(f"{path} may not be exported to: it is not in ENODE") if path else "is required") in page
    assert work == []


@pytest.mark.django_db
def test_without_a_directory_in_the_settings_nothing_is_exported(work: list[dict[str, Any]], settings: Any) -> None:
    settings.ENODE = {**settings.ENODE, "JOBS": {}}
    page = client_of(*STARTER).post(f"{LIST}start/export/", {"path": "/archive", CONFIRMED: "yes"}).content.decode()
    assert escape("Nothing may be exported from here: ENODE['JOBS']['EXPORT_DIRECTORIES'] is empty.") in page
    assert work == []


@pytest.mark.django_db
def test_only_what_is_swapped_can_be_undone() -> None:
    undone, client = make_rebuild("undone"), client_of("change_rebuild")
    for number in (undone.pk, 10**30, "x"):
        assert client.get(f"/admin/enode_django/rebuild/{number}/undo/").status_code == 404
    assert "/undo/" not in client.get("/admin/enode_django/rebuild/").content.decode()
    page = client.get(f"/admin/enode_django/rebuild/{undone.pk}/change/").content.decode()
    assert "bank.Ledger" in page
    assert client_of().get("/admin/enode_django/rebuild/").status_code == 403


@pytest.mark.django_db
def test_the_base_of_all_aggregates_is_no_type_for_snapshots() -> None:
    form = StartSnapshots(None)
    field = form.fields["type"]
    assert isinstance(field, forms.ChoiceField)
    names = [name for name, _ in field.choices]
    assert "bank.BankAccount" in names
    assert "enode.AggregateRoot" not in names


@pytest.mark.django_db
def test_a_rebuild_is_told_in_words() -> None:
    rebuild, client = make_rebuild("settled"), client_of("change_rebuild")
    page = client.get(f"/admin/enode_django/rebuild/{rebuild.pk}/change/").content.decode()
    assert "bank.Ledger: build 1, settled" in page
    assert "generation" not in page
    listed = client.get("/admin/enode_django/rebuild/", {"state__exact": "settled"})
    assert listed.context["cl"].result_count == 1
    for text in (page, listed.content.decode()):
        assert "settled: it can no longer be undone" in text
        assert "for good" not in text


@pytest.mark.django_db
def test_progress_is_told_to_who_may_view_jobs_and_to_nobody_else(client: Client) -> None:
    running = make_job(progress={"stage": SCRIPT, "made": 1200})
    ended = make_job("succeeded", name="b")
    url = f"{LIST}progress/?ids={running.pk},{ended.pk},x,{10**30},&newest={running.pk}"
    told = client_of("view_job").get(url).json()
    assert told["newer"] == 1
    assert told["jobs"][str(running.pk)]["progress"] == f"{SCRIPT}: made 1,200"
    assert told["jobs"][str(running.pk)]["running"]
    assert not told["jobs"][str(ended.pk)]["running"]
    assert client_of("view_topic").get(url).status_code == 403
    assert client.get(url).status_code == 302
    assert SCRIPT not in client_of("view_job").get(LIST).content.decode()


@pytest.mark.django_db
def test_cancelling_needs_a_token() -> None:
    chosen = {"action": "cancel", "_selected_action": [make_job().pk]}
    assert client_of("change_job", checks=True).post(LIST, chosen).status_code == 403
    assert Job.objects.get().cancel_requested_at is None


@pytest.mark.django_db
def test_what_an_error_says_is_for_who_may_read_events() -> None:
    """A rebuild's may quote them."""
    failed = make_job("failed", error="Traceback\nValueError: no Ada", finished_at=timezone.now())
    page = f"{LIST}{failed.pk}/change/"
    blind = client_of("view_job")
    assert "no Ada" in client_of("view_job", "view_payload").get(page).content.decode()
    assert "no Ada" not in blind.get(page).content.decode()
    for lookup in ("error__contains=Ada", "kind=%00"):
        assert blind.get(f"{LIST}?{lookup}").status_code == 400
    assert "no Ada" not in str(ask_jobs()), "the dashboard shows it"


@pytest.mark.django_db
def test_rows_and_errors_among_the_figures_are_for_who_may_read_events() -> None:
    """The tables in use and the rebuilt ones hold what the events held."""
    quotes = {"examples": ["account of a: owner: rebuilt 'Ada', in use 'Bea'"], "failures": [["a", "no Ada"]]}
    figures = {**quotes, "differences": 1, "parked": ["account-7"]}
    ended = make_job("succeeded", kind="rebuild", figures=figures, finished_at=timezone.now())
    page = f"{LIST}{ended.pk}/change/"
    assert "no Ada" in client_of("view_job", "view_payload").get(page).content.decode()
    seen = client_of("view_job").get(page).content.decode()
    assert "Ada" not in seen
    assert "account-7" in seen
    assert seen.count("contents of events, which you may not view") == 2


@pytest.mark.django_db
def test_jobs_that_have_ended_can_be_deleted_by_who_may() -> None:
    running, ended, other = make_job(), make_job("failed", name="b"), make_job("succeeded", name="c")
    chosen = {"action": "delete_selected", "_selected_action": [running.pk, ended.pk], "post": "yes"}
    viewer, forger, client = client_of("change_job"), client_of("delete_job", checks=True), client_of("delete_job")
    assert viewer.post(f"{LIST}{ended.pk}/delete/", {"post": "yes"}).status_code == 403
    viewer.post(LIST, chosen)
    assert forger.post(f"{LIST}{ended.pk}/delete/", {"post": "yes"}).status_code == 403
    assert client.post(f"{LIST}{running.pk}/delete/", {"post": "yes"}).status_code == 403
    assert client.post(LIST, chosen).status_code == 403, "one of them runs"
    assert Job.objects.count() == 3
    assert client.post(f"{LIST}{ended.pk}/delete/", {"post": "yes"}).status_code == 302
    client.post(LIST, {**chosen, "_selected_action": [other.pk]})
    assert list(Job.objects.all()) == [running]
    assert LogEntry.objects.count() == 2
