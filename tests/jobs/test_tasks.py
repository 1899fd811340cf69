"""The Celery tasks, run in this process. tests/acceptance/test_celery.py runs them in workers."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import pytest
from celery import shared_task
from celery.backends.cache import CacheBackend
from celery.exceptions import Retry
from celery.signals import task_retry
from django.conf import settings
from django.db import connection
from django.test import override_settings
from django_celery_beat.models import PeriodicTask
from django_celery_beat.schedulers import DatabaseScheduler

from enode_django import tasks
from enode_django.batch import KINDS, NO_MASTER
from enode_django.eventing.registry import subscribers
from enode_django.eventstore.base import StreamRecord
from enode_django.eventstore.postgres import PostgresEventStore
from enode_django.exceptions import JobCancelled, JobLost, JobRunning, ProjectionsDiffer, StoreUnavailable
from enode_django.ids import new_id
from enode_django.jobs import leases
from enode_django.jobs.running import RunningJob, running_job
from enode_django.models import Job, Snapshot
from enode_django.serialization.codec import encode_stream
from enode_django.tasks import (
    PROGRESS,
    JobTask,
    build_snapshots,
    export_events,
    rebuild_projection,
    run_job,
    undo_rebuild,
)
from sample_project.bank.domain import AccountOpened
from sample_project.bank.models import AccountSummary
from sample_project.celery import app
from tests.jobs.test_leases import let_run_out
from tests.rebuilding.conftest import schemas
from tests.snapshots.domain import Hooked, Shelf
from tests.snapshots.histories import store_history

pytestmark = pytest.mark.django_db(transaction=True)

KIND = "tests"
Work = Callable[[RunningJob], None]


@shared_task(bind=True, base=JobTask, name="tests.work")
def work(self: JobTask) -> dict[str, Any]:
    return run_job(self, KIND, "something")


@pytest.fixture
def does(monkeypatch: pytest.MonkeyPatch) -> Callable[[Work], None]:
    """A function that sets the work of the task ``work``."""
    assert app.tasks  # the tasks have their app
    return lambda does: monkeypatch.setitem(KINDS, KIND, does)


def states() -> list[str]:
    return list(Job.objects.order_by("pk").values_list("state", flat=True))


@pytest.fixture(autouse=True)
def without_spark() -> Iterator[None]:
    with override_settings(ENODE={**settings.ENODE, "SPARK": {"MASTER": NO_MASTER}}):
        yield


def test_snapshots_are_made_of_all_types_or_of_one_and_counted() -> None:
    store = PostgresEventStore()
    for id, until, cls in (("a", 25, Shelf), ("b", 9, Shelf), ("h", 12, Hooked)):
        store_history(store, id, until, cls)
    store_history(store, "poisoned", 20, fails_at=3)
    assert build_snapshots.apply(args=["snapshots.Hooked"]).get() == {
        "made": {"snapshots.Hooked": 1},
        "failed": 0,
        "failures": [],
    }
    figures = build_snapshots.apply().get()
    assert (figures["made"], figures["failed"], figures["failures"][0][0]) == ({"snapshots.Shelf": 1}, 1, "poisoned")
    assert set(Snapshot.objects.values_list("aggregate_root_id", flat=True)) == {"a", "h"}
    one, all_types = Job.objects.order_by("pk")
    assert (one.kind, one.name, one.state) == ("snapshots", "snapshots.Hooked", "succeeded")
    assert (all_types.name, all_types.progress["stage"]) == ("*", "making snapshots")
    assert all_types.figures == figures
    assert all_types.task_id


@pytest.fixture
def without_former_tables() -> Iterator[None]:
    """Drop the tables that a rebuild keeps for an undo, at the end of the test."""
    yield
    with connection.cursor() as cursor:
        for name in schemas():
            cursor.execute(f'DROP SCHEMA "{name}" CASCADE')


@pytest.mark.usefixtures("without_former_tables")
def test_a_projection_is_rebuilt() -> None:
    store_account("a", "ada")
    store_account("b", "bob")
    AccountSummary.objects.create(aggregate_root_id="a", version=1, owner="eve", opened_at=datetime.now(UTC))
    with pytest.raises(ProjectionsDiffer):
        rebuild_projection.apply(args=["bank.AccountSummaries"]).get()
    figures = rebuild_projection.apply(args=["bank.AccountSummaries", True]).get()
    assert (figures["aggregates"], figures["swapped"]) == (2, True)
    assert set(AccountSummary.objects.values_list("owner", flat=True)) == {"ada", "bob"}
    failed, succeeded = Job.objects.order_by("pk")
    assert (failed.kind, failed.name, failed.state) == ("rebuild", "bank.AccountSummaries", "failed")
    assert (succeeded.state, succeeded.figures) == ("succeeded", figures)
    assert undo_rebuild.apply(args=["bank.AccountSummaries"]).get()["swapped"]
    assert "eve" in AccountSummary.objects.values_list("owner", flat=True), "the tables from before are back"


def test_a_projection_is_compared_with_its_events_and_nothing_is_swapped() -> None:
    store_account("a", "ada")
    AccountSummary.objects.create(aggregate_root_id="a", version=1, owner="eve", opened_at=datetime.now(UTC))
    compare = partial(rebuild_projection.apply, args=["bank.AccountSummaries"])
    with pytest.raises(ProjectionsDiffer, match="1 rows differ among 1 aggregates"):
        compare(kwargs={"compare_only": True}).get()
    figures = compare(kwargs={"compare_only": True, "accept_differences": True}).get()
    assert (figures["swapped"], figures["compared"], figures["differences"]) == (False, 1, 1)
    assert "eve" in figures["examples"][0]
    assert schemas() == [], "what was built is dropped"
    failed, succeeded = Job.objects.order_by("pk")
    assert (failed.state, succeeded.state, succeeded.figures) == ("failed", "succeeded", figures)
    assert "eve" in failed.error


@pytest.mark.parametrize("task", [rebuild_projection, undo_rebuild])
def test_a_renamed_projection_is_not_rebuilt_beside_a_rebuild_that_was_started_by_the_command(
    task: JobTask, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Command and admin name its jobs by the key, which is the oldest name."""
    monkeypatch.setattr(subscribers.get("bank.AccountSummaries"), "aliases", ("bank.Summaries",))
    with running_job("rebuild", "bank.Summaries"):
        assert task.apply(args=["bank.AccountSummaries"]).state == "IGNORED"


