"""The feed as server-sent events, for the API and the admin. It needs no extra.

A response ends after some time. The client reconnects with ``Last-Event-ID``, and misses nothing. No database
connection is held between two reads of the store.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from typing import Any

from asgiref.sync import sync_to_async
from django.core.handlers.asgi import ASGIRequest
from django.db import connections
from django.http import HttpRequest, StreamingHttpResponse

from enode_django.api.streams import FeedRow, Places, read_feed, write_cursor
from enode_django.conf import conf
from enode_django.eventstore.base import StreamRecord
from enode_django.exceptions import StoreUnavailable
from enode_django.runtime import make_store

CONTENT_TYPE = "text/event-stream"
AT_ONCE = 100
RETRY = 2_000
"""Milliseconds after which a client reconnects."""
CATCHING_UP = 2.0
"""Seconds that a response lasts longer while the client is behind."""
HEARTBEAT = b": still here\n\n"

MakeBody = Callable[[StreamRecord], Mapping[str, Any] | None]
"""Returns the body to send for a stream, or None if the client does not want it."""


def is_async(request: HttpRequest) -> bool:
    """Return True under ASGI, where a long response needs no thread."""
    return isinstance(request, ASGIRequest)


class Tail:
    """Follows the feed for one client and ``seconds``. It also ends when the client is gone, since Django closes its
    iterator then."""

    def __init__(self, places: Places, make_body: MakeBody, *, seconds: float) -> None:
        current = conf().API
        self._places = places
        self._make_body = make_body
        self._store = make_store()
        self._interval = current.STREAM_INTERVAL
        self._heartbeat = current.STREAM_HEARTBEAT
        self._end = time.monotonic() + seconds
        self._sent_at = 0.0

    def response(self, request: HttpRequest) -> StreamingHttpResponse:
        body: Any = self._follow_async() if is_async(request) else self._follow()
        # Proxies such as nginx must not buffer the response.
        headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
        return StreamingHttpResponse(body, content_type=CONTENT_TYPE, headers=headers)

    def _greeting(self) -> bytes:
        """Return the first bytes. They hold the place where the stream begins: a client that got no event goes on from
        there."""
        return f"retry: {RETRY}\n".encode() + _place(write_cursor(self._places))

    def _follow(self) -> Iterator[bytes]:
        yield self._greeting()
        while True:
            sent, goes_on = self._next()
            if sent:
                yield sent
            if not goes_on:
                return
            if self._pause:
                time.sleep(self._pause)

    async def _follow_async(self) -> AsyncIterator[bytes]:
        # Django keeps the thread that answered, and its connections, until the response is closed.
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
        """Return the bytes to send now, and False if the response ends. It ends if the store is away; the client
        reconnects."""
        try:
            part = read_feed(self._store.shards, self._places, AT_ONCE)
        except StoreUnavailable:
            return b"", False
        finally:
            _let_connections_go()
        self._places = part.places
        self._pause = 0.0 if part.more else self._interval
        now = time.monotonic()
        sent = self._events(part.rows)
        if not sent and now - self._sent_at >= self._heartbeat:
            sent = HEARTBEAT
        if sent:
            self._sent_at = now
        return sent, now < self._end + (CATCHING_UP if part.more else 0.0)

    def _events(self, rows: Sequence[FeedRow]) -> bytes:
        """Return the events of the rows. Unwanted streams are left out; if the last one is unwanted, its place is sent
        alone. The JSON has no line breaks, so the data is one line."""
        sent, passed = [], ""
        for row in rows:
            body = self._make_body(row.record)
            passed = row.cursor if body is None else ""
            if body is not None:
                sent.append(f"id: {row.cursor}\nevent: stream\ndata: {json.dumps(body)}\n\n".encode())
        return b"".join([*sent, _place(passed)] if passed else sent)


def _place(cursor: str) -> bytes:
    """Return an event with a place only. Clients remember an id without data, too."""
    return f"id: {cursor}\n\n".encode()


def _let_connections_go() -> None:
    for connection in connections.all(initialized_only=True):
        if not connection.in_atomic_block:
            connection.close()
