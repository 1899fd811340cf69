"""The dashboard: charts of what processors did in the last minutes or hours, and the status."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, NamedTuple

from django.contrib import admin
from django.core.exceptions import PermissionDenied
from django.db import router
from django.db.models import Model
from django.db.models.functions import Extract, Floor
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.urls import URLPattern, reverse
from django.utils import timezone
from django.utils.timesince import timesince
from django.utils.timezone import get_current_timezone_name

from enode_django.admin.showing import ModelAdmin, ReadOnly, page_at, rendered
from enode_django.conf import conf
from enode_django.databases import execute
from enode_django.models import (
    DeadLetter,
    EventStream,
    Job,
    OutboxCommand,
    ParkedEvent,
    ProcessorReport,
    Subscriber,
    Topic,
)

if TYPE_CHECKING:
    from enode_django.monitoring.series import Report

SHORTEST_STEP = 5.0
MOST_STEPS = 360
"""The most steps of a chart. Longer ranges have wider steps."""
POLL_INTERVAL, STATUS_INTERVAL = 5.0, 15.0
"""Seconds between two requests for figures, and for the status. Each status asks every server."""

FIRST, SUM, LARGEST = "first", "sum", "largest"


class Range(NamedTuple):
    """The period that the charts show, up to now. ``name`` is its name in the URL."""

    name: str
    label: str
    seconds: float

    @property
    def step(self) -> float:
        """Return the width of a step in seconds."""
        return max(reporting_interval(), self.seconds / MOST_STEPS)


RANGES = (
    Range("15min", "15 minutes", 900.0),
    Range("1h", "1 hour", 3_600.0),
    Range("6h", "6 hours", 21_600.0),
    Range("24h", "24 hours", 86_400.0),
)


class Chart(NamedTuple):
    """A chart with its texts. ``now`` is the large figure: the newest value of the first line, or the sum or the
    largest of all lines. ``note`` names it on the page."""

    name: str
    heading: str
    unit: str
    now: str
    note: str
    text: str


CHARTS = (
    Chart(
        "commands",
        "Commands",
        "per second",
        FIRST,
        "",
        "Commands whose outcome is final: all, the refused, the failed and the crashed ones.",
    ),
    Chart("pulled", "Latency", "ms", FIRST, "p50", "From the pull of a command until its outcome is durable."),
    Chart("sent", "Latency since sending", "ms", FIRST, "p50", "From making a command until its outcome is durable."),
    Chart("sizes", "Batch size", "commands", FIRST, "average", "Commands stored in one batch."),
    Chart("conflicts", "Conflicts", "per second", FIRST, "", "Aggregates reloaded, as others stored a version."),
    Chart(
        "backlog",
        "Backlog",
        "messages",
        LARGEST,
        "largest of all groups",
        "Messages that a consumer group has not committed.",
    ),
    Chart(
        "lag",
        "Lag of subscribers",
        "s",
        LARGEST,
        "largest of all subscribers",
        "Age of the oldest event stream pulled and not handled.",
    ),
    Chart("handled", "Event streams handled", "per second", SUM, "in all", "Event streams that subscribers handled."),
)


PAGES: Mapping[str, type[Model]] = {
    **{"letters": DeadLetter, "parked": ParkedEvent, "jobs": Job, "queue": Topic, "backlog": Topic, "lag": Subscriber},
    **{"outbox": OutboxCommand, "commands": DeadLetter, "handled": Subscriber, "conflicts": EventStream},
}
"""The models whose pages let a user act on a part of the status, or on a chart."""


@admin.register(ProcessorReport)
class DashboardAdmin(ReadOnly, ModelAdmin):
    """Show the dashboard instead of a list of reports. There are no other pages."""

    def get_urls(self) -> list[URLPattern]:
        return [
            page_at(self, "", self.changelist_view, "changelist", self.has_view_permission),
            page_at(self, "figures/", self.figures_view, "figures", self.has_view_permission),
            page_at(self, "status/", self.status_view, "status", self.has_view_permission),
        ]

    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> HttpResponse:
        if not self.has_view_permission(request):  # a project may call it for a page of its own
            raise PermissionDenied
        now = timezone.now()
        context = {
            "charts": CHARTS,
            "ranges": offered_ranges(),
            "range": _range(request),
            "window": int(_range(request).seconds),
            "retention": timesince(now - timedelta(seconds=conf().REPORTS.RETENTION), now),
            "interval": POLL_INTERVAL,
            "status_interval": STATUS_INTERVAL,
            "links": self._links(request),
            "timezone": get_current_timezone_name(),
            **(extra_context or {}),
        }
        request.current_app = self.admin_site.name  # for links to the same site
        return rendered(self, request, "dashboard", "Dashboard", context)

    def figures_view(self, request: HttpRequest) -> JsonResponse:
        """Return the lines of all charts in ``?range=`` as JSON. With ``?since=`` (the ``until`` of the last answer)
        return the new steps, and the last few steps before them, for reports that came late."""
        return JsonResponse(figures(_range(request), _since(request)))

    def status_view(self, request: HttpRequest) -> JsonResponse:
        from enode_django.monitoring import gather  # see the package

        return JsonResponse(gather().as_map())

    def _links(self, request: HttpRequest) -> dict[str, str]:
        """Return the URLs of `PAGES` that the user may see, by the name of the part or the chart."""
        pages = {
            model: reverse(f"admin:{model._meta.app_label}_{model._meta.model_name}_changelist")
            for model in set(PAGES.values())
            if self.admin_site.is_registered(model)
            and self.admin_site.get_model_admin(model).has_view_permission(request)
        }
        return {name: pages[model] for name, model in PAGES.items() if model in pages}


def _since(request: HttpRequest) -> float:
    """Return ``?since=``; 0, which shows everything, if it is not a time."""
    try:
        since = float(request.GET.get("since", "0"))
    except ValueError:
        return 0.0
    return since if math.isfinite(since) else 0.0


def offered_ranges() -> Sequence[Range]:
    """Return the ranges within the retention of reports, and the shortest in any case."""
    return [one for one in RANGES if one is RANGES[0] or one.seconds <= conf().REPORTS.RETENTION]


def _range(request: HttpRequest) -> Range:
    offered = {one.name: one for one in offered_ranges()}
    return offered.get(request.GET.get("range", ""), RANGES[0])


def reporting_interval() -> float:
    return max(SHORTEST_STEP, conf().REPORTS.INTERVAL or 0.0)


def figures(shown: Range, since: float) -> dict[str, Any]:
    """Return the steps of a range that end after ``since``, and some before. Blocks.

    ``until`` is the end of the last step, or ``since`` if there is none. ``ends`` has the end of each step. Times are
    seconds since 1970. ``charts`` has the lines of each chart by name, with a value or None for each step.
    ``reporting`` is true if there are reports in this time.
    """
    from enode_django.monitoring.processors import MISSED
    from enode_django.monitoring.series import Steps, charts, reported_until  # see the package

    interval, now = reporting_interval(), _now()
    gap = shown.step + (MISSED - 1) * interval  # only the last report of each step is read
    since = min(since, now)
    begin = max(now - shown.seconds, since - gap)
    found = list(reports(begin - gap, shown.step))
    steps = Steps.between(begin, reported_until(found, now, MISSED * interval), shown.step)
    return {
        "until": steps.ends[-1] if steps.number else since,
        "ends": steps.ends,
        "charts": charts(found, steps, gap),
        "reporting": bool(found),
    }


def _now() -> float:
    """Return the time of the database, whose clock dates the reports."""
    ((now,),) = execute(_database(), "SELECT statement_timestamp()", None).fetchall()
    return float(now.timestamp())


def reports(after: float, width: float) -> Iterator[Report]:
    """Yield the last report of each supervisor in each step of ``width`` seconds. Figures are cumulative, so the others
    are not needed; a supervisor writes 17,000 reports a day."""
    from enode_django.monitoring.series import Report  # see the package

    step = Floor(Extract("reported_at", "epoch") / width)
    rows = ProcessorReport.objects.using(_database()).filter(reported_at__gt=datetime.fromtimestamp(after, UTC))
    last = rows.annotate(step=step).order_by("supervisor", "step", "-reported_at").distinct("supervisor", "step")
    columns = ("supervisor", "started_at", "reported_at", "ended", "figures", "step")
    for supervisor, started_at, at, ended, counted, _ in last.values_list(*columns):
        yield Report(supervisor, started_at.timestamp(), at.timestamp(), ended, counted)


def _database() -> str:
    return router.db_for_read(ProcessorReport)
