"""``GET events/stream/``: server-sent events, for browsers' ``EventSource`` and whoever wants to hear at once.

A response ends after ``STREAM_SECONDS``; the client comes again with ``Last-Event-ID`` and misses nothing. Between
looks at the store no database connection is held.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Iterator
from typing import TYPE_CHECKING, Any

from asgiref.sync import sync_to_async
from django.core.handlers.asgi import ASGIRequest
from django.db import connections
from django.http import StreamingHttpResponse
from rest_framework.renderers import BaseRenderer
from rest_framework.settings import api_settings

from enode_django.api.aggregates import read_places
from enode_django.api.base import ApiView, MayViewStreams, may_view_payload
from enode_django.api.streams import Places, places_now, read_feed, stream_body, write_cursor
from enode_django.conf import conf
from enode_django.exceptions import StoreUnavailable
from enode_django.runtime import make_store

if TYPE_CHECKING:
    from rest_framework.request import Request

CONTENT_TYPE = "text/event-stream"
AT_ONCE = 100
HEARTBEAT = b": still here\n\n"


class EventStreamRenderer(BaseRenderer):
    """So that ``Accept: text/event-stream`` is understood; nothing is rendered with it."""

    media_type = CONTENT_TYPE
    format = "event-stream"
    charset = None

    def render(self, data: Any, accepted_media_type: str | None = None, renderer_context: Any = None) -> bytes:
        return json.dumps(data, default=str).encode()


class EventStreamView(ApiView):
    """Sends what is stored from now on, or after ``Last-Event-ID`` or ``cursor``."""

    permission_classes: Any = [*ApiView.permission_classes, MayViewStreams]
    renderer_classes: Any = [EventStreamRenderer, *api_settings.DEFAULT_RENDERER_CLASSES]
    throttle_scope = "enode-streams"

    def get(self, request: Request) -> StreamingHttpResponse:
        last = request.headers.get("Last-Event-ID")
        places = read_places(last, "Last-Event-ID") or read_places(request.query_params.get("cursor"))
        tail = Tail(places or dict(places_now(make_store().shards)), may_view_payload(request))
        is_async = isinstance(request._request, ASGIRequest)
        body: Any = tail.follow_async() if is_async else tail.follow()
        # Proxies such as nginx must not keep it until there is more.
        headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
        return StreamingHttpResponse(body, content_type=CONTENT_TYPE, headers=headers)


class Tail:
    """One client's way along the feed. Ends by itself, and when the client is gone: then its iterator is closed."""

    def __init__(self, places: Places, with_payload: bool) -> None:
        current = conf().API
        self._places = places
        self._with_payload = with_payload
        self._store = make_store()
        self._interval = current.STREAM_INTERVAL
        self._heartbeat = current.STREAM_HEARTBEAT
        self._end = time.monotonic() + current.STREAM_SECONDS
        self._sent_at = 0.0

    def _greeting(self) -> bytes:
        """Return the first bytes with the place where the stream begins, so that a client that got nothing goes on
        there."""
        return f"retry: 2000\nid: {write_cursor(self._places)}\n\n".encode()

    def follow(self) -> Iterator[bytes]:
        yield self._greeting()
        while True:
            sent, goes_on = self._next()
            if sent:
                yield sent
            if not goes_on:
                return
            if self._pause:
                time.sleep(self._pause)

    async def follow_async(self) -> AsyncIterator[bytes]:
        # Django keeps the thread that answered, and what it has of connections, until the response is closed.
        await sync_to_async(_let_connections_go)()
        yield self._greeting()
        while True:
            sent, goes_on = await sync_to_async(self._next, thread_sensitive=False)()
            if sent:
                yield sent
            if not goes_on:
                return
            if self._pause:
                await asyncio.sleep(self._pause)

    _pause = 0.0

    def _next(self) -> tuple[bytes, bool]:
        """Return the bytes to send now, and True if there may be more. If the store is away, the response ends and the
        client comes again."""
        try:
            part = read_feed(self._store.shards, self._places, AT_ONCE)
        except StoreUnavailable:
            return b"", False
        finally:
            _let_connections_go()
        self._places = part.places
        self._pause = 0.0 if part.more else self._interval
        now = time.monotonic()
        sent = b"".join(self._event(row.cursor, stream_body(row.record, self._with_payload)) for row in part.rows)
        if not sent and now - self._sent_at >= self._heartbeat:
            sent = HEARTBEAT
        if sent:
            self._sent_at = now
        return sent, now < self._end

    @staticmethod
    def _event(cursor: str, body: dict[str, Any]) -> bytes:
        """JSON has no line breaks of its own, so the data is one line."""
        return f"id: {cursor}\nevent: stream\ndata: {json.dumps(body)}\n\n".encode()


def _let_connections_go() -> None:
    for connection in connections.all(initialized_only=True):
        if not connection.in_atomic_block:
            connection.close()
