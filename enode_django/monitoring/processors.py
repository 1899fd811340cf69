"""Read the state of processors from their supervisors' reports."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from django.db import router
from django.db.models import DurationField, ExpressionWrapper, F
from django.db.models.functions import Now

from enode_django.conf import conf
from enode_django.models import ProcessorReport
from enode_django.monitoring.parts import Finding, Problem, bad, degraded
from enode_django.runtime import has_queue, running_subscribers

MISSED = 3
"""Reports that may fail to come before a supervisor counts as silent."""
SHOWN = timedelta(minutes=5)
"""A supervisor that has ended or is silent is shown for at least this time."""

RUNNING, SILENT, ENDED = "running", "silent", "ended"


class ProcessorRow(NamedTuple):
    """One ``runprocessors``. ``workers`` and ``event_workers``: living and planned ones, such as ``3/4``. ``seconds``
    have passed since its last report."""

    supervisor: str
    host: str
    pid: int
    state: str
    workers: str
    event_workers: str
    restarts: int
    started_at: datetime
    seconds: float


class MailboxRow(NamedTuple):
    """The mailboxes of one ``runprocessors``. The numbers of mailboxes and ``most_unfinished`` are computed from this
    process's settings. ``max_offsets`` and ``consume_offsets``: how many commands (or outcomes) were ever put into and
    taken from the mailboxes of a name, summed over the living workers."""

    supervisor: str
    command_mailboxes: int
    event_mailboxes: int
    unfinished: int
    most_unfinished: int
    cached_aggregates: int
    max_offsets: Mapping[str, int]
    consume_offsets: Mapping[str, int]


def ask_processors() -> Finding:
    reports = newest_reports()
    problems = [*_absence(reports), *(problem for report in reports for problem in _problems(report))]
    return Finding([_row(report) for report in reports], problems)


def ask_mailboxes() -> Finding:
    rows = [_mailboxes(report) for report in newest_reports() if _state(report) == RUNNING]
    full = [row.supervisor for row in rows if 0 < row.most_unfinished <= row.unfinished]
    return Finding(rows, [degraded(f"the workers of {name} hold as many commands as they may") for name in full])


def patience() -> timedelta:
    """Return the age of its last report above which a supervisor counts as silent; 0 without reports."""
    return timedelta(seconds=MISSED * (conf().REPORTS.INTERVAL or 0.0))


def newest_reports() -> Sequence[Any]:
    """Return the last report of each supervisor that has reported recently. ``age`` is by the database's clock. They
    are read from the database for writes, since on a replica that lags a supervisor seems silent."""
    reports = ProcessorReport.objects.using(router.db_for_write(ProcessorReport))
    recent = reports.filter(reported_at__gt=Now() - max(SHOWN, 2 * patience()))
    newest = recent.order_by("supervisor", "-reported_at").distinct("supervisor")
    return list(newest.annotate(age=ExpressionWrapper(Now() - F("reported_at"), DurationField())))


def _state(report: Any) -> str:
    if report.ended:
        return ENDED
    return RUNNING if report.age <= patience() else SILENT


def _row(report: Any) -> ProcessorRow:
    figures = report.figures
    return ProcessorRow(
        report.supervisor,
        report.host,
        report.pid,
        _state(report),
        f"{figures.get('workers', 0)}/{figures.get('planned_workers', 0)}",
        f"{figures.get('event_workers', 0)}/{figures.get('planned_event_workers', 0)}",
        figures.get("restarts", 0),
        report.started_at,
        report.age.total_seconds(),
    )


def _mailboxes(report: Any) -> MailboxRow:
    current, figures = conf(), report.figures
    workers, shards = figures.get("workers", 0), len(current.EVENT_STORE.DATABASES)
    return MailboxRow(
        report.supervisor,
        workers * shards * current.COMMANDS.MAILBOXES,
        workers * shards * current.COMMANDS.EVENT_MAILBOXES,
        figures.get("unfinished", 0),
        workers * current.COMMANDS.MAX_UNFINISHED,
        figures.get("cached_aggregates", 0),
        *(_offsets(figures, kind) for kind in ("max_offset", "consume_offset")),
    )


def _offsets(figures: Mapping[str, Any], kind: str) -> dict[str, int]:
    """Return an offset of each mailbox by name, without mailboxes of workers that have ended."""
    return {name: one[kind] for name, one in sorted(figures.get("mailboxes", {}).items()) if kind in one}


def _absence(reports: Sequence[Any]) -> Iterator[Problem]:
    if not has_queue():
        return  # the process that sends a command handles it
    if conf().REPORTS.INTERVAL is None:
        yield degraded("whether processors run is not known: ENODE['REPORTS']['INTERVAL'] is None")
    elif reports and all(report.ended for report in reports):
        yield bad("all processors have been stopped; run manage.py runprocessors")
    elif not any(_state(report) == RUNNING for report in reports):
        ages = [report.age.total_seconds() for report in reports if not report.ended]
        since = f"for {min(ages):.0f} s" if ages else "yet"
        yield bad(f"no processor has reported {since}; run manage.py runprocessors")
    else:
        for role, roles in (("workers", "command"), ("event_workers", "event")):
            if role == "event_workers" and not running_subscribers():
                continue
            if not any(report.figures.get(role) for report in reports if _state(report) == RUNNING):
                yield bad(f"no {roles} worker runs; run manage.py runprocessors --role {roles}")


def _problems(report: Any) -> Iterator[Problem]:
    state, figures = _state(report), report.figures
    if state == SILENT:
        yield degraded(f"{report.supervisor} is silent for {report.age.total_seconds():.0f} s, and has not ended")
    if state != RUNNING:
        return
    if waiting := figures.get("waiting_for_help", 0):
        yield bad(
            f"{waiting} mailboxes of {report.supervisor} wait for a database that refuses everything; its workers' log"
            " says which, and why: it has to be mended"
        )
    for role, words in (("workers", "command"), ("event_workers", "event")):
        planned = figures.get(f"planned_{role}", 0)
        if figures.get(role, 0) < planned:
            yield degraded(f"{figures.get(role, 0)} of {planned} {words} workers of {report.supervisor} live")
