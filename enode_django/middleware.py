"""Every command that a request sends says who asked for it."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from typing import Any

from asgiref.sync import iscoroutinefunction
from django.http import HttpRequest, HttpResponse
from django.utils.decorators import sync_and_async_middleware

from enode_django.commanding import flow
from enode_django.domain.metadata import Metadata, ambient_metadata
from enode_django.ids import new_id

__all__ = ["EnodeMiddleware"]

Respond = Callable[[HttpRequest], Any]


@sync_and_async_middleware
def EnodeMiddleware(get_response: Respond) -> Respond:
    """Sets the ambient metadata: the user's primary key, and the request's id as the correlation id.

    The id is that of the ``X-Request-ID`` header, or a new one. Put this after the authentication middleware.
    """
    if iscoroutinefunction(get_response):

        async def answer_async(request: HttpRequest) -> HttpResponse:
            source, begun = _Source(request), time.perf_counter()
            with ambient_metadata(source):
                pending: Awaitable[HttpResponse] = get_response(request)
                response = await pending
            _tell(request, source.correlation_id, response, begun)
            return response

        return answer_async

    def answer(request: HttpRequest) -> HttpResponse:
        source, begun = _Source(request), time.perf_counter()
        with ambient_metadata(source):
            response: HttpResponse = get_response(request)
        _tell(request, source.correlation_id, response, begun)
        return response

    return answer


def _tell(request: HttpRequest, request_id: str, response: HttpResponse, begun: float) -> None:
    """Without the query, which may hold what is nobody's business."""
    if flow.is_told():
        subject, seconds = f"{request.method} {request.path}", time.perf_counter() - begun
        flow.tell("web", subject, flow_id=request_id, outcome=str(response.status_code), seconds=seconds)


class _Source:
    def __init__(self, request: HttpRequest) -> None:
        self._request = request
        self.correlation_id = (request.headers.get("X-Request-ID") or new_id())[:255]

    def __call__(self) -> Metadata:
        # Asked when a command is sent: a view may have logged somebody in, and most requests need no user at all.
        user = getattr(self._request, "user", None)
        key = None if user is None or not user.is_authenticated else str(user.pk)
        return Metadata(user_id=key, request=self.correlation_id, correlation_id=self.correlation_id)
