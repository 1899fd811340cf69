"""The pages of the event browser. `EventStreamAdmin` imports this module at the first request."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import wraps
from typing import TYPE_CHECKING, Any

from django.contrib.admin.utils import unquote
from django.core.exceptions import PermissionDenied
from django.db import InterfaceError, OperationalError
from django.http import Http404, HttpRequest, HttpResponse, JsonResponse
from django.http.response import HttpResponseBase

from enode_django.admin import aggregate_page, links, stream_list, stream_search
from enode_django.admin.aggregate_page import Aggregate, Choice
from enode_django.admin.linking import SUBSCRIBERS, may_open
from enode_django.admin.stream_contents import ShownCorrection, contents_of, corrections_of
from enode_django.exceptions import StoreUnavailable
from enode_django.history import tables
from enode_django.runtime import make_store

if TYPE_CHECKING:
    from enode_django.admin.streams import EventStreamAdmin

View = Callable[..., HttpResponseBase]


def only_looks(view: View) -> View:
    """Guard a view. Raises `PermissionDenied` for users who may not view event streams, and for methods other than GET
    and HEAD. If a database is away, a page with status 503 says so."""

    @wraps(view)
    def guarded(admin: EventStreamAdmin, request: HttpRequest, *arguments: Any, **options: Any) -> HttpResponseBase:
        if request.method not in ("GET", "HEAD") or not admin.has_view_permission(request):
            raise PermissionDenied
        try:
            return view(admin, request, *arguments, **options)
        except (StoreUnavailable, OperationalError, InterfaceError) as error:
            shards = tables.aliases() if len(tables.aliases()) > 1 else ()
            return admin.render(
                request, "unavailable", "Unavailable", {"error": str(error), "shards": shards}, status=503
            )

    return guarded


@only_looks
def changelist(
    admin: EventStreamAdmin, request: HttpRequest, extra_context: Mapping[str, Any] | None = None
) -> HttpResponse:
    form = stream_list.Filters(request.GET, may_read=admin.may_read(request))
    context: dict[str, Any] = {
        "form": form,
        "is_sharded": len(form.aliases) > 1,
        "types": stream_list.known_types(),
    }
    if form.is_valid():
        id = form.cleaned_data["q"]
        context |= _found(id, with_contents=form.may_read) if id else _listed(request, form)
    return admin.render(request, "stream_list", "Event streams", context)


def _found(id: str, *, with_contents: bool) -> Mapping[str, Any]:
    """Return the context of the page of a search."""
    hits = stream_search.search(make_store(), id, with_contents=with_contents)
    traces = stream_search.traces(id.strip()) if with_contents else None
    return {"id": id.strip(), "hits": hits, "traces": traces}


def _listed(request: HttpRequest, form: stream_list.Filters) -> Mapping[str, Any]:
    """Return the context of a page of the list."""
    listing = stream_list.listing(form)
    return {
        "total": stream_list.size_in_words(form.alias),
        "listing": listing,
        "older": _link(request, "before", listing.older),
        "newer": _link(request, "after", listing.newer),
    }


@only_looks
def stream(
    admin: EventStreamAdmin,
    request: HttpRequest,
    object_id: str,
    form_url: str = "",
    extra_context: Mapping[str, Any] | None = None,
) -> HttpResponse:
    """Show one stream, by its sequence in the shard that the query names, or in the first one."""
    form = stream_list.Filters({"shard": request.GET.get("shard", ""), "before": unquote(object_id)})
    if not form.is_valid() or not form.cleaned_data["before"]:
        raise Http404
    rows = tables.streams(form.alias) if admin.may_read(request) else stream_list.envelopes(form.alias)
    stream = rows.filter(sequence=form.cleaned_data["before"]).first()
    if stream is None:
        raise Http404
    context: dict[str, Any] = {"stream": stream, "alias": form.alias, "is_sharded": len(form.aliases) > 1}
    if admin.may_read(request):
        corrections = corrections_of(form.alias, stream)
        events = corrections[-1].events if corrections else None
        contents = contents_of(bytes(stream.events) if events is None else events, bytes(stream.metadata))
        if corrections:
            context["original"] = contents_of(bytes(stream.events), b"")
            context["corrections"] = [ShownCorrection.of(one) for one in corrections]
        context |= {"contents": contents, "cause_url": links.cause_url(contents.metadata.get("causation_id"))}
    return admin.render(request, "stream", f"Event stream {stream.sequence}", context)


@only_looks
def aggregate(admin: EventStreamAdmin, request: HttpRequest, quoted_id: str) -> HttpResponse:
    choice = Choice(request.GET)
    choice.is_valid()
    try:
        aggregate = _aggregate(quoted_id)
    except Http404:  # such as the id of a command that found no aggregate
        return admin.render(request, "no_aggregate", "No such aggregate", {"id": unquote(quoted_id)}, 404)
    context = aggregate_page.page_of(aggregate, choice, with_contents=admin.may_read(request))
    context |= {"choice": choice, "may_see_subscribers": may_open(request, SUBSCRIBERS)}
    return admin.render(request, "aggregate", f"Aggregate {aggregate.id}", context)


@only_looks
def state(admin: EventStreamAdmin, request: HttpRequest, quoted_id: str) -> HttpResponse:
    """Return ``{"version", "lines": [[path, text], …]}`` as JSON. If there is no such state, return ``{"version",
    "error"}`` with status 422; for an invalid version ``{"error"}`` with 400."""
    choice = Choice(request.GET)
    if not choice.is_valid() or not choice.cleaned_data["version"]:
        return JsonResponse({"error": "version must be a number from 1 on"}, status=400)
    aggregate = _aggregate(quoted_id)
    state = aggregate_page.shown_state(aggregate.id, choice.cleaned_data["version"])
    if state.trouble:
        return JsonResponse({"version": state.version, "error": state.trouble}, status=422)
    return JsonResponse({"version": state.version, "lines": [line[:2] for line in state.lines]})


def _aggregate(quoted_id: str) -> Aggregate:
    try:
        id = links.id_of(quoted_id)
    except ValueError as error:
        raise Http404 from error
    return Aggregate(make_store(), id)


def _link(request: HttpRequest, name: str, place: int | None) -> str:
    """Return the query of the same page before or after a sequence; empty without one."""
    if place is None:
        return ""
    query = request.GET.copy()
    for key in ("before", "after"):
        query.pop(key, None)
    query[name] = str(place)
    return f"?{query.urlencode()}"