def store_account(id: str, owner: str) -> None:
    names = ("bank.BankAccount", "bank.OpenAccount")
    events = encode_stream([AccountOpened(owner=owner)])
    PostgresEventStore().append([StreamRecord(id, 1, new_id(), *names, datetime.now(UTC), events, b"")])


def test_a_task_that_finds_another_at_work_ends_without_an_error(does: Callable[[Work], None]) -> None:
    does(lambda job: job.result(done=True))
    with running_job(KIND, "something", task_id="another") as other:
        result = work.apply()
        assert result.state == "IGNORED"
    assert states() == ["succeeded"]
    assert Job.objects.get().pk == other.id
    assert work.apply().get() == {"done": True}


@contextmanager
def when_retried(does: Callable[[], object]) -> Iterator[list[tuple[str, int]]]:
    """Call a function before each retry. Yield the ids and the counted retries of the messages of the retries."""
    messages = []

    def retried(reason: Retry, **about: object) -> None:
        messages.append((reason.sig.options["task_id"], reason.sig.options["retries"]))
        does()

    task_retry.connect(retried)
    try:
        yield messages
    finally:
        task_retry.disconnect(retried)


def test_a_task_that_comes_again_waits_for_the_lease_of_its_own_dead_run(does: Callable[[Work], None]) -> None:
    does(lambda job: job.result(done=True))
    dead = leases.take(KIND, "something", task_id="t", seconds=60)
    with when_retried(lambda: let_run_out(dead.job_id)) as messages:
        result = work.apply(task_id="t", retries=4)
    assert result.get() == {"done": True}
    assert messages == [("t", 4)], "the wait does not count as an attempt"
    assert states() == ["failed", "succeeded"]


@pytest.mark.parametrize("state", ["running", "succeeded", "failed", "cancelled"])
def test_a_task_that_comes_again_ends_if_its_own_run_was_alive(does: Callable[[Work], None], state: str) -> None:
    """A broker that has lost the connection to a worker delivers the task again while it runs."""
    does(lambda job: job.result(done=True))
    leases.take(KIND, "something", task_id="t", seconds=60)
    with when_retried(lambda: Job.objects.update(state=state)) as messages:
        result = work.apply(task_id="t")
    assert (result.state, len(messages)) == ("IGNORED", 1)
    assert states() == [state]


def test_a_task_that_has_waited_runs_though_the_row_of_its_dead_run_was_deleted(does: Callable[[Work], None]) -> None:
    does(lambda job: job.result(done=True))
    leases.take(KIND, "something", task_id="t", seconds=60)
    with when_retried(Job.objects.all().delete):
        assert work.apply(task_id="t").get() == {"done": True}


