"""``GET events/stream/``: new events as server-sent events, for ``EventSource`` in browsers and other clients."""

from __future__ import annotations

import json
from functools import partial
from typing import TYPE_CHECKING, Any

from rest_framework.renderers import BaseRenderer
from rest_framework.settings import api_settings

from enode_django.api.aggregates import read_places
from enode_django.api.base import ApiView, MayViewStreams, may_view_payload
from enode_django.api.streams import places_now, stream_body
from enode_django.api.tail import CONTENT_TYPE, Tail
from enode_django.conf import conf
from enode_django.runtime import make_store

if TYPE_CHECKING:
    from django.http import StreamingHttpResponse
    from rest_framework.request import Request


class EventStreamRenderer(BaseRenderer):
    """Makes the API accept ``Accept: text/event-stream``. The stream itself is not rendered by it."""

    media_type = CONTENT_TYPE
    format = "event-stream"
    charset = None

    def render(self, data: Any, accepted_media_type: str | None = None, renderer_context: Any = None) -> bytes:
        return json.dumps(data, default=str).encode()


class EventStreamView(ApiView):
    """Sends event streams and refusals that are stored from now on, or after ``Last-Event-ID`` or ``cursor``."""

    permission_classes: Any = [*ApiView.permission_classes, MayViewStreams]
    renderer_classes: Any = [EventStreamRenderer, *api_settings.DEFAULT_RENDERER_CLASSES]
    throttle_scope = "enode-streams"

    def get(self, request: Request) -> StreamingHttpResponse:
        last = request.headers.get("Last-Event-ID")
        places = read_places(last, "Last-Event-ID") or read_places(request.query_params.get("cursor"))
        make_body = partial(stream_body, with_payload=may_view_payload(request))
        tail = Tail(places or dict(places_now(make_store().shards)), make_body, seconds=conf().API.STREAM_SECONDS)
        return tail.response(request._request)
