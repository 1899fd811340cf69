"""The live dashboard: what the processors did in the last minutes or hours, and the state of everything."""

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
from django.template.response import TemplateResponse
from django.urls import URLPattern, path, reverse
from django.utils import timezone
from django.utils.timesince import timesince
from django.utils.timezone import get_current_timezone_name

from enode_django.admin.showing import ReadOnly
from enode_django.conf import conf
from enode_django.databases import execute
from enode_django.models import DeadLetter, EventStream, Job, ParkedEvent, ProcessorReport, Subscriber, Topic

if TYPE_CHECKING:
    from enode_django.monitoring.series import Report

    DashboardBase = admin.ModelAdmin[ProcessorReport]
else:  # generic for the type checker only
    DashboardBase = admin.ModelAdmin

SHORTEST_STEP = 5.0
MOST_STEPS = 360
"""So many steps a chart has room for: longer ranges have wider steps."""
POLL_INTERVAL, STATUS_INTERVAL = 5.0, 15.0
"""Seconds between two looks at what is new, and at the status, for which every server is asked."""

FIRST, SUM, LARGEST = "first", "sum", "largest"


class Range(NamedTuple):
    """The time that is shown, up to now. ``name`` stands in the address of the page."""

    name: str
    label: str
    seconds: float

    @property
    def step(self) -> float:
        """Return the seconds of one step."""
        return max(reporting_interval(), self.seconds / MOST_STEPS)


RANGES = (
    Range("15min", "15 minutes", 900.0),
    Range("1h", "1 hour", 3_600.0),
    Range("6h", "6 hours", 21_600.0),
    Range("24h", "24 hours", 86_400.0),
)


class Chart(NamedTuple):
    """``now``: which of its lines the large figure is, or what of all of them; ``note`` says so."""

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
        "Commands whose outcome is final: all, those that were refused, that failed, and that crashed.",
    ),
    Chart("pulled", "Latency", "ms", FIRST, "p50", "From the pull of a command until its outcome was durable."),
    Chart("sent", "Latency since sending", "ms", FIRST, "p50", "From when a command was made until it was durable."),
    Chart("sizes", "Batch size", "commands", FIRST, "average", "Commands that were stored in one batch."),
    Chart("conflicts", "Conflicts", "per second", FIRST, "", "Aggregates recovered since a version was taken."),
    Chart("backlog", "Backlog", "messages", LARGEST, "the most", "Messages that a consumer group has not committed."),
    Chart(
        "lag", "Lag of subscribers", "s", LARGEST, "the most", "Age of the oldest event stream pulled and not handled."
    ),
    Chart("handled", "Event streams handled", "per second", SUM, "in all", "Event streams that subscribers handled."),
)


PAGES: Mapping[str, type[Model]] = {
    **{"letters": DeadLetter, "parked": ParkedEvent, "jobs": Job, "queue": Topic, "backlog": Topic, "lag": Subscriber},
    **{"commands": DeadLetter, "handled": Subscriber, "conflicts": EventStream},
}
"""The models on whose pages one can act on a part of the status, or on what a chart shows."""


@admin.register(ProcessorReport)
class DashboardAdmin(ReadOnly, DashboardBase):
    """Shows the dashboard in the place of a list of the reports. There are no other pages."""

    def get_urls(self) -> list[URLPattern]:
        name = f"{self.opts.app_label}_{self.opts.model_name}"
        view = self.admin_site.admin_view
        return [
            path("", view(self.changelist_view), name=f"{name}_changelist"),
            path("figures/", view(self.figures_view), name=f"{name}_figures"),
            path("status/", view(self.status_view), name=f"{name}_status"),
        ]

    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> HttpResponse:
        self._check_permission(request)
        now = timezone.now()
        context = {
            **self.admin_site.each_context(request),
            "title": "Dashboard",
            "opts": self.opts,
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
        return TemplateResponse(request, "enode_django/admin/dashboard.html", context)

    def figures_view(self, request: HttpRequest) -> JsonResponse:
        """The lines of all charts in the ``?range=``. With ``?since=`` (the ``until`` of the last answer) what is new,
        and the last few steps before, for reports that came late."""
        self._check_permission(request)
        return JsonResponse(figures(_range(request), _since(request)))

    def status_view(self, request: HttpRequest) -> JsonResponse:
        self._check_permission(request)
        from enode_django.monitoring import gather  # see the package

        return JsonResponse(gather().as_map())

    def _links(self, request: HttpRequest) -> dict[str, str]:
        """Return the pages where one can act, by the part of the status or the chart, that the user may see."""
        pages = {
            model: reverse(f"admin:{model._meta.app_label}_{model._meta.model_name}_changelist")
            for model in set(PAGES.values())
            if self.admin_site.is_registered(model)
            and self.admin_site.get_model_admin(model).has_view_permission(request)
        }
        return {name: pages[model] for name, model in PAGES.items() if model in pages}

    def _check_permission(self, request: HttpRequest) -> None:
        if not self.has_view_permission(request):
            raise PermissionDenied


def _since(request: HttpRequest) -> float:
    """0 for what is not a time: everything is shown then."""
    try:
        since = float(request.GET.get("since", "0"))
    except ValueError:
        return 0.0
    return since if math.isfinite(since) else 0.0


def offered_ranges() -> Sequence[Range]:
    """Return the ranges that rows are kept for, and the shortest in any case."""
    return [one for one in RANGES if one is RANGES[0] or one.seconds <= conf().REPORTS.RETENTION]


def _range(request: HttpRequest) -> Range:
    offered = {one.name: one for one in offered_ranges()}
    return offered.get(request.GET.get("range", ""), RANGES[0])


def reporting_interval() -> float:
    return max(SHORTEST_STEP, conf().REPORTS.INTERVAL or 0.0)


def figures(shown: Range, since: float) -> dict[str, Any]:
    """``until``: the end of the last step; ``ends``: of each step, in seconds since 1970; ``charts``: by name, the
    lines by name, each with a value or None for each step; ``reporting``: whether anything was reported at all."""
    from enode_django.monitoring.processors import MISSED
    from enode_django.monitoring.series import Steps, charts, reported_until  # see the package

    interval, now = reporting_interval(), _now()
    gap = shown.step + (MISSED - 1) * interval  # one report is read of each step
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
    """By the clock that the reports go by."""
    (now,) = execute(_database(), "SELECT statement_timestamp()", None).fetchone() or (datetime.now(UTC),)
    return float(now.timestamp())


def reports(after: float, width: float) -> Iterator[Report]:
    """Yield of each supervisor the last report in each step: the figures of a report are cumulative, and a day has
    17,000 of them."""
    from enode_django.monitoring.series import Report  # see the package

    step = Floor(Extract("reported_at", "epoch") / width)
    rows = ProcessorReport.objects.using(_database()).filter(reported_at__gt=datetime.fromtimestamp(after, UTC))
    last = rows.annotate(step=step).order_by("supervisor", "step", "-reported_at").distinct("supervisor", "step")
    columns = ("supervisor", "started_at", "reported_at", "ended", "figures", "step")
    for supervisor, started_at, at, ended, counted, _ in last.values_list(*columns):
        yield Report(supervisor, started_at.timestamp(), at.timestamp(), ended, counted)


def _database() -> str:
    return router.db_for_read(ProcessorReport)
