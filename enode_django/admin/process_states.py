"""Process states in the admin: the processes of process managers with a state, to read."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.contrib import admin
from django.db.models import Q
from django.http import HttpRequest
from django.utils.html import format_html_join
from django.utils.safestring import SafeString

from enode_django.admin.databases import ByDatabase, DatabaseFilter
from enode_django.admin.linking import STREAMS, WithLinks, link, may_open
from enode_django.admin.moments import WithMoments
from enode_django.admin.showing import (
    VIEW_PAYLOAD,
    Estimated,
    IndexedValues,
    ModelAdmin,
    WithSubscriber,
    as_json,
    preformatted,
)
from enode_django.models import ProcessState

if TYPE_CHECKING:
    from django.db.models import QuerySet

PHASES = {
    "running": Q(started_at__isnull=False, ended_at=None),
    "ended": Q(ended_at__isnull=False),
    "not begun": Q(started_at=None),
}


class PhaseFilter(admin.SimpleListFilter):
    title = parameter_name = "phase"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return [(phase, phase) for phase in PHASES]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        phase = PHASES.get(str(self.value()))
        return queryset if phase is None else queryset.filter(phase)


@admin.register(ProcessState)
class ProcessStateAdmin(WithMoments, WithLinks, ByDatabase, WithSubscriber, ModelAdmin):
    """Users with ``view_processstate`` see the processes; their states are for those with ``view_payload``."""

    paginator = Estimated
    when_empty = "No process manager with a state has begun a process."
    list_display = ("key", "shown_subscriber", "phase", "handled", "changed_at")
    list_filter = (DatabaseFilter, ("subscriber", IndexedValues), PhaseFilter)
    search_fields = ("key__exact",)
    search_help_text = "a whole key"
    ordering = ("-pk",)  # the table can be long, and has no index by time
    fields = ("key", "shown_subscriber", "phase", "handled", "started_at", "changed_at", "ended_at", "waiting_events")

    def get_fields(self, request: HttpRequest, obj: ProcessState | None = None) -> tuple[str, ...]:
        state = ["shown_state"] if request.user.has_perm(VIEW_PAYLOAD) else []
        streams = ["streams"] if may_open(request, STREAMS) else []
        return (*super().get_fields(request, obj), *streams, *state)

    def get_queryset(self, request: HttpRequest) -> QuerySet[ProcessState]:
        return super().get_queryset(request).defer("state")

    def lookup_allowed(self, lookup: str, value: str, request: HttpRequest) -> bool:
        return lookup == PhaseFilter.parameter_name or super().lookup_allowed(lookup, value, request)

    @admin.display(description="phase")
    def phase(self, row: ProcessState) -> str:
        if row.started_at is None:
            return "not begun"
        return "running" if row.ended_at is None else "ended"

    @admin.display(description="handled events", ordering="version")
    def handled(self, row: ProcessState) -> int:
        return row.version

    @admin.display(description="waiting events")
    def waiting_events(self, row: ProcessState) -> SafeString | str:
        """Return the ids of the events that wait for the process to begin."""
        return format_html_join(", ", "{}", ((id,) for id, *_ in row.waiting)) or "-"

    @admin.display(description="event streams")
    def streams(self, row: ProcessState) -> SafeString:
        """Return links to the streams whose aggregate or correlation id is the key, and to aggregates whose events
        wait."""
        from enode_django.admin.links import aggregate_url, search_url  # see the package

        waiting = dict.fromkeys(id for _, id, _ in row.waiting)
        links = [link(search_url(row.key), row.key), *(link(aggregate_url(id), id) for id in waiting)]
        return format_html_join(", ", "{}", ((one,) for one in links))

    @admin.display(description="state")
    def shown_state(self, row: ProcessState) -> SafeString | str:
        from enode_django.eventing.state_types import plain_state  # see the package
        from enode_django.exceptions import MalformedMessage

        try:
            return preformatted(as_json(plain_state(bytes(row.state)))) if row.state else "-"
        except MalformedMessage as error:
            return str(error)
