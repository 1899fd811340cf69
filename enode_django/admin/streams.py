"""The event browser: looks, and never changes anything.

Who may view event streams sees the lists and what a stream is about; its contents, and what follows from them, need
``view_payload`` beside it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import wraps
from typing import TYPE_CHECKING, Any

from django.contrib import admin
from django.contrib.admin.utils import unquote
from django.core.exceptions import PermissionDenied
from django.db import InterfaceError, OperationalError
from django.http import Http404, HttpRequest, HttpResponse, JsonResponse
from django.template.response import TemplateResponse
from django.urls import URLPattern, path

from enode_django.admin import aggregate_page, links, stream_list
from enode_django.admin.aggregate_page import Aggregate, Choice
from enode_django.admin.showing import ReadOnly
from enode_django.admin.stream_contents import contents_of
from enode_django.exceptions import StoreUnavailable
from enode_django.history import tables
from enode_django.models import EventStream
from enode_django.runtime import make_store

if TYPE_CHECKING:
    StreamBase = admin.ModelAdmin[EventStream]
else:
    StreamBase = admin.ModelAdmin

VIEW, PAYLOAD = "enode_django.view_eventstream", "enode_django.view_payload"
View = Callable[..., HttpResponse]


def only_looks(view: View) -> View:
    """For who may view event streams, and by no method that could be meant to change something. A database that is away
    is said to be away."""

    @wraps(view)
    def guarded(self: EventStreamAdmin, request: HttpRequest, *arguments: Any, **options: Any) -> HttpResponse:
        if request.method not in ("GET", "HEAD") or not request.user.has_perm(VIEW):
            raise PermissionDenied
        try:
            return view(self, request, *arguments, **options)
        except (StoreUnavailable, OperationalError, InterfaceError) as error:
            shards = tables.aliases() if len(tables.aliases()) > 1 else ()
            return self.render(
                request, "unavailable", "Unavailable", {"error": str(error), "shards": shards}, status=503
            )

    return guarded


@admin.register(EventStream)
class EventStreamAdmin(ReadOnly, StreamBase):
    """Read-only for everybody."""

    def has_view_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return bool(request.user.has_perm(VIEW))

    def get_urls(self) -> list[URLPattern]:
        ours = [
            path("aggregates/<str:quoted_id>/", self.aggregate_view, name="enode_django_eventstream_aggregate"),
            path("aggregates/<str:quoted_id>/state/", self.state_view, name="enode_django_eventstream_state"),
        ]
        for pattern in ours:
            pattern.callback = self.admin_site.admin_view(pattern.callback)
        return [*ours, *super().get_urls()]

    @only_looks
    def changelist_view(self, request: HttpRequest, extra_context: Mapping[str, Any] | None = None) -> HttpResponse:
        form = stream_list.Filters(request.GET)
        context: dict[str, Any] = {
            "form": form,
            "is_sharded": len(form.aliases) > 1,
            "types": stream_list.known_types(),
        }
        if form.is_valid():
            if form.cleaned_data["q"]:
                context["hits"] = stream_list.search(make_store(), form.cleaned_data["q"])
            else:
                context["total"] = stream_list.size_in_words(form.alias)
                listing = stream_list.listing(form)
                context |= {"listing": listing, "older": _link(request, "before", listing.older)}
                context["newer"] = _link(request, "after", listing.newer)
        return self.render(request, "stream_list", "Event streams", context)

    @only_looks
    def change_view(
        self,
        request: HttpRequest,
        object_id: str,
        form_url: str = "",
        extra_context: Mapping[str, Any] | None = None,
    ) -> HttpResponse:
        """Of a stream: sequences are those of a shard."""
        form = stream_list.Filters({"shard": request.GET.get("shard", ""), "before": unquote(object_id)})
        if not form.is_valid() or not form.cleaned_data["before"]:
            raise Http404
        rows = tables.streams(form.alias) if self.may_read(request) else stream_list.envelopes(form.alias)
        stream = rows.filter(sequence=form.cleaned_data["before"]).first()
        if stream is None:
            raise Http404
        context: dict[str, Any] = {"stream": stream, "alias": form.alias, "is_sharded": len(form.aliases) > 1}
        if self.may_read(request):
            contents = contents_of(bytes(stream.events), bytes(stream.metadata))
            context |= {"contents": contents, "cause_url": links.cause_url(contents.metadata.get("causation_id"))}
        return self.render(request, "stream", f"Event stream {stream.sequence}", context)

    @only_looks
    def aggregate_view(self, request: HttpRequest, quoted_id: str) -> HttpResponse:
        choice = Choice(request.GET)
        choice.is_valid()
        aggregate = _aggregate(quoted_id)
        context = aggregate_page.page_of(aggregate, choice, with_contents=self.may_read(request))
        return self.render(request, "aggregate", f"Aggregate {aggregate.id}", {**context, "choice": choice})

    @only_looks
    def state_view(self, request: HttpRequest, quoted_id: str) -> HttpResponse:
        """``{"version", "lines": [[path, text], …]}``, or ``{"version", "error"}``."""
        if not self.may_read(request):
            raise PermissionDenied
        choice = Choice(request.GET)
        if not choice.is_valid() or not choice.cleaned_data["version"]:
            return JsonResponse({"error": "version must be a number from 1 on"}, status=400)
        aggregate = _aggregate(quoted_id)
        state = aggregate_page.shown_state(aggregate.id, choice.cleaned_data["version"])
        if state.trouble:
            return JsonResponse({"version": state.version, "error": state.trouble}, status=422)
        return JsonResponse({"version": state.version, "lines": [line[:2] for line in state.lines]})

    def may_read(self, request: HttpRequest) -> bool:
        return bool(request.user.has_perm(PAYLOAD))

    def render(
        self, request: HttpRequest, name: str, title: str, context: Mapping[str, Any], status: int = 200
    ) -> HttpResponse:
        known = {**self.admin_site.each_context(request), "opts": self.opts, "title": title}
        known |= {"may_read": self.may_read(request), **context}
        request.current_app = self.admin_site.name
        return TemplateResponse(request, f"enode_django/admin/{name}.html", known, status=status)


def _aggregate(quoted_id: str) -> Aggregate:
    try:
        id = links.id_of(quoted_id)
    except ValueError as error:
        raise Http404 from error
    return Aggregate(make_store(), id)


def _link(request: HttpRequest, name: str, place: int | None) -> str:
    """The same page beyond that place, empty if there is none."""
    if place is None:
        return ""
    query = request.GET.copy()
    for key in ("before", "after"):
        query.pop(key, None)
    query[name] = str(place)
    return f"?{query.urlencode()}"
