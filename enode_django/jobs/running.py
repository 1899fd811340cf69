"""Running batch jobs: one run at a time for a kind and name, with a row that others see and can cancel.

Two threads accompany the thread that does the work. The first renews the lease, writes the progress and checks for
requests to cancel, over its own connection. The second waits for an early end (a request to cancel, a lost lease, the
time limit), then calls the callbacks that stop the work, and cancels its SQL statements. There are two because a
database that does not answer blocks the first, and just then the work has to stop.
"""

from __future__ import annotations

import json
import logging
import queue
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

import psycopg
from django.core.serializers.json import DjangoJSONEncoder
from django.db import connections
from psycopg.pq import TransactionStatus

from enode_django.concurrency.backoff import delays
from enode_django.concurrency.stopping import stoppable
from enode_django.concurrency.threads import join_threads, start_thread
from enode_django.conf import conf
from enode_django.equeue.clocks import boot_time
from enode_django.eventstore.sqlstates import is_transient
from enode_django.exceptions import JobCancelled, JobLost, JobStopped, JobTimeout
from enode_django.jobs import leases
from enode_django.jobs.leases import Lease, request_cancel
from enode_django.models import JobState

__all__ = ["RunningJob", "request_cancel", "running_job"]

logger = logging.getLogger("enode_django.jobs")

RENEW_AT_MOST = 5.0
"""The most seconds between renewals, however long the lease is. The progress that others see is up to so old."""
LOOK_EVERY = 0.4
"""Seconds between checks whether somebody has cancelled the job or taken its lease."""
INTERRUPT_EVERY = 1.0
"""Seconds between cancellations of the work's statements, until it calls `RunningJob.check`."""
CANCEL_SECONDS = 2.0
JOIN_SECONDS = 10.0


