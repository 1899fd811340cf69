"""A middleware that puts the user and the request into the metadata of each command that a request sends."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from typing import Any

from asgiref.sync import iscoroutinefunction, markcoroutinefunction
from django.http import HttpRequest, HttpResponse

from enode_django.bus.interception import SubscriberContext
from enode_django.domain.metadata import Metadata, ambient_metadata
from enode_django.ids import new_id
from enode_django.telemetry import steplog

__all__ = ["EnodeMiddleware", "SubscriberContext"]


class EnodeMiddleware:
    """Sets the ambient metadata: the user's primary key, and the request's id as the correlation id.

    The request's id is that of the ``X-Request-ID`` header, or a new one. Put this middleware after the authentication
    middleware. Subclasses override `get_metadata`.

    For example::

        class ShopMiddleware(EnodeMiddleware):
            def get_metadata(self, request: HttpRequest) -> Metadata:
                return replace(super().get_metadata(request), extra={"host": request.get_host()})
    """

    sync_capable = True
    async_capable = True

    def __init__(self, get_response: Callable[[HttpRequest], Any]) -> None:
        self.get_response = get_response
        self._is_async = iscoroutinefunction(get_response)
        if self._is_async:
            markcoroutinefunction(self)

    def get_metadata(self, request: HttpRequest) -> Metadata:
        """Return the metadata of the commands that this request sends: the user's primary key.

        It is called when a command is sent, because a view may log a user in. It runs in a thread for synchronous code
        and may query the database. The caller fills an empty ``request`` or ``correlation_id`` with the request's id.
        """
        user = getattr(request, "user", None)
        return Metadata(user_id=None if user is None or not user.is_authenticated else str(user.pk))

    def __call__(self, request: HttpRequest) -> Any:
        if self._is_async:
            return self._answer_async(request)
        source, begun = _Source(self.get_metadata, request), time.perf_counter()
        with ambient_metadata(source):
            response: HttpResponse = self.get_response(request)
        _log(request, source.correlation_id, response, begun)
        return response

    async def _answer_async(self, request: HttpRequest) -> HttpResponse:
        source, begun = _Source(self.get_metadata, request), time.perf_counter()
        with ambient_metadata(source):
            response: HttpResponse = await self.get_response(request)
        _log(request, source.correlation_id, response, begun)
        return response


def _log(request: HttpRequest, request_id: str, response: HttpResponse, begun: float) -> None:
    """Write the request to the step log, without its query, which may hold private data."""
    if steplog.enabled():
        subject, seconds = f"{request.method} {request.path}", time.perf_counter() - begun
        steplog.log("web", subject, flow_id=request_id, outcome=str(response.status_code), seconds=seconds)


class _Source:
    """The metadata of one request, computed when a command is sent: most requests need no user."""

    def __init__(self, get_metadata: Callable[[HttpRequest], Metadata], request: HttpRequest) -> None:
        self._get_metadata = get_metadata
        self._request = request
        self.correlation_id = (request.headers.get("X-Request-ID") or new_id())[:255]

    def __call__(self) -> Metadata:
        found = self._get_metadata(self._request)
        return dataclasses.replace(
            found,
            request=found.request or self.correlation_id,
            correlation_id=found.correlation_id or self.correlation_id,
        )
