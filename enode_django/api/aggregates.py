"""``GET aggregates/{type}/{id}/``, also with the id in the query, ``GET aggregates/{type}/{id}/events/`` and
``GET events/``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rest_framework.response import Response

from enode_django.api import streams
from enode_django.api.base import ApiView, MayViewPayload, MayViewStreams, may_view_payload
from enode_django.api.outcomes import etag
from enode_django.api.problems import Problem, invalid_parameter
from enode_django.api.streams import Places, read_cursor, read_feed, read_in_pieces, stream_body, write_cursor
from enode_django.domain.aggregate import AggregateRoot
from enode_django.domain.prefixes import with_prefix
from enode_django.eventstore.base import EventStore, StreamRecord
from enode_django.exceptions import EnodeError, HistoryTooLong, StoreError, shown
from enode_django.history.states import MOST_REPLAYED, loaded
from enode_django.runtime import make_store
from enode_django.serialization.json_text import json_value
from enode_django.serialization.registry import types

if TYPE_CHECKING:
    from rest_framework.request import Request

HIGHEST = 2**63 - 1
PAGE, LARGEST_PAGE = 100, 500


class AggregateView(ApiView):
    """The state of an aggregate, now or at a version; the version is its ETag."""

    permission_classes: Any = [*ApiView.permission_classes, MayViewStreams, MayViewPayload]

    def get(self, request: Request, type: str, id: str = "") -> Response:
        store = make_store()
        id = id or request.query_params.get("id", "")
        wanted = read_number(request, "version", least=1)
        id, head = _found(store, type, id)
        version = head if wanted is None else wanted
        if version > head:
            raise Problem(404, f"the aggregate has come to version {head}", kind="enode:unknown-version")
        if _is_known(request, version):
            return Response(status=304, headers=etag(version))
        aggregate = _load(store, id, version)
        body = {
            "aggregate_root_type": types.name_of(aggregate.__class__),
            "aggregate_root_id": id,
            "version": version,
            "state": _state(aggregate),
        }
        return Response(body, headers=etag(version))


def _found(store: EventStore, type_name: str, typed: str) -> tuple[str, int]:
    """Return the stored id and the newest version. The id is looked up with the prefix of its class, and then as it was
    typed, for aggregates from before the class had a prefix. Raises a `Problem` if no aggregate of this type has it."""
    for id in dict.fromkeys((_completed(type_name, typed), typed)):
        first = next(iter(store.load(id, until=1)), None)
        if first is not None and _is_of(first.aggregate_root_type, type_name):
            return id, store.heads([id])[id]
    raise unknown(type_name, typed)


def _completed(type_name: str, typed: str) -> str:
    cls = types.find(AggregateRoot, type_name)
    return typed if cls is None else with_prefix(cls, typed)


def _is_of(stored: str, asked: str) -> bool:
    """Return True if both names are of the same class. The stored name may be an alias by now."""
    cls = types.find(AggregateRoot, stored)
    return stored == asked or (cls is not None and cls is types.find(AggregateRoot, asked))


def unknown(type_name: str, id: str) -> Problem:
    return Problem(404, f"there is no {shown(type_name)} with the id {shown(id)}", kind="enode:unknown-aggregate")


def _is_known(request: Request, version: int) -> bool:
    """Return True if If-None-Match names this version. A weak ETag counts as well."""
    given = request.headers.get("If-None-Match", "")
    return given.strip() == "*" or f'"{version}"' in {each.strip().removeprefix("W/") for each in given.split(",")}


def _load(store: EventStore, id: str, version: int) -> AggregateRoot:
    try:
        return loaded(store, id, version, most=MOST_REPLAYED)
    except StoreError:
        raise
    except HistoryTooLong as error:
        raise Problem(409, str(error), kind="enode:no-state") from error
    except EnodeError as error:
        raise _unreadable(error) from error


def _state(aggregate: AggregateRoot) -> Any:
    try:
        return json_value(aggregate.snapshot())
    except Exception as error:  # a hook of the application
        raise _unreadable(error) from error


def _unreadable(error: Exception) -> Problem:
    detail = f"its state cannot be made of its events here ({type(error).__name__}); the events can be read"
    return Problem(409, detail, kind="enode:no-state")


class AggregateEventsView(ApiView):
    """The event streams of an aggregate by version, ``after`` one of them."""

    permission_classes: Any = [*ApiView.permission_classes, MayViewStreams]

    def get(self, request: Request, type: str, id: str) -> Response:
        after = read_number(request, "after") or 0
        limit = read_limit(request)
        store = make_store()
        id, head = _found(store, type, id)
        records = _read_streams(store, id, after, limit)
        with_payload = may_view_payload(request)
        body = {
            "version": head,
            "results": [stream_body(record, with_payload) for record in records],
            "after": records[-1].version if records else after,
            "more": bool(records) and (records[-1].version or 0) < head,
        }
        return Response(body)


def _read_streams(store: EventStore, id: str, after: int, limit: int) -> Sequence[StreamRecord]:
    records: list[StreamRecord] = []

    def read(most: int) -> Sequence[StreamRecord]:
        last = records[-1].version if records else after
        found = store.load_ranges({id: (last or 0, HIGHEST)}, limit=most).get(id, ())
        records.extend(found)
        return found

    read_in_pieces(read, limit, streams.PAGE_BYTES)
    return records


class FeedView(ApiView):
    """The event streams and refusals of all shards, page by page. The cursor of a page leads to the next one."""

    permission_classes: Any = [*ApiView.permission_classes, MayViewStreams]

    def get(self, request: Request) -> Response:
        part = read_feed(make_store().shards, read_places(request.query_params.get("cursor")), read_limit(request))
        with_payload = may_view_payload(request)
        results = [{"cursor": row.cursor, **stream_body(row.record, with_payload)} for row in part.rows]
        return Response({"results": results, "cursor": write_cursor(part.places), "more": part.more})


# -- reading requests -------------------------------------------------------------------------------------------------


def read_places(cursor: str | None, name: str = "cursor") -> Places:
    """Read a cursor; without one, start at the beginnings of all shards. Raises a `Problem` for a malformed cursor."""
    if not cursor:
        return {}
    try:
        return read_cursor(cursor)
    except ValueError as error:
        raise invalid_parameter(name, str(error)) from error


def read_limit(request: Request) -> int:
    return min(read_number(request, "limit", least=1) or PAGE, LARGEST_PAGE)


def read_number(request: Request, name: str, *, least: int = 0) -> int | None:
    """Return a number of the query; None if it has none of this name. Raises a `Problem` for any other text."""
    text = request.query_params.get(name)
    if text is None:
        return None
    number = int(text) if text.isascii() and text.isdigit() and len(text) < 19 else -1
    if number < least:
        raise invalid_parameter(name, f"{shown(text)} is not a whole number from {least} on")
    return number
