"""The batch jobs as Celery tasks, which Celery's autodiscovery finds. Nothing else of the package needs Celery.

A task whose work another job is doing ends at once: its state is IGNORED, and its result names that job. A cancelled
task is REVOKED. Both states are final. A task whose worker is terminated returns to its queue. A task that is delivered
again and finds its own run waits until that run's lease must have ended or been renewed: then the run was dead, and
the task takes over, or alive, and this delivery ends without an effect.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from enode_django.batch import EVERYTHING, KINDS
from enode_django.concurrency.threads import start_thread
from enode_django.conf import conf
from enode_django.eventing.registry import subscribers
from enode_django.eventing.subscribers import key_of
from enode_django.eventstore.sqlstates import is_transient
from enode_django.exceptions import JobCancelled, JobRunning, UnknownSubscriber, missing_extra
from enode_django.jobs import leases
from enode_django.jobs.running import RunningJob, running_job
from enode_django.jobs.termination import ProcessTerminated, Termination

try:
    from billiard import current_process
    from celery import Task, current_app, shared_task, states
    from celery.exceptions import Ignore, Reject, Retry
    from celery.utils.time import get_exponential_backoff_interval
except ImportError as error:
    raise missing_extra("celery", error) from error

__all__ = ["build_snapshots", "export_events", "rebuild_projection", "run_job", "undo_rebuild"]

logger = logging.getLogger("enode_django.jobs")

PROGRESS = "PROGRESS"
KILL_AFTER = 60.0
"""Seconds after a job's time limit until Celery kills its process."""
TELL_EVERY = 1.0
WAITED_FOR = "enode_waited_for"
"""The header of a task that has waited for its own run: the id of that run's job."""
CLOCK_SKEW = 5.0
"""Seconds that a task waits beyond a lease, since Celery's pauses end by the clocks of two machines."""
FIRST_RETRY, LAST_RETRY = 10, 600
"""Seconds; each pause is a random part of twice the one before."""


class JobTask(Task):  # type: ignore[type-arg]
    """A task that is acknowledged late. It is delivered again if its worker is told to stop, or is gone for longer than
    the visibility timeout of Celery's broker; running it twice is safe. A task that has killed its process is not
    delivered again."""

    abstract = True
    acks_late = True
    track_started = True

    @property
    def time_limit(self) -> float:  # type: ignore[override]
        return conf().JOBS.TIME_LIMIT + KILL_AFTER


@shared_task(bind=True, base=JobTask, name="enode_django.build_snapshots")
def build_snapshots(self: JobTask, type: str | None = None, archive: str | None = None) -> dict[str, Any]:
    """Make the due snapshots of the aggregates of ``type``, or of all.

    For example::

        build_snapshots.delay(type="bank.BankAccount")
    """
    return run_job(self, "snapshots", EVERYTHING if type is None else type, type=type, archive=archive)


@shared_task(bind=True, base=JobTask, name="enode_django.rebuild_projection")
def rebuild_projection(
    self: JobTask,
    name: str,
    accept_differences: bool = False,
    archive: str | None = None,
    accept_uncompared: bool = False,
    compare_only: bool = False,
) -> dict[str, Any]:
    """Rebuild a projection, and replace the live tables. With ``compare_only`` the new tables are compared with the
    live ones and dropped, and the task fails with `ProjectionsDiffer` where a rebuild would.

    For example::

        rebuild_projection.delay("bank.AccountSummaries")
    """
    return run_job(
        self,
        "rebuild",
        _job_name(name),
        name=name,
        accept_differences=accept_differences,
        accept_uncompared=accept_uncompared,
        archive=archive,
        compare_only=compare_only,
    )


@shared_task(bind=True, base=JobTask, name="enode_django.undo_rebuild")
def undo_rebuild(self: JobTask, name: str) -> dict[str, Any]:
    """Restore the tables of a projection that its last rebuild replaced.

    For example::

        undo_rebuild.delay("bank.AccountSummaries")
    """
    return run_job(self, "rebuild", _job_name(name), name=name, take_back=True)


def _job_name(name: str) -> str:
    """Return the name of a projection's jobs: its key, which stays when it is renamed, or an unknown name as it is."""
    try:
        return key_of(subscribers.get(name))
    except UnknownSubscriber:
        return name


