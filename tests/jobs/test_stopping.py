"""A job learns within a moment that it has to stop, whatever it is doing. Each wait here would last for ever."""

from __future__ import annotations

import math
import signal
import threading
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest
from django.db import connection
from django.test import override_settings

from enode_django.batch import KINDS, NO_MASTER
from enode_django.concurrency import stopping
from enode_django.concurrency.backoff import within
from enode_django.eventstore.postgres import PostgresEventStore
from enode_django.eventstore.scanning import persistently
from enode_django.exceptions import JobCancelled, JobLost, StoreUnavailable
from enode_django.jobs import running as jobs
from enode_django.jobs.running import RunningJob, request_cancel, running_job
from enode_django.jobs.termination import ProcessTerminated, Termination
from enode_django.models import Job
from enode_django.repository.fingerprint import fingerprint_of
from enode_django.runtime import replay
from sample_project.bank.domain import BankAccount
from tests.integration.running import end_other_sessions, other_session, wait_for
from tests.jobs.test_leases import KIND, NAME, ending_in, let_run_out, only_job
from tests.rebuilding.conftest import drop_schemas
from tests.spark.accounts import account

pytestmark = pytest.mark.django_db(transaction=True)

LONG = 3600.0
TABLE = "bank_accountsummary"


@pytest.fixture(autouse=True)
def nobody_renews(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Switch renewals off: a renewal would also notice a request to cancel, but seconds later."""
    monkeypatch.setattr(jobs, "RENEW_AT_MOST", math.inf)
    yield
    end_other_sessions()


def test_a_request_is_heard_long_before_the_lease_is_renewed() -> None:
    with ending_in(JobCancelled, lease=LONG) as job:
        request_cancel(job.id)
        wait_for(lambda: job.stopped)
        job.check()


def test_a_lease_that_was_taken_over_is_missed_long_before_it_would_be_renewed() -> None:
    with ending_in(JobLost, lease=LONG) as job:
        let_run_out(job.id)
        with running_job(KIND, NAME):
            wait_for(lambda: job.stopped)
        job.check()


def test_work_that_waits_for_the_database_is_interrupted() -> None:
    with ending_in(JobCancelled, lease=LONG) as job, connection.cursor() as cursor:
        request_cancel(job.id)
        cursor.execute("SELECT pg_sleep(1e6)")


def test_work_that_goes_on_after_its_first_statement_was_cancelled_is_interrupted_again() -> None:
    with ending_in(JobCancelled, lease=LONG) as job, connection.cursor() as cursor:
        request_cancel(job.id)
        for _ in range(2):
            with pytest.raises(Exception, match="canceling statement"):
                cursor.execute("SELECT pg_sleep(1e6)")
        job.check()


def test_a_job_ends_only_when_what_was_to_stop_it_has_returned() -> None:
    """Otherwise it might stop the next job."""
    began, order = threading.Event(), list[str]()

    def slow() -> None:
        began.set()
        threading.Event().wait(0.1)
        order.append("has returned")

    with ending_in(JobCancelled) as job:
        job.on_stop(slow)
        job.stop(JobCancelled("now"))
        assert began.wait(60)
        job.check()
    order.append("has ended")
    assert order == ["has returned", "has ended"]


def work_until_terminated(signals: int) -> None:
    with Termination(in_pool=True) as process, running_job(KIND, NAME) as job, process.stops(job):
        for _ in range(signals):
            signal.raise_signal(signal.SIGTERM)
        job.check()


@pytest.mark.parametrize("signals", [1, 2])
def test_a_signal_that_has_ended_a_job_does_nothing_more_and_another_one_is_not_lost(signals: int) -> None:
    heard: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, frame: heard.append(number))
    try:
        with pytest.raises(ProcessTerminated):
            work_until_terminated(signals)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert heard == [signal.SIGTERM] * (signals - 1)
    assert only_job().state == "cancelled"


def fails() -> None:
    raise StoreUnavailable("away for ever")


@pytest.mark.parametrize(
    "wait",
    [lambda: stopping.pause(1e6), lambda: persistently("default", fails), lambda: within(math.inf)(fails)],
    ids=["a pause", "reading again", "trying again"],
)
def test_waits_between_tries_end(wait: Callable[[], object]) -> None:
    with ending_in(JobCancelled, lease=LONG) as job:
        request_cancel(job.id)
        wait()


def test_what_is_cleared_away_afterwards_is_not_stopped() -> None:
    with ending_in(JobCancelled, lease=LONG) as job:
        request_cancel(job.id)
        try:
            stopping.pause(1e6)
        finally:
            stopping.check()
            stopping.pause(0)
            assert persistently("default", lambda: 3) == 3
            with connection.cursor() as cursor:
                cursor.execute("SELECT pg_sleep(0.01)")
    assert not stopping.is_stoppable()


@pytest.fixture
def store() -> Iterator[PostgresEventStore]:
    yield PostgresEventStore()
    drop_schemas()


def run(kind: str, **arguments: Any) -> RunningJob:
    with override_settings(ENODE={"SPARK": {"MASTER": NO_MASTER}}), running_job(kind, NAME, lease=LONG) as job:
        KINDS[kind](job, **arguments)
    return job


def is_somebody_waiting(session: psycopg.Connection[Any]) -> bool:
    return bool(session.execute("SELECT 1 FROM pg_locks WHERE NOT granted").fetchone())


@pytest.mark.parametrize("mode", ["ACCESS EXCLUSIVE", "ROW EXCLUSIVE"], ids=["compares", "swaps"])
def test_a_rebuild_that_waits_for_a_lock_is_cancelled(store: PostgresEventStore, mode: str) -> None:
    """The lock blocks readers, so that the rebuild cannot compare, or it keeps the rebuild from locking writers out."""
    store.append([one for number in range(3) for one in account(f"a{number}", range(1, 4))])
    replay("bank.AccountSummaries")
    with other_session() as session, session.transaction():
        session.execute(f"LOCK TABLE {TABLE} IN {mode} MODE")
        cancelling = cancel_when(lambda: is_somebody_waiting(session))
        with pytest.raises(JobCancelled):
            run("rebuild", name="bank.AccountSummaries", accept_differences=True)
        cancelling.join(60)
    assert Job.objects.get().state == "cancelled"


def test_snapshots_in_this_process_are_cancelled_between_two_aggregates(
    store: PostgresEventStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.append([one for number in range(3) for one in account(f"a{number}", range(1, 101))])
    opened: list[str] = []
    original = BankAccount._opened
    fingerprint_of(BankAccount)  # the process caches it now, before the code is replaced

    with override_settings(ENODE={"SPARK": {"MASTER": NO_MASTER}}), ending_in(JobCancelled, lease=LONG) as job:

        def cancelled_meanwhile(self: BankAccount, event: Any) -> None:
            opened.append(self.id)
            request_cancel(job.id)
            wait_for(lambda: job.stopped)
            original(self, event)

        monkeypatch.setattr(BankAccount, "_opened", cancelled_meanwhile)
        KINDS["snapshots"](job, type=None)
    assert len(opened) == 1
    assert Job.objects.get().state == "cancelled"


def cancel_when(condition: Callable[[], object]) -> threading.Thread:
    """Ask in another thread to cancel the running job, as soon as the condition holds. Return the thread."""

    def cancel() -> None:
        try:
            wait_for(condition)
            request_cancel(Job.objects.get().pk)
        finally:
            connection.close()

    thread = threading.Thread(target=cancel)
    thread.start()
    return thread
