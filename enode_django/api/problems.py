"""Turn errors of the API into problem details (RFC 9457)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from http.client import responses
from typing import Any
from urllib.parse import quote

from django.core.exceptions import PermissionDenied, RequestDataTooBig
from django.db import InterfaceError, OperationalError
from django.http import Http404, HttpResponse
from django.http.response import HttpResponseBase
from rest_framework import exceptions
from rest_framework.response import Response
from rest_framework.views import set_rollback

from enode_django.exceptions import InvalidFields, MessageTooLarge, Path, StoreUnavailable, TransportUnavailable

CONTENT_TYPE = "application/problem+json"
RETRY_AFTER = 2
"""Seconds that a worker or a database usually needs to come back."""
_STANDARD = frozenset({"type", "title", "status", "detail", "instance"})


class Problem(exceptions.APIException):
    """``kind`` is the end of ``type``, which is ``about:blank`` without one. ``members`` are additional members; an
    underscore is appended to the name of a standard member."""

    def __init__(
        self,
        status: int,
        detail: str,
        kind: str = "",
        *,
        headers: Mapping[str, str] | None = None,
        members: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(detail)
        self.status_code = status
        self.headers = headers or {}
        self.body = problem_body(status, detail, kind, members or {})


def problem_body(status: int, detail: str, kind: str = "", members: Mapping[str, Any] = {}) -> dict[str, Any]:
    named = {f"{name}_" if name in _STANDARD else name: value for name, value in members.items()}
    return {
        "type": type_of(kind),
        "title": responses.get(status, "Error"),
        "status": status,
        "detail": detail,
        **named,
    }


def type_of(kind: str) -> str:
    """
    >>> type_of("bank.InsufficientFunds")
    'urn:problem-type:bank.InsufficientFunds'
    """
    return f"urn:problem-type:{quote(kind, safe=':')}" if kind else "about:blank"


def invalid(errors: Mapping[Path, str]) -> Problem:
    """Return the problem for errors in the request's body, each with a JSON pointer."""
    listed = [{"pointer": pointer(path), "detail": text} for path, text in errors.items()]
    return Problem(400, "the request is not valid", kind="enode:invalid", members={"errors": listed})


def invalid_parameter(name: str, detail: str) -> Problem:
    errors = [{"parameter": name, "detail": detail}]
    return Problem(400, "the request is not valid", kind="enode:invalid", members={"errors": errors})


def _unparsed(error: exceptions.ParseError) -> Problem:
    """Return the problem for a body none of whose parts can be pointed to."""
    detail = str(error.detail)
    return Problem(400, detail, kind="enode:invalid", members={"errors": [{"pointer": "#", "detail": detail}]})


def pointer(path: Path) -> str:
    """Return the path as a URI fragment (RFC 6901).

    >>> pointer(("fields", "rates", "a/b c", 1))
    '#/fields/rates/a~1b%20c/1'
    >>> pointer(("\\ud800",))  # JSON allows a lone surrogate
    '#/%ED%A0%80'
    """
    parts = (str(part).replace("~", "~0").replace("/", "~1") for part in path)
    return "#" + "".join(f"/{quote(part, safe='~', errors='surrogatepass')}" for part in parts)


def unavailable(what: str) -> Problem:
    return Problem(
        503,
        f"{what} cannot be reached; send the same request again, with the same Idempotency-Key",
        kind="enode:unavailable",
        headers={"Retry-After": str(RETRY_AFTER)},
    )


def problem_of(error: Exception) -> Problem | None:
    """Return the problem for an error; None for an unexpected one, which Django answers and logs."""
    if isinstance(error, Problem):
        return error
    if isinstance(error, InvalidFields):
        return invalid(error.errors)
    if isinstance(error, MessageTooLarge):
        return Problem(413, str(error), kind="enode:MessageTooLarge")
    if isinstance(error, TransportUnavailable):
        return unavailable("the queue")
    if isinstance(error, (StoreUnavailable, OperationalError, InterfaceError)):
        return unavailable("the database")
    if isinstance(error, RequestDataTooBig):
        return Problem(413, "the body is larger than DATA_UPLOAD_MAX_MEMORY_SIZE of the settings")
    if isinstance(error, Http404):
        return Problem(404, "there is nothing here that you may see")
    if isinstance(error, PermissionDenied):
        return Problem(403, str(exceptions.PermissionDenied.default_detail))
    if isinstance(error, exceptions.ParseError):
        return _unparsed(error)
    if isinstance(error, exceptions.APIException):
        return _of_framework(error)
    return None


def _of_framework(error: exceptions.APIException) -> Problem:
    headers = {}
    if auth_header := getattr(error, "auth_header", None):
        headers["WWW-Authenticate"] = auth_header
    if wait := getattr(error, "wait", None):
        headers["Retry-After"] = f"{wait:.0f}"
    detail = error.detail if isinstance(error.detail, str) else json.dumps(error.detail)
    return Problem(error.status_code, detail, headers=headers)


def handle_exception(error: Exception, context: Mapping[str, Any]) -> HttpResponseBase | None:
    """Turn an error into a response, for `rest_framework.views.APIView.get_exception_handler`. The browsable API gets
    the framework's page."""
    problem = problem_of(error)
    if problem is None:
        return None
    set_rollback()
    renderer = getattr(context["request"], "accepted_renderer", None)
    if getattr(renderer, "format", "") == "api":
        return Response(problem.body, problem.status_code, headers=dict(problem.headers))
    body = json.dumps(problem.body)
    return HttpResponse(body, CONTENT_TYPE, problem.status_code, headers=dict(problem.headers))