@shared_task(bind=True, base=JobTask, name="enode_django.export_events")
def export_events(self: JobTask, path: str, json: bool = False, compact: bool = False) -> dict[str, Any]:
    """Add the events stored since the last export to the archive, and merge files if there are many.

    For example::

        export_events.delay("/srv/archive", compact=True)
    """
    return run_job(self, "export", path, path=path, json=json, compact=compact)


def can_be_sent() -> bool:
    """Return True if the project has a Celery app with a broker, or runs tasks eagerly. Does no I/O."""
    return bool(current_app.conf.broker_url or current_app.conf.task_always_eager)


def run_job(task: JobTask, kind: str, name: str, /, **arguments: Any) -> dict[str, Any]:
    """Run a kind of job as this task and return its figures. After a transient error the task is retried later.

    For example::

        @shared_task(bind=True)
        def count_accounts(task: Task) -> dict[str, Any]:
            return run_job(task, "count", "accounts", limit=3)
    """
    try:
        if _is_duplicate(task):
            raise Ignore
        with (
            Termination(in_pool=current_process().name != "MainProcess") as termination,
            ExitStack() as telling,  # ends after the job: its lease must not wait for the result backend
            running_job(kind, name, task_id=task.request.id or "") as job,
            termination.stops(job),
        ):
            telling.enter_context(_told(task, job))
            KINDS[kind](job, **arguments)
        return dict(job.figures)
    except ProcessTerminated as error:
        # A revoked task was already acknowledged by its worker, so nothing returns to the queue.
        raise Reject(str(error), requeue=True) from error
    except (JobRunning, JobCancelled) as error:
        if task.request.called_directly:
            raise
        if isinstance(error, JobRunning) and error.task_id == task.request.id:
            raise _wait_for_own_run(task, error) from error
        _set_aside(task, error)
        raise Ignore from error
    except Exception as error:
        if not is_transient(error):
            raise
        pause = get_exponential_backoff_interval(FIRST_RETRY, task.request.retries, LAST_RETRY, full_jitter=True)
        raise task.retry(exc=error, countdown=pause, max_retries=conf().JOBS.ATTEMPTS - 1) from error


def _is_duplicate(task: JobTask) -> bool:
    """Return True if the task has waited for its own run, and that run was alive: it tells the task's outcome."""
    waited_for = (task.request.headers or {}).get(WAITED_FOR)
    return waited_for is not None and leases.was_alive(waited_for)


def _wait_for_own_run(task: JobTask, error: JobRunning) -> Retry:
    """Send the task again, for when the lease of its run has ended if nothing renews it. Return what Celery raises."""
    logger.info("task %s waits for its own run, which may be dead: %s", task.request.id, error)
    attempts = task.request.retries
    task.request.retries -= 1  # Celery adds one, but nothing was tried
    headers = {**task.request.as_execution_options()["headers"], WAITED_FOR: error.job_id}
    pause = conf().JOBS.LEASE + CLOCK_SKEW
    return task.retry(exc=error, countdown=pause, max_retries=attempts, headers=headers, throw=False)


def _set_aside(task: JobTask, error: JobRunning | JobCancelled) -> None:
    logger.info("task %s: %s", task.request.id, error)
    if isinstance(error, JobRunning):
        other = {"reason": str(error), "job": error.job_id, "task": error.task_id}
        task.update_state(state=states.IGNORED, meta=other)
    else:
        task.backend.mark_as_revoked(task.request.id or "", str(error), request=task.request)


@contextmanager
def _told(task: JobTask, job: RunningJob) -> Iterator[None]:
    """Keep the job's progress as the task's state inside the block. A thread of its own writes it, because an
    unreachable result backend blocks, and the work must not wait. The end of the block waits for the last write, which
    would otherwise replace the task's outcome if it came later."""
    if task.request.called_directly:
        yield
        return
    id, ended = task.request.id, threading.Event()

    def tell() -> None:
        told = job.progress
        while not ended.wait(TELL_EVERY):
            if job.progress is not told and job.stopped is None:
                told = job.progress
                try:
                    task.update_state(task_id=id, state=PROGRESS, meta=dict(told))
                except Exception as error:
                    logger.warning("job %s: its progress could not be told: %s", job.id, error)

    thread = start_thread(f"job-{job.id}-telling", tell)
    try:
        yield
    finally:
        ended.set()
        thread.join()
