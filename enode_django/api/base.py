"""The base of all views of the API."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from django.utils.cache import patch_cache_control
from rest_framework.permissions import BasePermission, IsAuthenticated
from rest_framework.settings import api_settings
from rest_framework.throttling import ScopedRateThrottle
from rest_framework.views import APIView

from enode_django.api.problems import handle_exception
from enode_django.databases import without_atomic_requests

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from rest_framework.request import Request
    from rest_framework.response import Response


class Throttle(ScopedRateThrottle):
    """Limits the rate of a scope. A scope without a rate in ``DEFAULT_THROTTLE_RATES`` is not limited."""

    def get_rate(self) -> str | None:
        return cast("str | None", api_settings.DEFAULT_THROTTLE_RATES.get(self.scope or ""))


def throttles(defaults: Iterable[Any]) -> list[Any]:
    """Return `Throttle` and the project's default throttles. `ScopedRateThrottle` is left out: it would count each
    request again, and raise for a scope without a rate."""
    return [Throttle, *(each for each in defaults if each is not ScopedRateThrottle)]


class ApiView(APIView):
    """Allows authenticated users, is throttled by ``throttle_scope``, and answers errors with problem details."""

    permission_classes: Any = [IsAuthenticated]
    throttle_classes: Any = throttles(api_settings.DEFAULT_THROTTLE_CLASSES)
    throttle_scope = "enode-queries"

    @classmethod
    def as_view(cls, **initkwargs: Any) -> Any:
        """Return the view, exempt from ``ATOMIC_REQUESTS`` on all databases: a command must be durable when it is
        answered, and no request may wait inside a transaction."""
        return without_atomic_requests(super().as_view(**initkwargs))

    def finalize_response(self, request: Request, response: Any, *arguments: Any, **named: Any) -> Response:
        """Keep answers out of shared caches, such as Django's cache of a whole site: they depend on the user and the
        moment."""
        final = super().finalize_response(request, response, *arguments, **named)
        if not final.has_header("Cache-Control"):
            patch_cache_control(final, no_cache=True, private=True)
        return final

    def get_exception_handler(self) -> Callable[..., Any]:
        return handle_exception


class MayViewStreams(BasePermission):
    def has_permission(self, request: Request, view: Any) -> bool:
        return bool(request.user and request.user.has_perm("enode_django.view_eventstream"))


class MayViewPayload(BasePermission):
    """Allows the user to see the content of events, states and results."""

    def has_permission(self, request: Request, view: Any) -> bool:
        return may_view_payload(request)


def may_view_payload(request: Request) -> bool:
    return bool(request.user and request.user.has_perm("enode_django.view_payload"))
