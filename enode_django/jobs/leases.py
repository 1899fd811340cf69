"""Leases of jobs: rows that say which run may work, and until when by the clock of the database.

A lease is a row with a time and not a session lock, since a pooler may share the session. Every update of a row names
its run, so a run that has lost its lease changes nothing.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any, NamedTuple

import psycopg
from django.db import IntegrityError, router, transaction
from django.db.models import BooleanField, ExpressionWrapper, Q
from django.db.models.functions import Now

from enode_django.databases import healthy_connection
from enode_django.exceptions import JobLost, JobRunning, UnknownJob
from enode_django.models import Job, JobState

if TYPE_CHECKING:
    from django.db.models import QuerySet

logger = logging.getLogger("enode_django.jobs")

_CONSTRAINT = "enode_job_running"
_RAN_OUT = Q(lease_until__lte=Now())
_TEXT_OF_RAN_OUT = "its lease ran out"


class Lease(NamedTuple):
    """The right of a run to work on a job, for ``seconds`` after each renewal."""

    alias: str
    job_id: int
    owner: uuid.UUID
    seconds: float

    @property
    def rows(self) -> QuerySet[Job]:
        """The job's row; empty if the run has lost it."""
        return Job.objects.using(self.alias).filter(pk=self.job_id, owner=self.owner, state=JobState.RUNNING)


def job_database() -> str:
    return router.db_for_write(Job)


def with_lease_state(jobs: QuerySet[Job]) -> QuerySet[Any]:
    """Annotate jobs with ``is_left``: the job counts as running, but its lease has run out."""
    left = Q(state=JobState.RUNNING) & _RAN_OUT
    return jobs.annotate(is_left=ExpressionWrapper(left, output_field=BooleanField()))


def take(kind: str, name: str, *, task_id: str, seconds: float) -> Lease:
    """Begin a run. A run whose lease has run out is marked as failed. Raises `JobRunning`, what the database raises,
    and `RuntimeError` inside an atomic block, since nobody would see the row."""
    alias = job_database()
    healthy_connection(alias)
    while True:
        try:
            with transaction.atomic(using=alias, durable=True):
                _end_left(alias, kind, name)
                return _insert(alias, kind, name, task_id, seconds)
        except IntegrityError as error:
            if _constraint_of(error) != _CONSTRAINT:
                raise
            # Another run began at the same moment: check its row.


def _end_left(alias: str, kind: str, name: str) -> None:
    running = Job.objects.using(alias).filter(kind=kind, name=name, state=JobState.RUNNING)
    held = with_lease_state(running.select_for_update()).first()
    if held is None:
        return
    if not held.is_left:
        by = f" in the task {held.task_id}" if held.task_id else ""
        raise JobRunning(
            f"job {held.pk} ({kind} of {name!r}) runs since {held.started_at:%Y-%m-%d %H:%M:%S %Z}{by}; "
            f"wait for its end, or say: manage.py enode jobs cancel {held.pk}",
            job_id=held.pk,
            task_id=held.task_id,
        )
    running.update(state=JobState.FAILED, finished_at=Now(), error=_TEXT_OF_RAN_OUT)
    logger.warning("job %s (%s of %r): %s; another run takes over", held.pk, kind, name, _TEXT_OF_RAN_OUT)


def was_alive(job_id: int) -> bool:
    """Return True if a run holds its lease, or has ended otherwise than by losing it. A run whose row was deleted
    counts as lost. Raises what the database raises."""
    alias = job_database()
    healthy_connection(alias)
    lost = Q(state=JobState.RUNNING) & _RAN_OUT | Q(state=JobState.FAILED, error=_TEXT_OF_RAN_OUT)
    return Job.objects.using(alias).filter(pk=job_id).exclude(lost).exists()


def _insert(alias: str, kind: str, name: str, task_id: str, seconds: float) -> Lease:
    job = Job.objects.using(alias).create(
        kind=kind,
        name=name,
        owner=uuid.uuid4(),
        task_id=task_id,
        started_at=Now(),
        lease_until=Now() + timedelta(seconds=seconds),
    )
    return Lease(alias, job.pk, job.owner, seconds)


def _constraint_of(error: IntegrityError) -> str | None:
    cause = error.__cause__
    return cause.diag.constraint_name if isinstance(cause, psycopg.Error) else None


def renew(lease: Lease, progress: Mapping[str, Any]) -> bool:
    """Renew a lease and store the progress. Return True if somebody asked to cancel the run.

    A lease that has run out is renewed, too, unless another run has ended it. Raises `JobLost` if the run has lost its
    row, and what the database raises.
    """
    healthy_connection(lease.alias)
    if not lease.rows.update(lease_until=Now() + timedelta(seconds=lease.seconds), progress=progress):
        raise _taken(lease)
    return lease.rows.filter(cancel_requested_at__isnull=False).exists()


def is_cancelled(lease: Lease) -> bool:
    """Return True if somebody asked to cancel the run. Changes nothing. Raises `JobLost` if the run has lost its row,
    and what the database raises."""
    healthy_connection(lease.alias)
    found = list(lease.rows.values_list("cancel_requested_at", flat=True))
    if not found:
        raise _taken(lease)
    return found[0] is not None


def hold(lease: Lease) -> None:
    """Lock the row until the end of the transaction. Raises `JobLost` if the run has lost it."""
    if not list(lease.rows.select_for_update().values_list("pk")):
        raise _taken(lease)


def finish(
    lease: Lease, state: JobState, *, progress: Mapping[str, Any], figures: Mapping[str, Any], error: str
) -> None:
    """End the run. Can be repeated with the same arguments while the outcome is unknown. Raises `JobLost` if the run
    has lost its row."""
    healthy_connection(lease.alias)
    end = {"state": state, "progress": progress, "figures": figures, "error": error, "finished_at": Now()}
    if lease.rows.update(**end):
        return
    if not Job.objects.using(lease.alias).filter(pk=lease.job_id, owner=lease.owner, state=state).exists():
        raise _taken(lease)


def _taken(lease: Lease) -> JobLost:
    return JobLost(f"the lease of job {lease.job_id} ran out and was ended by somebody else; this run must stop")


def request_cancel(job_id: int) -> None:
    """Ask a job to stop. Its process checks for requests every `running.LOOK_EVERY` seconds; a job whose lease has run
    out is cancelled at once. Safe to call twice. Raises `UnknownJob` if the job does not run.

    For example::

        with running_job("count", "accounts") as job:
            request_cancel(job.id)
            request_cancel(job.id)  # the same as once
    """
    alias = job_database()
    running = Job.objects.using(alias).filter(pk=job_id, state=JobState.RUNNING)
    left = running.filter(_RAN_OUT)
    if left.update(state=JobState.CANCELLED, cancel_requested_at=Now(), finished_at=Now(), error=_TEXT_OF_RAN_OUT):
        return
    if not running.filter(cancel_requested_at__isnull=True).update(cancel_requested_at=Now()) and not running.exists():
        raise UnknownJob(f"no job {job_id!r} runs; see manage.py enode jobs list")
