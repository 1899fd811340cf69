"""Turn the outcome of a command into a response."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from enode_django.api.problems import Problem, problem_body
from enode_django.bus.results import CommandResult
from enode_django.domain.refusals import DomainException, VersionMismatch
from enode_django.exceptions import CommandTimeout
from enode_django.serialization.json_text import json_value
from enode_django.web.failures import Failure

_VERSION = re.compile(r'"(\d{1,18})"', re.ASCII)
_STATUSES: Mapping[str, int] = {
    "AggregateAlreadyExists": 409,
    "AggregateTypeMismatch": 409,
    "AggregateNotFound": 404,
    "CommandIdReused": 422,
    "InvalidField": 400,
    "InvalidFields": 400,
    "InvalidId": 400,
    "MessageTooLarge": 413,
}
"""HTTP statuses of failures that the sender can mend, by the name of the exception's class."""


def outcome(result: CommandResult) -> dict[str, Any]:
    """Return the response body for a command that was handled."""
    return {
        "id": result.command_id,
        "aggregate_root_id": result.aggregate_root_id,
        "status": result.status.value,
        "version": result.version,
        "value": json_value(result.value),
        "event_types": list(result.event_types),
        "parked": list(result.parked),
    }


def etag(version: int | None) -> dict[str, str]:
    return {} if version is None else {"ETag": f'"{version}"'}


def version_in(text: str) -> int | None:
    """Return the version in a strong ETag; None for any other text."""
    match = _VERSION.fullmatch(text)
    return None if match is None else int(match[1])


def problem_of(error: Failure) -> Problem:
    """Return the problem for a command that was refused or failed, with its ids."""
    result: CommandResult = error.result
    ids = {"command_id": result.command_id, "aggregate_root_id": result.aggregate_root_id}
    return Problem(*_told(error), members={**_fields_of(error), **ids})


def body_of(error: Failure) -> dict[str, Any]:
    """Return the body of the problem for a refused or failed command, without its ids."""
    return problem_body(*_told(error), _fields_of(error))


def _told(error: Failure) -> tuple[int, str, str]:
    """Return status, text and kind. The text of an unexpected error stays in the logs, since it may hold what the
    sender must not see."""
    if isinstance(error, DomainException):
        return 412 if isinstance(error, VersionMismatch) else 409, error.message, error.result.error_type
    status = _STATUSES.get(error.error_type, 500)
    if status == 500:
        return 500, "the command failed, and took no effect", "enode:failed"
    return status, error.error_message, f"enode:{error.error_type}"


def _fields_of(error: Failure) -> dict[str, Any]:
    """Return the stored fields of a domain exception; empty for other exceptions."""
    fields: dict[str, Any] = json_value(error.result.error_fields)
    return fields


def timed_out(error: CommandTimeout, command_id: str, location: str) -> Problem:
    """Return the problem for a timeout. Its member ``stored`` is true if the command was executed, null if that is not
    known."""
    executed: CommandResult | None = error.executed
    known = {"stored": None} if executed is None else {"stored": True, "version": executed.version}
    detail = (
        "the command was sent and has not been answered yet: it may still be executed"
        if executed is None
        else "the command was executed, but not handled by all subscribers yet: it will be"
    )
    members = {"command_id": command_id, **known, "missing": list(error.missing)}
    headers = {"Location": location, **etag(executed.version if executed else None)}
    return Problem(504, detail, kind="enode:timeout", headers=headers, members=members)
