"""Ask for work that needs attention: dead letters, parked aggregates, and batch jobs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing, suppress
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

from django.db.models import Count, DurationField, ExpressionWrapper, F, Max, Min, Q
from django.db.models.functions import Now

from enode_django.conf import conf
from enode_django.equeue.dead_letters import groups_with_dead_letters, letters_by_error
from enode_django.equeue.transport import Transport
from enode_django.eventing.base_projections import BaseProjection
from enode_django.eventing.registry import subscriber_databases, subscribers
from enode_django.exceptions import UnknownSubscriber
from enode_django.jobs.leases import job_database, with_lease_state
from enode_django.jobs.texts import progress_of, state_of
from enode_django.models import DeadLetter, GenerationCheck, Job, JobState, OutboxCommand, ParkedEvent
from enode_django.monitoring.parts import Finding, Problem, degraded
from enode_django.outbox.rows import has_table
from enode_django.runtime import make_transport_if_any
from enode_django.scheduling.unreadable import LOOKED_AT, unreadable_in

LATELY = timedelta(hours=24)
MOST_JOBS = 20
WAITS_LONG = 30.0
"""Seconds after which a command that still waits in an outbox is a problem."""


class LettersRow(NamedTuple):
    """Dead letters of a consumer group: of commands in one database of the event store, or of messages in the queue.
    For messages, ``database`` and ``command_type`` are empty. ``newest``: the time of the last failure."""

    group: str
    database: str
    command_type: str
    error_type: str
    letters: int
    newest: datetime | None


class OutboxRow(NamedTuple):
    """The outbox of a database. ``waiting`` counts commands; ``oldest`` is the time at which the first was written, by
    the clock of the database, and ``seconds`` its age."""

    database: str
    waiting: int
    oldest: datetime | None
    seconds: float
    rejected: int


class ParkedRow(NamedTuple):
    """``aggregates`` counts aggregates, not events. ``newest``: the time of the last failure."""

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
    """Report dead letters of commands in one database of the event store."""
    kinds = DeadLetter.objects.using(alias).values_list("command_type", "error_type")
    counted = kinds.annotate(Count("pk"), Max("last_failed_at")).order_by("command_type", "error_type")
    rows = [LettersRow(conf().COMMANDS.CONSUMER_GROUP, alias, *row) for row in counted]
    return Finding(rows, list(_settle(rows, f"commands in {alias!r}")))


def ask_queue_letters() -> Finding:
    """Report the dead letters of all consumer groups that are kept in the queue."""
    with closing(make_transport_if_any()) as transport:
        groups = groups_with_dead_letters(transport)
        found = {group: list(_letters_of(transport, group)) for group in groups}
    problems = [problem for group, rows in found.items() for problem in _settle(rows, f"messages of group {group!r}")]
    return Finding([row for rows in found.values() for row in rows], problems)


def _letters_of(transport: Transport, group: str) -> Iterator[LettersRow]:
    for error_type, (many, at) in letters_by_error(transport, group).items():
        yield LettersRow(group, "", "", error_type, many, datetime.fromtimestamp(at, UTC) if at else None)


def _settle(rows: Sequence[LettersRow], what: str) -> Iterator[Problem]:
    if rows:
        many, group = sum(row.letters for row in rows), rows[0].group
        tell = f"see manage.py enode queue dead-letters {group}, mend what is wrong, and requeue or discard them"
        yield degraded(f"{many:,} dead letters of {what}: {tell}")


def ask_outbox(alias: str) -> Finding:
    """Report the commands that wait in the outbox of a database, and scheduled ones that cannot be read. A database
    without an outbox has no row."""
    if not has_table(alias):
        return Finding()
    row = outbox_of(alias)
    return Finding((row,), [*_outbox_problems(row), *_scheduled_problems(alias)])


def outbox_of(alias: str) -> OutboxRow:
    is_waiting = Q(rejected_at__isnull=True)
    age = ExpressionWrapper(Now() - Min("written_at", filter=is_waiting), output_field=DurationField())
    waits, oldest, age, rejected = (
        OutboxCommand.objects.using(alias)
        .aggregate(
            waits=Count("pk", filter=is_waiting),
            oldest=Min("written_at", filter=is_waiting),
            age=age,
            rejected=Count("pk", filter=~is_waiting),
        )
        .values()
    )
    return OutboxRow(alias, waits, oldest, age.total_seconds() if age else 0.0, rejected)


def _outbox_problems(row: OutboxRow) -> Iterator[Problem]:
    if row.rejected:
        yield degraded(
            f"{row.rejected:,} commands in the outbox of {row.database!r} are rejected; their page in the admin says "
            "why, and sends them again"
        )
    if row.seconds > WAITS_LONG:
        yield degraded(
            f"{row.waiting:,} commands wait in the outbox of {row.database!r}, the first for {row.seconds:.0f} s; see "
            "that runprocessors runs and reaches the queue, or call enode_django.immediate.catch_up() without a queue"
        )


def _scheduled_problems(alias: str) -> Iterator[Problem]:
    for one in unreadable_in(alias):
        yield degraded(
            f"{one}, cannot be read by this code, and will be dead letters (of the {LOOKED_AT:,} in {alias!r} that are "
            f"due next): {one.way_out}"
        )


def ask_parked() -> Finding:
    rows = sorted(row for alias in subscriber_databases() for row in _parked(alias))
    problems = [degraded(f"{row.subscriber} has {row.aggregates:,} aggregates parked") for row in rows]
    return Finding(rows, [*problems, *(one for alias in subscriber_databases() for one in _erased(alias))])


def _erased(alias: str) -> list[Problem]:
    """Report subscribers that cannot take back events which a failover has erased."""
    known = GenerationCheck.objects.using(alias).filter(taken_back=False, handled_version__gt=F("stored_version"))
    counted = known.values_list("subscriber").annotate(Count("aggregate_root_id", distinct=True)).order_by("subscriber")
    return [
        degraded(
            f"{subscribers.name_of(key)} has handled events of {many:,} aggregates that are not stored any more: "
            + _way_out(key)
        )
        for key, many in counted
    ]


_FORGET = "and delete them from the erased events in the admin"


def _way_out(key: str) -> str:
    """Return what to do about events that were erased, and cannot be taken back."""
    name = subscribers.name_of(key)
    with suppress(UnknownSubscriber):
        if isinstance(subscribers.get(key), BaseProjection):
            return f"rebuild it (manage.py rebuildprojection {name} --accept-differences), {_FORGET}"
    return f"settle what follows from them, {_FORGET}"


def _parked(alias: str) -> list[ParkedRow]:
    counted = ParkedEvent.objects.using(alias).values_list("subscriber")
    return [
        ParkedRow(subscribers.name_of(key), *figures)
        for key, *figures in counted.annotate(
            Count("aggregate_root_id", distinct=True), Max("last_failed_at")
        ).order_by()
    ]


def ask_jobs() -> Finding:
    """Report jobs that run, and jobs that failed within `LATELY` and were not started again."""
    jobs = with_lease_state(Job.objects.using(job_database()))
    lately = Q(state=JobState.RUNNING) | Q(finished_at__gt=Now() - LATELY)
    newest = list(jobs.filter(lately).order_by("-pk")[: MOST_JOBS * 5])
    shown = [job for job in newest if job.state == JobState.RUNNING or _has_failed(job, newest)][:MOST_JOBS]
    rows = [JobRow(job.pk, job.kind, job.name, state_of(job), job.started_at, progress_of(job)) for job in shown]
    return Finding(rows, list(_failures(shown)))


def _has_failed(job: Any, newest: Sequence[Any]) -> bool:
    """Return True if the job failed and ``newest`` has no later job of its kind and name."""
    later = [one for one in newest if one.pk > job.pk and (one.kind, one.name) == (job.kind, job.name)]
    return job.state == JobState.FAILED and not later


def _failures(jobs: Sequence[Any]) -> Iterator[Problem]:
    for job in jobs:
        if job.state == JobState.FAILED:
            # The error is left out: it may quote events, which not everybody who sees the status may see.
            yield degraded(
                f"job {job.pk} ({job.kind} of {job.name}) failed; manage.py enode jobs show {job.pk} says why"
            )
        elif job.is_left:
            yield degraded(f"job {job.pk} ({job.kind} of {job.name}) was left by its process; start it again")
