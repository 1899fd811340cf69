"""Ask for work that needs attention: dead letters, parked aggregates, and batch jobs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from django.db.models import Count, F, Max, Q
from django.db.models.functions import Now

from enode_django.conf import POSTGRES, conf
from enode_django.eventing.registry import subscribers
from enode_django.jobs.leases import job_database, with_lease_state
from enode_django.jobs.texts import in_words, state_of
from enode_django.models import DeadLetter, GenerationCheck, Job, JobState, ParkedEvent
from enode_django.monitoring.databases import subscriber_databases
from enode_django.monitoring.parts import Finding, Problem, degraded

LATELY = timedelta(hours=24)
MOST_JOBS = 20


class LettersRow(NamedTuple):
    """Dead letters of commands in one database of the event store. ``newest``: when one of them failed last."""

    database: str
    command_type: str
    error_type: str
    letters: int
    newest: datetime


class ParkedRow(NamedTuple):
    """Aggregates, not events. ``newest``: when something of them failed last."""

    subscriber: str
    aggregates: int
    newest: datetime


class JobRow(NamedTuple):
    id: int
    kind: str
    name: str
    state: str
    started_at: datetime
    progress: str


def ask_letters(alias: str) -> Finding:
    """Report dead letters of commands. `manage.py enode queue dead-letters` shows those of other consumers."""
    if conf().EVENT_STORE.BACKEND != POSTGRES:
        return Finding()
    kinds = DeadLetter.objects.using(alias).values_list("command_type", "error_type")
    counted = kinds.annotate(Count("pk"), Max("last_failed_at")).order_by("command_type", "error_type")
    rows = [LettersRow(alias, *row) for row in counted]
    many = sum(row.letters for row in rows)
    group = conf().COMMANDS.CONSUMER_GROUP
    tell = f"see manage.py enode queue dead-letters {group}, mend what is wrong, and requeue or discard them"
    problems = [degraded(f"{many:,} dead letters of commands in {alias!r}: {tell}")] if many else []
    return Finding(rows, problems)


def ask_parked() -> Finding:
    rows = sorted(row for alias in subscriber_databases() for row in _parked(alias))
    problems = [degraded(f"{row.subscriber} has {row.aggregates:,} aggregates parked") for row in rows]
    return Finding(rows, [*problems, *(one for alias in subscriber_databases() for one in _erased(alias))])


def _erased(alias: str) -> list[Problem]:
    """Report what cannot be taken back of events that a failover has erased."""
    known = GenerationCheck.objects.using(alias).filter(taken_back=False, handled_version__gt=F("stored_version"))
    counted = known.values_list("subscriber").annotate(Count("aggregate_root_id", distinct=True)).order_by("subscriber")
    tell = "settle what follows from them, and delete them from the erased events in the admin"
    return [
        degraded(
            f"{subscribers.name_of(key)} has handled events of {many:,} aggregates that are not stored any more: {tell}"
        )
        for key, many in counted
    ]


def _parked(alias: str) -> list[ParkedRow]:
    counted = ParkedEvent.objects.using(alias).values_list("subscriber")
    return [
        ParkedRow(subscribers.name_of(key), *figures)
        for key, *figures in counted.annotate(
            Count("aggregate_root_id", distinct=True), Max("last_failed_at")
        ).order_by()
    ]


def ask_jobs() -> Finding:
    """Report jobs that run, and jobs that failed lately and did not succeed since."""
    jobs = with_lease_state(Job.objects.using(job_database()))
    lately = Q(state=JobState.RUNNING) | Q(finished_at__gt=Now() - LATELY)
    newest = list(jobs.filter(lately).order_by("-pk")[: MOST_JOBS * 5])
    shown = [job for job in newest if job.state == JobState.RUNNING or _has_failed(job, newest)][:MOST_JOBS]
    rows = [JobRow(job.pk, job.kind, job.name, state_of(job), job.started_at, in_words(job.progress)) for job in shown]
    return Finding(rows, list(_failures(shown)))


def _has_failed(job: Any, newest: Sequence[Any]) -> bool:
    """Return True if the job failed and no later run of the same has ended otherwise, or runs."""
    later = [one for one in newest if one.pk > job.pk and (one.kind, one.name) == (job.kind, job.name)]
    return job.state == JobState.FAILED and not later


def _failures(jobs: Sequence[Any]) -> Iterator[Problem]:
    for job in jobs:
        if job.state == JobState.FAILED:
            # Not why: that may quote events, and whoever may see the status need not be allowed to.
            yield degraded(f"job {job.pk} ({job.kind} of {job.name}) failed; manage.py enode jobs list says why")
        elif job.is_left:
            yield degraded(f"job {job.pk} ({job.kind} of {job.name}) was left by its process; start it again")
