"""One run at a time for each kind and name of job, whatever happens to the process that runs it."""

from __future__ import annotations

import contextlib
import math
import signal
import threading
import time
import uuid
from collections.abc import Iterator
from datetime import timedelta
from typing import Any, NoReturn

import pytest
from django.db import OperationalError, ProgrammingError, connection, transaction
from django.db.models.functions import Now

from enode_django.equeue.clocks import boot_time
from enode_django.exceptions import JobCancelled, JobLost, JobRunning, JobTimeout, UnknownJob
from enode_django.jobs import leases
from enode_django.jobs.running import RunningJob, request_cancel, running_job
from enode_django.jobs.texts import in_words
from enode_django.models import Job, JobState
from tests.integration.running import end_other_sessions, other_session, wait_for
from tests.jobs.holder import HELD, STOPPED
from tests.jobs.processes import Holder

pytestmark = pytest.mark.django_db(transaction=True)

KIND, NAME = "tests", "of/everything"
SHORT = 10.0
LONG = timedelta(hours=1)


@pytest.fixture(autouse=True)
def no_session_left() -> Iterator[None]:
    yield
    end_other_sessions()


def only_job() -> Job:
    return Job.objects.get()


def let_run_out(job_id: int) -> None:
    Job.objects.filter(pk=job_id).update(lease_until=Now() - timedelta(seconds=1))


@contextlib.contextmanager
def ending_in(error: type[BaseException], match: str | None = None, **options: float) -> Iterator[RunningJob]:
    with pytest.raises(error, match=match), running_job(KIND, NAME, **options) as job:
        yield job


# -- a row for each run -----------------------------------------------------------------------------------------------


def test_a_job_that_ends_well_keeps_its_figures_and_its_last_progress() -> None:
    with running_job(KIND, NAME, task_id="task-1") as job:
        assert only_job().state == "running"
        job.report("reading", rows=3)
        job.result(rows=3)
        job.result(names=["a", "b"])
    row = only_job()
    assert (row.kind, row.name, row.task_id, row.state, row.error) == (KIND, NAME, "task-1", "succeeded", "")
    assert (row.progress, row.figures) == ({"stage": "reading", "rows": 3}, {"rows": 3, "names": ["a", "b"]})
    assert row.finished_at is not None
    assert row.finished_at >= row.started_at


def test_what_is_raised_is_raised_and_kept_with_its_traceback() -> None:
    with ending_in(ZeroDivisionError) as job:
        job.result(rows=1)
        raise ZeroDivisionError("not \0 nor \ud800 today")
    row = only_job()
    assert (row.state, row.figures) == ("failed", {})
    assert "test_leases.py" in row.error
    assert row.error.endswith("ZeroDivisionError: not \N{REPLACEMENT CHARACTER} nor ? today\n")


def test_an_interrupted_job_is_cancelled() -> None:
    with pytest.raises(KeyboardInterrupt), running_job(KIND, NAME):
        raise KeyboardInterrupt
    assert only_job().state == "cancelled"


def test_figures_that_postgresql_cannot_hold_are_refused_or_cleaned() -> None:
    with running_job(KIND, NAME) as job:
        with pytest.raises(ValueError, match="not JSON compliant"):
            job.report("x", share=math.nan)
        with pytest.raises(TypeError):
            job.result(what=object())
        job.result(text="a\0b", half="\ud800")
    assert only_job().figures == {"text": "a\N{REPLACEMENT CHARACTER}b", "half": "?"}


def test_progress_in_words() -> None:
    assert in_words({"stage": "round", "events_per_second": 12345.5, "of": "all"}) == (
        "round: events per second 12,345.5, of all"
    )
    assert in_words({}) == ""
    assert in_words({"done": 3}) == "done 3"


def test_progress_says_what_is_left() -> None:
    replay = {"stage": "replay", "tasks": 16, "done": 4, "left": 72, "streams": 1200, "a_second": 50}
    assert in_words(replay) == "replay: 4 of 16 tasks done, about 0:01:12 left, streams 1,200, 50 a second"
    assert in_words({"stage": "replay", "tasks": 16, "done": 0, "left": None}) == "replay: 0 of 16 tasks done"


def test_a_job_cannot_begin_in_a_transaction_that_hides_it() -> None:
    with transaction.atomic(), pytest.raises(RuntimeError), running_job(KIND, NAME):
        pass
    assert not Job.objects.exists()


# -- one at a time ----------------------------------------------------------------------------------------------------


