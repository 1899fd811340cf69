"""Turn a handled command into a row to be stored, or into an answer without a row."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from enode_django.bus.results import CommandResult, CommandStatus, crash, failure
from enode_django.commanding.decisions import Envelope
from enode_django.domain.aggregate import AggregateRoot
from enode_django.domain.declarations import plain_of
from enode_django.domain.messages import DomainEvent, stamp_of
from enode_django.domain.refusals import DomainException, VersionMismatch
from enode_django.eventstore.base import StreamRecord, make_record
from enode_django.exceptions import (
    AggregateAlreadyExists,
    AggregateNotFound,
    AggregateTypeMismatch,
    EnodeError,
    MessageTooLarge,
)
from enode_django.serialization.codec import WireCommand, encode_refusal, encode_stream
from enode_django.serialization.crashes import CommandCrashed
from enode_django.serialization.plain import pack
from enode_django.serialization.registry import types
from enode_django.serialization.sent_commands import SentCommand
from enode_django.telemetry import steplog

logger = logging.getLogger("enode_django.commands")

SENDERS_ERRORS = (AggregateAlreadyExists, AggregateNotFound, AggregateTypeMismatch)
"""Mistakes of the sender, not of the handler, so a traceback would not help."""

NAMES_OF_SENDERS_ERRORS = frozenset(error.__name__ for error in SENDERS_ERRORS)


def failed(envelope: Envelope, error: BaseException) -> CommandResult:
    """Return the answer to a command that an exception ended: a `Crash`, unless its sender is told of its mistake."""
    if envelope.reply_to and isinstance(error, SENDERS_ERRORS):
        return failure(envelope.id, envelope.aggregate_root_id, error)
    is_told = bool(envelope.reply_to)
    is_kept = not is_told or envelope.failed is not None
    return crash(envelope.id, envelope.aggregate_root_id, error, with_traceback=is_kept, is_told=is_told)


def ids_of(command: Envelope | WireCommand) -> dict[str, str]:
    """Return the ids of a command as attributes of a log record."""
    return {"command_id": command.id, "aggregate_root_id": command.aggregate_root_id}


def log_mistake(envelope: Envelope, result: CommandResult) -> None:
    """Log a mistake of the sender. Called when the verdict counts: the handler of a repeat may find the same mistake,
    but the repeat gets its stored answer."""
    if result.error_type in NAMES_OF_SENDERS_ERRORS:
        extra = {**ids_of(envelope), "correlation_id": steplog.flow_id_of(envelope.metadata, envelope.id)}
        logger.warning("command %s %r failed: %s", envelope.type_name, envelope.id, result.error_message, extra=extra)


def stream_of(
    envelope: Envelope, aggregate: AggregateRoot, result: Any, sent: Sequence[SentCommand], max_bytes: int
) -> StreamRecord:
    """Return the row of an aggregate's uncommitted events, and of the commands that its handler sends. Raises
    `InvalidField`, `TypeNameError` or `MessageTooLarge`."""
    events: Sequence[DomainEvent] = aggregate._enode_uncommitted
    metadata = envelope.metadata
    stamp = stamp_of(events[0])
    encoded = encode_stream(events, result, sent)
    size = len(encoded) + len(metadata)
    if size > max_bytes:
        raise _too_large(_EVENTS, size, max_bytes)
    return make_record(
        (
            stamp.aggregate_root_id,
            stamp.version,
            envelope.id,
            types.name_of(type(aggregate)),
            envelope.type_name,
            stamp.timestamp,
            encoded,
            metadata,
        )
    )


def refusal_of(
    envelope: Envelope, aggregate: AggregateRoot | None, refusal: DomainException, max_bytes: int
) -> StreamRecord:
    """Return the row of a durable refusal. Raises the errors of `stream_of`, and those of the code of the refusal's
    class."""
    events = encode_refusal(refusal)
    _check_size(_EVENTS, len(events) + len(envelope.metadata), max_bytes)
    return StreamRecord(
        envelope.aggregate_root_id,
        None,
        envelope.id,
        types.name_of(type(aggregate)) if aggregate is not None else "",
        envelope.type_name,
        datetime.now(UTC),
        events,
        envelope.metadata,
    )


def crash_record(
    envelope: Envelope, aggregate: AggregateRoot | None, error: BaseException, max_bytes: int
) -> StreamRecord | None:
    """Return the row of a crash that a process manager handles, or None for one that cannot be stored."""
    assert envelope.command is not None
    try:
        crash = CommandCrashed.of(envelope.command, error, sender=envelope.crash_handler, body=envelope.body)
        return refusal_of(envelope, aggregate, crash, max_bytes)
    except EnodeError as unstorable:
        logger.error(
            "the crash of command %r cannot be told to %s: %s", envelope.id, envelope.crash_handler, unstorable
        )
        return None


def check_version(expected_version: int, aggregate_root_id: str, version: int) -> None:
    """Raise `VersionMismatch` if the versions differ. ``version`` is the one that the command would build on, stored or
    not. If the store turns out to have another one, the refusal is decided again, like every other."""
    if version != expected_version:
        raise VersionMismatch(
            f"{aggregate_root_id!r} has the version {version}, not {expected_version}; "
            "look at it as it is now, and send another command",
            expected_version=expected_version,
            version=version,
        )


def nothing_changed(envelope: Envelope, version: int, value: Any, max_bytes: int) -> CommandResult:
    """Return the answer to a command that changed nothing. ``value`` can be encoded, and is not changed afterwards.
    Raises `MessageTooLarge`."""
    if value is not None:
        _check_size("result", len(pack(value)), max_bytes)
    return CommandResult(
        status=CommandStatus.NOTHING_CHANGED,
        command_id=envelope.id,
        aggregate_root_id=envelope.aggregate_root_id,
        version=version,
        value=value,
    )


def refused_for_now(envelope: Envelope, refusal: DomainException, max_bytes: int) -> CommandResult:
    """Return the answer of a refusal that is not stored. Raises as `refusal_of` does."""
    _check_size("refusal", len(encode_refusal(refusal)), max_bytes)
    return CommandResult(
        status=CommandStatus.REFUSED,
        command_id=envelope.id,
        aggregate_root_id=envelope.aggregate_root_id,
        error_type=types.name_of(type(refusal)),
        error_message=refusal.message,
        error_fields=plain_of(refusal),
    )


_EVENTS = "events, the commands sent with them and the metadata"


def _check_size(what: str, size: int, max_bytes: int) -> None:
    """Raise `MessageTooLarge` if the size is above the limit. Events and answers must fit into a message of the queue,
    and this is the last moment to refuse them."""
    if size > max_bytes:
        raise _too_large(what, size, max_bytes)


def _too_large(what: str, size: int, max_bytes: int) -> MessageTooLarge:
    return MessageTooLarge(
        f"the {what} of the command take {size} bytes, more than the {max_bytes} that EVENTS_MAX_BYTES and the "
        "queue allow; keep large values elsewhere and store a reference"
    )
