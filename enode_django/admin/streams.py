"""The event browser. It is read-only.

Users with ``view_eventstream`` see the lists and the envelopes of streams. To see contents, states and causation, they
also need ``view_payload``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from django.contrib import admin
from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.urls import URLPattern, path

from enode_django.admin.showing import ReadOnly, on_demand
from enode_django.models import EventStream

if TYPE_CHECKING:
    StreamBase = admin.ModelAdmin[EventStream]
else:
    StreamBase = admin.ModelAdmin

VIEW, PAYLOAD = "enode_django.view_eventstream", "enode_django.view_payload"
PAGES, LIVE = "enode_django.admin.stream_pages", "enode_django.admin.live_tail"


@admin.register(EventStream)
class EventStreamAdmin(ReadOnly, StreamBase):
    """Read-only for everybody."""

    changelist_view = on_demand(f"{PAGES}.changelist")
    change_view = on_demand(f"{PAGES}.stream")
    aggregate_view = on_demand(f"{PAGES}.aggregate")
    state_view = on_demand(f"{PAGES}.state")
    tail_view = on_demand(f"{LIVE}.page")
    feed_view = on_demand(f"{LIVE}.feed")

    def has_view_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return bool(request.user.has_perm(VIEW))

    def get_urls(self) -> list[URLPattern]:
        ours = [
            path("aggregates/<str:quoted_id>/", self.aggregate_view, name="enode_django_eventstream_aggregate"),
            path("aggregates/<str:quoted_id>/state/", self.state_view, name="enode_django_eventstream_state"),
            path("tail/", self.tail_view, name="enode_django_eventstream_tail"),
            path("tail/feed/", self.feed_view, name="enode_django_eventstream_feed"),
        ]
        for pattern in ours:
            pattern.callback = self.admin_site.admin_view(pattern.callback)
        return [*ours, *super().get_urls()]

    def may_read(self, request: HttpRequest) -> bool:
        return bool(request.user.has_perm(PAYLOAD))

    def render(
        self, request: HttpRequest, name: str, title: str, context: Mapping[str, Any], status: int = 200
    ) -> HttpResponse:
        known = {**self.admin_site.each_context(request), "opts": self.opts, "title": title}
        known |= {"may_read": self.may_read(request), **context}
        request.current_app = self.admin_site.name
        return TemplateResponse(request, f"enode_django/admin/{name}.html", known, status=status)