def test_a_second_run_is_refused_and_told_who_runs() -> None:
    with running_job(KIND, NAME, task_id="task-1") as job:
        with pytest.raises(JobRunning, match=rf"job {job.id} .*'of/everything'.* in the task task-1; ") as refused:
            running_job(KIND, NAME).__enter__()
        assert (refused.value.job_id, refused.value.task_id) == (job.id, "task-1")
        with running_job(KIND, "something else"), running_job("another kind", NAME):
            assert Job.objects.filter(state="running").count() == 3
    with running_job(KIND, NAME):
        pass


def test_of_many_that_begin_at_once_one_runs() -> None:
    together, outcomes, done = threading.Barrier(6), list[Any](), threading.Event()

    def begin() -> None:
        with contextlib.closing(connection):
            together.wait(60)
            try:
                with running_job(KIND, NAME):
                    outcomes.append("ran")
                    done.wait(60)
            except JobRunning:
                outcomes.append("refused")

    threads = [threading.Thread(target=begin) for _ in range(6)]
    for thread in threads:
        thread.start()
    wait_for(lambda: len(outcomes) == 6)
    done.set()
    for thread in threads:
        thread.join(60)
    assert sorted(outcomes) == ["ran", *["refused"] * 5]
    assert Job.objects.count() == 1


def test_who_begins_at_the_moment_at_which_another_run_has_begun_is_refused() -> None:
    refused: list[BaseException] = []

    def begin() -> None:
        with contextlib.closing(connection):
            try:
                leases.take(KIND, NAME, task_id="", seconds=SHORT)
            except Exception as error:
                refused.append(error)

    taking = threading.Thread(target=begin)
    with transaction.atomic():  # the row is not to be seen yet
        Job.objects.create(kind=KIND, name=NAME, owner=uuid.uuid4(), started_at=Now(), lease_until=Now() + LONG)
        taking.start()
        wait_for_one_that_waits()
    taking.join(60)
    assert [type(error) for error in refused] == [JobRunning]


def test_a_lease_is_renewed_by_a_clock_that_was_set_back() -> None:
    """Otherwise it would outlast a run that dies later by as much."""
    lease = leases.take(KIND, NAME, task_id="", seconds=SHORT)
    Job.objects.update(lease_until=Now() + LONG)
    leases.renew(lease, {})
    assert Job.objects.filter(lease_until__lte=Now() + timedelta(seconds=SHORT)).exists()


def test_an_end_can_be_written_again_if_its_answer_was_lost() -> None:
    lease = leases.take(KIND, NAME, task_id="", seconds=SHORT)
    for _ in range(2):
        leases.finish(lease, JobState.SUCCEEDED, progress={}, figures={}, error="")
    with pytest.raises(JobLost):
        leases.finish(lease, JobState.FAILED, progress={}, figures={}, error="")
    assert only_job().state == "succeeded"


def test_an_end_that_cannot_be_written_while_the_lease_lasts_is_given_up() -> None:
    def refuse(*arguments: object) -> NoReturn:
        raise OperationalError("the server does not answer")

    with contextlib.ExitStack() as stack, ending_in(JobLost, "could not be renewed in time", lease=0.5):
        stack.enter_context(connection.execute_wrapper(refuse))
    assert only_job().state == "running"


def test_an_end_that_can_never_be_written_is_not_tried_until_the_lease_has_run_out() -> None:
    def refuse(*arguments: object) -> NoReturn:
        raise ProgrammingError("there is no such column")

    with contextlib.ExitStack() as stack, ending_in(ProgrammingError, lease=LONG.total_seconds()):
        stack.enter_context(connection.execute_wrapper(refuse))


def test_a_run_does_not_think_that_its_lease_lasts_longer_than_others_see() -> None:
    """The time that the renewal takes is part of the lease."""
    lease = leases.take(KIND, NAME, task_id="", seconds=SHORT)
    job = RunningJob(lease, deadline=boot_time() + SHORT, time_limit=60)

    def renew() -> None:
        with contextlib.closing(connection):
            job._renewed()

    renewing = threading.Thread(target=renew)
    with transaction.atomic():
        Job.objects.select_for_update().get()
        renewing.start()
        wait_for_one_that_waits()
        asked_before = boot_time()
        time.sleep(0.05)
    renewing.join(60)
    assert job._deadline <= asked_before + SHORT


def test_a_run_that_had_to_wait_for_its_row_does_not_think_that_its_lease_lasts_longer_than_others_see() -> None:
    deadlines: list[float] = []

    def begin() -> None:
        with contextlib.closing(connection), running_job(KIND, NAME, lease=SHORT) as job:
            deadlines.append(job._deadline)

    beginning = threading.Thread(target=begin)
    with transaction.atomic():
        Job.objects.create(kind=KIND, name=NAME, owner=uuid.uuid4(), started_at=Now(), lease_until=Now() + LONG)
        beginning.start()
        wait_for_one_that_waits()
        waited_until = boot_time()
        transaction.set_rollback(True)
    beginning.join(60)
    assert deadlines[0] <= waited_until + SHORT


