"""Turn the outcome of a command into a response."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from enode_django.api.problems import Problem, problem_body
from enode_django.commanding.results import CommandResult, CommandStatus
from enode_django.domain.refusals import DomainException, VersionMismatch
from enode_django.exceptions import CommandTimeout, UnknownMessageType
from enode_django.serialization.crashes import CommandCrashed
from enode_django.serialization.json_text import json_value
from enode_django.serialization.registry import types

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
"""HTTP statuses of failures that the sender can do something about, by the class's name."""


def outcome(result: CommandResult) -> dict[str, Any]:
    """Return the response body for a command that did not fail."""
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


def failure_of(result: CommandResult) -> Problem | None:
    """The typed fields of a domain exception are members. Of an error that nobody foresaw the text stays in the logs:
    what it tells is not meant for the sender."""
    if result.status is not CommandStatus.FAILED:
        return None
    ids = {"command_id": result.command_id, "aggregate_root_id": result.aggregate_root_id}
    refusal = _refusal_class(result.error_type)
    if refusal is not None:
        status = 412 if issubclass(refusal, VersionMismatch) else 409
        members = {**json_value(result.error_fields), **ids}
        return Problem(status, result.error_message, kind=result.error_type, members=members)
    status = _STATUSES.get(result.error_type, 500)
    if status == 500:
        return Problem(500, "the command failed, and took no effect", kind="enode:failed", members=ids)
    return Problem(status, result.error_message, kind=f"enode:{result.error_type}", members=ids)


def _refusal_class(name: str) -> type[DomainException] | None:
    """None for what is none, a crash that is stored as one among it."""
    try:
        found = types.class_of(DomainException, name)
    except UnknownMessageType:
        return None
    return None if issubclass(found, CommandCrashed) else found


def refused_unseen(result: CommandResult) -> dict[str, Any]:
    """Return a problem for a stored refusal whose class may be gone."""
    status = 412 if result.error_type == types.name_of(VersionMismatch) else 409
    return problem_body(status, result.error_message, result.error_type, json_value(result.error_fields))


def timed_out(error: CommandTimeout, command_id: str, location: str) -> Problem:
    """``stored`` is null where that is not known."""
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