class RunningJob:
    """A job for the code that it runs. Methods are thread-safe; only `pause`, `hold` and `end` block.

    For example::

        def count_rows(job: RunningJob, *, limit: int) -> None:
            for number in range(limit):
                job.report("counting", rows=number)  # raises when the job has to stop
            job.result(rows=limit)

        with running_job("count", "accounts") as job:
            count_rows(job, limit=3)
    """

    def __init__(self, lease: Lease, *, deadline: float, time_limit: float) -> None:
        self.id = lease.job_id
        self._lease = lease
        self._deadline = deadline
        self._time_limit = time_limit
        self._ends_at = time.monotonic() + time_limit
        self.progress: Mapping[str, Any] = {}
        self.figures: Mapping[str, Any] = {}
        self._callbacks: list[Callable[[], object]] = []
        self.stopped: JobStopped | None = None
        """The reason why the work has to stop, or None."""
        self._ended = threading.Event()
        self._told = threading.Event()
        """Set when the work has to stop; by the watching thread, never in a signal handler."""
        self._has_heard = False
        self._connections = connections.all()
        """The connections of the working thread, open or not."""
        self._words: queue.SimpleQueue[JobStopped | None] = queue.SimpleQueue()
        """The reasons to stop, for the watching thread; None ends that thread."""

    # -- for the work -------------------------------------------------------------------------------------------------

    def report(self, stage: str, /, **figures: object) -> None:
        """Report the progress as JSON. The latest report counts, and others see it seconds later. Raises as `check`
        does, and `TypeError` or `ValueError` for figures that JSON cannot hold."""
        self.progress = storable({"stage": stage, **figures})
        self.check()

    def check(self) -> None:
        """Raise `JobStopped` (`JobCancelled`, `JobTimeout` or `JobLost`) if the work has to stop."""
        if self.stopped is None and boot_time() > self._deadline:
            self.stop(self._lost())
        if self.stopped is not None:
            self._has_heard = True
            raise self.stopped

    def check_once(self) -> None:
        """Raise as `check` does, unless a check has raised already."""
        if not self._has_heard:
            self.check()

    def pause(self, seconds: float) -> None:
        """Block for ``seconds``, or until the work has to stop; then raise as `check_once` does."""
        if self._has_heard:
            time.sleep(seconds)
        else:
            self._told.wait(seconds)
            self.check_once()

    def hold(self) -> None:
        """Lock the lease until the end of an atomic block of the job's database, so that another run can take it over
        only after the block has written. Keep the block short. Raises `JobLost`."""
        leases.hold(self._lease)

    def on_stop(self, callback: Callable[[], object]) -> None:
        """Register a callback that is called once, in another thread, when the work has to stop: to end a wait that
        does not call `check`. Raises as `check` does."""
        self._callbacks.append(callback)
        self.check()

    def result(self, **figures: Any) -> None:
        """Add figures that are stored if the job succeeds."""
        self.figures = {**self.figures, **storable(figures)}

    # -- for the caller that runs it ----------------------------------------------------------------------------------

    def stop(self, reason: JobStopped) -> None:
        """Make the work stop. Only the first reason counts. May be called in a signal handler."""
        if self.stopped is None:
            self.stopped = reason
            self._words.put(reason)  # the only queue whose put() is reentrant

    # -- the two threads ----------------------------------------------------------------------------------------------

    def start(self) -> None:
        self._renewing = start_thread(f"job-{self.id}-renewing", self._renew_again_and_again)
        self._watching = start_thread(f"job-{self.id}-watching", self._watch)

    def end(self, state: JobState, error: str = "") -> None:
        """Write the end of the job. Retry while the database is unavailable and the lease lasts; then raise `JobLost`.
        Blocks."""
        self._words.put(None)
        join_threads([self._watching], JOIN_SECONDS)  # callbacks must end before the next job begins
        self._ended.set()
        try:
            self._write_end(state, error)
        finally:
            join_threads([self._renewing], JOIN_SECONDS)

    def _write_end(self, state: JobState, error: str) -> None:
        figures = self.figures if state is JobState.SUCCEEDED else {}
        for delay in delays():
            try:
                leases.finish(self._lease, state, progress=self.progress, figures=figures, error=error)
                return
            except Exception as failure:
                if not is_transient(failure):
                    raise
                if boot_time() + delay > self._deadline:
                    raise self._lost() from failure
            time.sleep(delay)

    def _renew_again_and_again(self) -> None:
        every = min(self._lease.seconds / 3, RENEW_AT_MOST)
        renewed = time.monotonic()
        try:
            while not self._ended.wait(min(every, LOOK_EVERY)):
                is_due = time.monotonic() >= renewed + every - LOOK_EVERY / 2
                renewed = time.monotonic() if is_due else renewed
                if is_due:
                    self._ask(self._renewed, logging.WARNING)
                else:
                    self._ask(partial(leases.is_cancelled, self._lease), logging.DEBUG)
        finally:
            connections[self._lease.alias].close()

    def _renewed(self) -> bool:
        deadline = boot_time() + self._lease.seconds
        is_cancelled = leases.renew(self._lease, self.progress)
        self._deadline = deadline
        return is_cancelled

    def _ask(self, is_cancelled: Callable[[], bool], level: int) -> None:
        try:
            if is_cancelled():
                self.stop(JobCancelled(f"job {self.id} was cancelled by request"))
        except JobLost as lost:
            if not self._ended.is_set():
                self.stop(lost)
        except Exception as error:
            logger.log(level, "job %s: its lease could not be renewed: %s", self.id, error)

    def _watch(self) -> None:
        while True:
            try:
                left = min(self._deadline - boot_time(), self._ends_at - time.monotonic())
                word = self._words.get(timeout=max(0.0, left))
            except queue.Empty:
                self._look_at_the_clock()
                continue
            if word is not None:
                self._told.set()
                calling = start_thread(f"job-{self.id}-stopping", partial(self._call_back, word))
                self._interrupt()
                join_threads([calling], JOIN_SECONDS)
            return

    def _look_at_the_clock(self) -> None:
        if boot_time() > self._deadline:
            self.stop(self._lost())
        elif time.monotonic() > self._ends_at:
            self.stop(JobTimeout(f"job {self.id} has lasted for more than {self._time_limit:g} s; see JOBS in ENODE"))

    def _call_back(self, reason: JobStopped) -> None:
        logger.warning("%s; stopping it", reason)
        for callback in list(self._callbacks):
            try:
                callback()
            except Exception:
                logger.exception("job %s: what should stop it failed", self.id)

    def _interrupt(self) -> None:
        """Cancel the statements of the work, until a check has raised or the job has ended."""
        while not self._has_heard:
            for wrapper in self._connections:
                _cancel_statement(wrapper.connection)
            try:
                if self._words.get(timeout=INTERRUPT_EVERY) is None:
                    return
            except queue.Empty:
                continue

    def _lost(self) -> JobLost:
        return JobLost(f"the lease of job {self.id} could not be renewed in time; another run may have taken over")