def test_a_run_whose_lease_has_run_out_finds_that_out_by_itself() -> None:
    """The threads beside it may not get the processor in time."""
    lease = leases.take(KIND, NAME, task_id="", seconds=SHORT)
    job = RunningJob(lease, deadline=boot_time() - 0.001, time_limit=60)
    with pytest.raises(JobLost):
        job.check()


def test_the_first_reason_to_stop_is_the_one_that_counts() -> None:
    with ending_in(JobCancelled) as job:
        job.stop(JobCancelled("somebody asked"))
        job.stop(JobTimeout("and then it took too long"))
        job.check()
    assert only_job().state == "cancelled"


def test_a_lease_is_kept_for_as_long_as_the_job_lasts() -> None:
    with running_job(KIND, NAME, lease=SHORT) as job:
        first = only_job().lease_until
        wait_for(lambda: only_job().lease_until > first + timedelta(seconds=SHORT))
        with pytest.raises(JobRunning):
            running_job(KIND, NAME).__enter__()
        job.check()
    assert only_job().state == "succeeded"


def test_a_run_whose_lease_was_taken_over_stops_and_changes_nothing_more() -> None:
    stopped = threading.Event()
    with ending_in(JobLost) as job:
        job.on_stop(stopped.set)
        let_run_out(job.id)
        with running_job(KIND, NAME) as other:
            assert stopped.wait(60)
            with pytest.raises(JobLost):
                job.check()
            with pytest.raises(JobLost), transaction.atomic():
                job.hold()
            with transaction.atomic():
                other.hold()
        job.result(wrong=True)
    lost, won = Job.objects.order_by("pk")
    assert (lost.state, lost.error, lost.figures) == ("failed", "its lease ran out", {})
    assert won.state == "succeeded"


def test_a_lease_that_was_taken_over_unnoticed_fails_the_end_of_the_job() -> None:
    with ending_in(JobLost) as job:
        let_run_out(job.id)
        with running_job(KIND, NAME):
            pass
    assert [row.state for row in Job.objects.order_by("pk")] == ["failed", "succeeded"]


def test_nobody_takes_over_while_the_lease_is_held_fast() -> None:
    taken = threading.Event()
    with contextlib.suppress(JobLost), running_job(KIND, NAME) as job:
        let_run_out(job.id)
        with transaction.atomic():
            job.hold()
            taking = threading.Thread(target=take, args=[taken])
            taking.start()
            wait_for_one_that_waits()
            with other_session() as session:
                assert session.execute("SELECT count(*) FROM enode_django_job").fetchone() == (1,)
            assert not taken.is_set()
        taking.join(60)
    assert taken.is_set()


def test_a_lease_that_is_renewed_while_somebody_takes_it_over_is_kept() -> None:
    lease = leases.take(KIND, NAME, task_id="", seconds=LONG.total_seconds())
    let_run_out(lease.job_id)
    outcomes: list[object] = []

    def begin() -> None:
        with contextlib.closing(connection):
            try:
                outcomes.append(leases.take(KIND, NAME, task_id="", seconds=SHORT))
            except JobRunning as refused:
                outcomes.append(refused.job_id)

    taking = threading.Thread(target=begin)
    with transaction.atomic():
        leases.renew(lease, {})
        taking.start()
        wait_for_one_that_waits()
    taking.join(60)
    assert outcomes == [lease.job_id]
    assert not leases.renew(lease, {})


def test_a_run_does_not_take_the_row_of_another_one_for_its_own() -> None:
    """The numbers of rows come again after the database was restored."""
    lease = leases.take(KIND, NAME, task_id="", seconds=SHORT)
    Job.objects.update(owner=uuid.uuid4())
    end: dict[str, Any] = {"progress": {}, "figures": {}, "error": ""}
    for lost in (
        lambda: leases.renew(lease, {}),
        lambda: leases.is_cancelled(lease),
        lambda: leases.finish(lease, JobState.SUCCEEDED, **end),
    ):
        with pytest.raises(JobLost):
            lost()
    Job.objects.update(state=JobState.SUCCEEDED)
    with pytest.raises(JobLost):
        leases.finish(lease, JobState.SUCCEEDED, **end)


IS_ONE_WAITING = "SELECT 1 FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"


def wait_for_one_that_waits() -> None:
    with other_session() as session:
        wait_for(lambda: session.execute(IS_ONE_WAITING).fetchone())