def test_a_task_that_has_waited_runs_though_another_one_has_ended_its_dead_run(does: Callable[[Work], None]) -> None:
    does(lambda job: job.result(done=True))
    dead = leases.take(KIND, "something", task_id="t", seconds=60)

    def take_over() -> None:
        let_run_out(dead.job_id)
        with running_job(KIND, "something", task_id="another"):
            pass

    with when_retried(take_over):
        assert work.apply(task_id="t").get() == {"done": True}


def test_a_cancelled_task_is_revoked_and_not_tried_again(does: Callable[[Work], None]) -> None:
    def cancelled(job: RunningJob) -> None:
        job.stop(JobCancelled("enough"))
        job.check()

    does(cancelled)
    assert work.apply().state == "IGNORED"  # the state of its message; the result backend knows more
    assert states() == ["cancelled"]


def test_what_may_pass_is_tried_again_a_few_times(does: Callable[[Work], None]) -> None:
    def fails_twice(job: RunningJob) -> None:
        if Job.objects.count() < 3:
            raise StoreUnavailable("the store is away")
        job.result(done=True)

    does(fails_twice)
    assert work.apply().get() == {"done": True}
    assert states() == ["failed", "failed", "succeeded"]
    Job.objects.all().delete()

    def always_fails(job: RunningJob) -> None:
        raise StoreUnavailable("the store is away")

    does(always_fails)
    with pytest.raises(StoreUnavailable):
        work.apply().get()
    assert states() == ["failed"] * 5


def test_a_lost_lease_ends_the_task_since_another_run_is_at_work(does: Callable[[Work], None]) -> None:
    def loses(job: RunningJob) -> None:
        job.stop(JobLost("taken by another run"))
        job.check()

    does(loses)
    with pytest.raises(JobLost):
        work.apply().get()
    assert states() == ["failed"]


def test_what_will_not_pass_fails_at_once(does: Callable[[Work], None]) -> None:
    does(lambda job: [][1])
    with pytest.raises(IndexError):
        work.apply().get()
    assert states() == ["failed"]


class SlowToTell(CacheBackend):
    """A result backend in this process that takes a state of progress only when the job has ended."""

    def __init__(self) -> None:
        super().__init__(app=app, backend="memory")
        self.tells, self.has_told = threading.Event(), threading.Event()
        self.states: list[str] = []

    def set(self, key: Any, value: Any) -> Any:
        if PROGRESS not in str(value):
            return super().set(key, value)
        self.tells.set()
        deadline = time.monotonic() + 30
        with closing(connection):
            while states() == ["running"] and time.monotonic() < deadline:
                time.sleep(0.01)
            self.states = states()
        super().set(key, value)
        self.has_told.set()


def test_progress_that_comes_late_does_not_replace_the_outcome(
    does: Callable[[Work], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    backend, usual = SlowToTell(), work.backend

    def fails(job: RunningJob) -> None:
        job.report("reading")
        assert backend.tells.wait(60)
        raise LookupError("no such account")

    does(fails)
    monkeypatch.setattr(tasks, "TELL_EVERY", 0.01)
    monkeypatch.setattr(work, "store_eager_result", True)
    work.backend = backend
    try:
        id = work.apply().id
    finally:
        work.backend = usual
    assert backend.has_told.wait(60)
    assert backend.get_state(id) == "FAILURE"
    assert backend.states == ["failed"], "the job's lease does not wait for the backend"


def test_a_task_that_is_called_like_a_function_raises_what_stops_it(does: Callable[[Work], None]) -> None:
    does(lambda job: job.result(done=True))
    assert work() == {"done": True}
    with running_job(KIND, "something"), pytest.raises(JobRunning):
        work()


def test_the_sample_schedules_tasks_that_there_are() -> None:
    assert DatabaseScheduler(app=app).schedule
    rows = {row.name: row for row in PeriodicTask.objects.filter(name__in=app.conf.beat_schedule)}
    every = {name: (row.task, row.interval.schedule.run_every) for name, row in rows.items()}
    assert every == {
        "snapshots": (build_snapshots.name, timedelta(hours=1)),
        "archive": (export_events.name, timedelta(days=1)),
        "rebuild": (rebuild_projection.name, timedelta(days=7)),
    }
    assert json.loads(rows["rebuild"].args) == ["bank.AccountSummaries"]
    assert json.loads(rows["archive"].args) == [settings.EVENT_ARCHIVE]


@pytest.mark.parametrize("task", [build_snapshots, rebuild_projection, undo_rebuild, export_events])
def test_celery_finds_the_tasks_and_their_limits(task: JobTask) -> None:
    app.loader.import_default_modules()
    found = app.tasks[task.name]
    assert task.name == f"enode_django.{task.__name__}"
    assert found.time_limit == 21_660
    assert found.acks_late
