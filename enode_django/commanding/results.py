"""What became of a command, as its sender sees it, and as it travels."""

from __future__ import annotations

import dataclasses
from enum import Enum
from typing import Any

from enode_django.eventstore.base import StreamRecord
from enode_django.exceptions import CommandFailed, MalformedMessage
from enode_django.serialization.codec import StoredRefusal, read_stored
from enode_django.serialization.plain import pack, unpack

LONGEST_ERROR_TEXT = 1_000
"""Characters of an exception's text that reach the sender."""
RECEIPT_MAX_BYTES = 8_192
"""More than a failure takes."""


class CommandStatus(Enum):
    SUCCESS = "success"
    """Its events are durable."""
    NOTHING_CHANGED = "nothing_changed"
    """It was handled and changed nothing."""
    FAILED = "failed"
    """It took no effect, and never will."""


class WaitFor(Enum):
    EXECUTED = "executed"
    """Until the outcome is durable."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class CommandResult:
    """``value`` is what the handler set; ``version`` the aggregate's after the command (None where it has none).

    Of a failure, ``error_type`` is the type name of a domain exception or the class name of another one, and
    ``error_fields`` are the typed fields of a domain exception.
    """

    status: CommandStatus
    command_id: str
    aggregate_root_id: str
    version: int | None = None
    value: Any = None
    error_type: str = ""
    error_message: str = ""
    error_fields: dict[str, Any] = dataclasses.field(default_factory=dict)

    def raise_for_status(self) -> CommandResult:
        """Raises `CommandFailed` for a failure; else returns the result itself."""
        if self.status is CommandStatus.FAILED:
            raise CommandFailed(
                f"{self.error_type}: {self.error_message}", error_type=self.error_type, error_fields=self.error_fields
            )
        return self


def failure(command_id: str, aggregate_root_id: str, error: BaseException) -> CommandResult:
    return CommandResult(
        status=CommandStatus.FAILED,
        command_id=command_id,
        aggregate_root_id=aggregate_root_id,
        error_type=type(error).__name__,
        error_message=_text_of(error),
    )


def _text_of(error: BaseException) -> str:
    try:
        text = str(error)
        return text if len(text) <= LONGEST_ERROR_TEXT else f"{text[:LONGEST_ERROR_TEXT]}…"
    except Exception as broken:  # application code: a __str__ that fails must not fail the worker
        return f"its text cannot be had: {type(broken).__name__}"


def stored_result(record: StreamRecord) -> CommandResult:
    """The outcome that a stored row stands for; raises `MalformedMessage`."""
    stored = read_stored(record.events)
    if isinstance(stored, StoredRefusal):
        return CommandResult(
            status=CommandStatus.FAILED,
            command_id=record.command_id,
            aggregate_root_id=record.aggregate_root_id,
            error_type=stored.type_name,
            error_message=stored.message,
            error_fields=stored.fields,
        )
    return CommandResult(
        status=CommandStatus.SUCCESS,
        command_id=record.command_id,
        aggregate_root_id=record.aggregate_root_id,
        version=record.version,
        value=stored.result,
    )


def encode_result(result: CommandResult) -> bytes:
    return pack(
        (
            result.status.value,
            result.command_id,
            result.aggregate_root_id,
            result.version,
            result.value,
            result.error_type,
            result.error_message.encode(errors="replace").decode(),
            result.error_fields,
        )
    )


def encode_receipt(result: CommandResult) -> bytes:
    """As `encode_result`, of a bounded size: what is too large leaves its value, fields and most of its text behind."""
    body = encode_result(result)
    if len(body) <= RECEIPT_MAX_BYTES:
        return body
    text = result.error_message[:LONGEST_ERROR_TEXT]
    return encode_result(dataclasses.replace(result, value=None, error_message=text, error_fields={}))


def decode_result(body: bytes) -> CommandResult:
    """Raises `MalformedMessage`."""
    try:
        status, command_id, aggregate_root_id, version, value, error_type, error_message, error_fields = unpack(body)
        return CommandResult(
            status=CommandStatus(status),
            command_id=command_id,
            aggregate_root_id=aggregate_root_id,
            version=version,
            value=value,
            error_type=error_type,
            error_message=error_message,
            error_fields=error_fields,
        )
    except (TypeError, ValueError) as error:
        raise MalformedMessage(f"{len(body)} bytes are no result of ours: {error}") from error