def take(taken: threading.Event) -> None:
    with contextlib.closing(connection), running_job(KIND, NAME):
        taken.set()


# -- what stops it ----------------------------------------------------------------------------------------------------


def test_a_request_to_cancel_stops_the_work_at_its_next_look() -> None:
    called = list[int]()
    with ending_in(JobCancelled) as job:
        job.on_stop(lambda: 1 / 0)
        job.on_stop(lambda: called.append(threading.get_ident()))
        request_cancel(job.id)
        request_cancel(job.id)
        wait_for(lambda: job.stopped and called)
        job.report("too late")
    assert called != [threading.get_ident()]
    assert len(called) == 1
    row = only_job()
    assert (row.state, row.cancel_requested_at is not None) == ("cancelled", True)
    with pytest.raises(UnknownJob, match=f"no job {row.pk} runs"):
        request_cancel(row.pk)


def test_what_the_work_raises_when_it_is_stopped_from_outside_is_not_its_error() -> None:
    broken = threading.Event()
    with ending_in(JobCancelled) as job:
        job.on_stop(broken.set)
        request_cancel(job.id)
        assert broken.wait(60)
        raise ConnectionError("the engine is gone")
    assert only_job().state == "cancelled"
    assert "the engine is gone" in only_job().error


def test_work_that_is_done_before_it_hears_of_the_request_has_succeeded() -> None:
    with running_job(KIND, NAME) as job:
        request_cancel(job.id)
    assert only_job().state == "succeeded"


def test_a_job_that_was_left_is_cancelled_at_once() -> None:
    with ending_in(JobLost) as job:
        let_run_out(job.id)
        request_cancel(job.id)
        assert only_job().state == "cancelled"
    assert only_job().state == "cancelled"


def test_a_job_is_stopped_at_its_time_limit_and_fails() -> None:
    stopped = threading.Event()
    with ending_in(JobTimeout, time_limit=0.1, match=r"more than 0\.1 s") as job:
        job.on_stop(stopped.set)
        assert stopped.wait(60)
        job.check()
    assert only_job().state == "failed"


def test_what_would_stop_the_work_is_not_accepted_when_it_has_to_stop_already() -> None:
    with ending_in(JobCancelled) as job:
        job.stop(JobCancelled("now"))
        job.on_stop(lambda: None)


# -- processes --------------------------------------------------------------------------------------------------------


def test_of_two_processes_one_gets_it_and_the_other_when_that_has_ended() -> None:
    with Holder(NAME, lease=30) as first, Holder(NAME, lease=30) as second:
        assert (first.first, second.first) == (HELD, "JobRunning")
        assert first.finish() == ""
        with running_job(KIND, NAME):
            pass
    assert [row.state for row in Job.objects.order_by("pk")] == ["succeeded"] * 2


def test_after_a_kill_the_work_is_free_when_the_lease_has_run_out(caplog: pytest.LogCaptureFixture) -> None:
    with Holder(NAME, lease=30) as holder:
        assert holder.first == HELD
        holder.kill()
        with pytest.raises(JobRunning):
            running_job(KIND, NAME).__enter__()
        let_run_out(only_job().pk)
        begin_when_free()
    killed, won = Job.objects.order_by("pk")
    assert (killed.state, killed.error, won.state) == ("failed", "its lease ran out", "succeeded")
    assert won.started_at >= killed.lease_until
    assert f"job {killed.pk} ({KIND} of {NAME!r}): its lease ran out; another run takes over" in caplog.messages


def test_a_process_that_stood_still_finds_itself_fenced_off() -> None:
    with Holder(NAME, lease=SHORT) as holder:
        assert holder.first == HELD
        holder.signal(signal.SIGSTOP)
        begin_when_free()
        holder.signal(signal.SIGCONT)
        assert {holder.line(), holder.line()} == {STOPPED, "JobLost"}
    fenced, won = Job.objects.order_by("pk")
    assert (fenced.state, fenced.figures, won.state) == ("failed", {}, "succeeded")


def begin_when_free() -> None:
    def begin() -> bool:
        try:
            with running_job(KIND, NAME):
                return True
        except JobRunning:
            return False

    wait_for(begin)


# -- the database -----------------------------------------------------------------------------------------------------


def renewed(row: Job) -> bool:
    return Job.objects.get(pk=row.pk).lease_until > row.lease_until


def test_a_job_outlives_its_sessions() -> None:
    with running_job(KIND, NAME, lease=30.0) as job:
        for _ in range(2):
            before = only_job()
            end_other_sessions()
            wait_for(lambda before=before: renewed(before))
        job.check()
    assert only_job().state == "succeeded"