def _cancel_statement(connection: Any) -> None:
    """Cancel the running statement of another thread's connection, if there is one."""
    is_ours = isinstance(connection, psycopg.Connection)
    if is_ours and connection.info.transaction_status == TransactionStatus.ACTIVE:
        try:
            connection.cancel_safe(timeout=CANCEL_SECONDS)
        except psycopg.Error as error:
            logger.warning("a statement of a job that has to stop could not be cancelled: %s", error)


@contextmanager
def running_job(
    kind: str, name: str, *, task_id: str = "", lease: float | None = None, time_limit: float | None = None
) -> Iterator[RunningJob]:
    """Run the block as the only job of its ``kind`` and ``name``. ``lease`` and ``time_limit`` are in seconds, by
    default from the settings.

    Raises `JobRunning` if another run holds the lease; a run whose lease has run out is marked as failed. An error of
    the block is stored in the row and raised; after the job was stopped, `JobStopped` is raised instead. `JobLost` at
    the end of the block means that another run may have done the same work. Not for use inside an atomic block.

    For example::

        with running_job("count", "accounts", time_limit=60) as job:
            job.report("counting", rows=3)
            job.result(rows=3)
    """
    seconds = conf().JOBS.LEASE if lease is None else lease
    deadline = boot_time() + seconds
    taken = leases.take(kind, name, task_id=task_id, seconds=seconds)
    limit = conf().JOBS.TIME_LIMIT if time_limit is None else time_limit
    job = RunningJob(taken, deadline=deadline, time_limit=limit)
    job.start()
    try:
        with stoppable(job):
            yield job
    except BaseException as error:
        reason = job.stopped
        if reason is None or error is reason or not isinstance(error, Exception):
            _end_badly(job, error)
            raise
        reason.__cause__ = error
        _end_badly(job, reason)
        raise reason from error
    job.end(JobState.SUCCEEDED)


def _end_badly(job: RunningJob, error: BaseException) -> None:
    """Store an error. If that fails, log it, so that the error itself is raised."""
    is_cancelled = isinstance(error, JobCancelled | KeyboardInterrupt)
    text = "".join(traceback.format_exception(error)).replace("\0", "\N{REPLACEMENT CHARACTER}")
    try:
        job.end(JobState.CANCELLED if is_cancelled else JobState.FAILED, text.encode(errors="replace").decode())
    except Exception as failure:
        logger.warning("job %s: its end could not be written: %s", job.id, failure)


def storable(figures: Mapping[str, Any]) -> dict[str, Any]:
    """Return figures that PostgreSQL's JSON can hold, with NUL and lone surrogates replaced. Raises `TypeError`, and
    `ValueError` for NaN."""
    text = json.dumps(figures, cls=DjangoJSONEncoder, ensure_ascii=False, allow_nan=False)
    kept: dict[str, Any] = json.loads(text.encode("utf-8", "replace").replace(rb"\u0000", rb"\ufffd"))
    return kept
