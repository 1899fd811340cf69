"""The event browser. It is read-only.

Users with ``view_eventstream`` see the lists and the envelopes of streams. To see contents, states and causation, they
also need ``view_payload``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from django.contrib import admin
from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest, HttpResponse
from django.urls import URLPattern

from enode_django.admin.linking import STREAMS
from enode_django.admin.showing import VIEW_PAYLOAD, ModelAdmin, ReadOnly, on_demand, page_at, rendered
from enode_django.models import EventStream

PAGES, LIVE = "enode_django.admin.stream_pages", "enode_django.admin.live_tail"


@admin.register(EventStream)
class EventStreamAdmin(ReadOnly, ModelAdmin):
    """Read-only for everybody."""

    changelist_view = on_demand(f"{PAGES}.changelist")
    change_view = on_demand(f"{PAGES}.stream")
    aggregate_view = on_demand(f"{PAGES}.aggregate")
    state_view = on_demand(f"{PAGES}.state")
    tail_view = on_demand(f"{LIVE}.page")
    feed_view = on_demand(f"{LIVE}.feed")

    def has_view_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return bool(request.user.has_perm(STREAMS))

    def get_urls(self) -> list[URLPattern]:
        return [
            page_at(self, "aggregates/<str:quoted_id>/", self.aggregate_view, "aggregate", self.has_view_permission),
            page_at(self, "aggregates/<str:quoted_id>/state/", self.state_view, "state", self.may_read),
            page_at(self, "tail/", self.tail_view, "tail", self.has_view_permission),
            page_at(self, "tail/feed/", self.feed_view, "feed", self.has_view_permission),
            *super().get_urls(),
        ]

    def history_view(self, request: HttpRequest, object_id: str, extra_context: Any = None) -> HttpResponse:
        """Django would look for the row in the router's database, and not in its shard."""
        raise Http404("event streams never change, so they have no history")

    def delete_view(self, request: HttpRequest, object_id: str, extra_context: Any = None) -> HttpResponse:
        raise PermissionDenied("event streams are never deleted")  # without looking for the row, as above

    def may_read(self, request: HttpRequest) -> bool:
        return bool(request.user.has_perm(VIEW_PAYLOAD))

    def render(
        self, request: HttpRequest, name: str, title: str, context: Mapping[str, Any], status: int = 200
    ) -> HttpResponse:
        request.current_app = self.admin_site.name
        return rendered(self, request, name, title, {"may_read": self.may_read(request), **context}, status)
