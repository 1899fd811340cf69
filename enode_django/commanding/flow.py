"""The way of a command, step by step, as log records: sent, handled, committed, followed.

The logger ``enode_django.flow`` is silent unless somebody sets it to DEBUG, as `enodedev` does. Whoever tells steps
asks `is_told` once for a whole batch, so that nothing is paid for a command otherwise.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from enode_django.commanding.cache import Slot
from enode_django.commanding.committing import Committed
from enode_django.commanding.entries import Entry, EntryKind, Envelope
from enode_django.commanding.results import CommandResult
from enode_django.domain.messages import Command
from enode_django.equeue.messages import SendResult
from enode_django.eventstore.base import StreamRecord
from enode_django.exceptions import MessageError
from enode_django.serialization.codec import StoredRefusal, decode_metadata, read_stored
from enode_django.serialization.registry import types

logger = logging.getLogger("enode_django.flow")

FIELDS = ("part", "flow_id", "command_id", "subject", "aggregate_root_id", "version", "outcome", "seconds")
"""The attributes of each log record. ``flow_id`` is the correlation id, or the id of the first command if there is
none; ``subject`` is a type name, a subscriber or a request; ``version`` and ``seconds`` may be None."""

Take = Callable[[Slot, Envelope], Entry]


def is_told() -> bool:
    return logger.isEnabledFor(logging.DEBUG)


def tell(
    part: str,
    subject: str,
    *,
    flow_id: str,
    outcome: str,
    command_id: str = "",
    aggregate_root_id: str = "",
    version: int | None = None,
    seconds: float | None = None,
) -> None:
    fields: dict[str, Any] = {
        "part": part,
        "flow_id": flow_id,
        "command_id": command_id,
        "subject": subject,
        "aggregate_root_id": aggregate_root_id,
        "version": version,
        "outcome": outcome,
        "seconds": seconds,
    }
    logger.debug("%s %s %s: %s", part, subject, aggregate_root_id, outcome, extra=fields)


def flow_of(metadata: bytes, command_id: str) -> str:
    """Return the id that all steps of one request share."""
    try:
        return decode_metadata(metadata).correlation_id or command_id
    except MessageError:
        return command_id


def tell_sent(commands: Sequence[tuple[Command, bytes]], sent: Sequence[SendResult], seconds: float) -> None:
    for (command, metadata), place in zip(commands, sent, strict=True):
        tell(
            "queue",
            types.name_of(type(command)),
            flow_id=flow_of(metadata, command.id),
            command_id=command.id,
            aggregate_root_id=command.aggregate_root_id,
            outcome=f"stored in {place.topic}/{place.queue} at {place.offset}",
            seconds=seconds,
        )


def telling(take: Take) -> Take:
    """``take``, which also tells how each command was handled, and how long that took."""

    def told(slot: Slot, envelope: Envelope) -> Entry:
        begun = time.perf_counter()
        entry = take(slot, envelope)
        record = entry.record
        _tell_of(
            "command",
            envelope,
            version=entry.rests_on if record is None or record.version is None else record.version,
            outcome=_handled(entry),
            seconds=time.perf_counter() - begun,
        )
        return entry

    return told


def tell_committed(committed: Committed, seconds: float) -> None:
    """``seconds``: what the whole batch took."""
    for envelope, record, result, _ in committed.finished:
        version = record.version if record is not None else result.version if result is not None else None
        outcome = _stored(record) if record is not None else _decided(result)
        _tell_of("commit", envelope, version=version, outcome=outcome, seconds=seconds)


def _tell_of(part: str, envelope: Envelope, *, version: int | None, outcome: str, seconds: float) -> None:
    tell(
        part,
        envelope.type_name,
        flow_id=flow_of(envelope.metadata, envelope.id),
        command_id=envelope.id,
        aggregate_root_id=envelope.aggregate_root_id,
        version=version,
        outcome=outcome,
        seconds=seconds,
    )


def _handled(entry: Entry) -> str:
    if entry.kind is EntryKind.STREAM and entry.record is not None:
        return _events_of(entry.record)
    if entry.kind is EntryKind.REFUSAL and entry.record is not None:
        return _stored(entry.record)
    if entry.kind is EntryKind.REPEAT:
        return "repeated: its outcome should be stored"
    if entry.kind is EntryKind.POSTPONED:
        return (
            f"postponed: {_error_of(entry.result)}"
            if entry.result is not None
            else "postponed: it waits behind another"
        )
    return _decided(entry.result)


def _stored(record: StreamRecord) -> str:
    try:
        stored = read_stored(record.events)
    except MessageError as error:
        return f"failed: {error}"
    return f"refused: {stored.type_name}" if isinstance(stored, StoredRefusal) else "stored"


def _events_of(record: StreamRecord) -> str:
    try:
        stored = read_stored(record.events)
    except MessageError as error:
        return f"failed: {error}"
    return "refused" if isinstance(stored, StoredRefusal) else _joined(event.type_name for event in stored.events)


def _joined(names: Iterable[str]) -> str:
    return ", ".join(dict.fromkeys(names))


def _decided(result: CommandResult | None) -> str:
    if result is None:
        return "decided"
    if result.error_type:
        return f"{result.status.value}: {_error_of(result)}"
    return str(result.status.value).replace("_", " ")


def _error_of(result: CommandResult) -> str:
    return f"{result.error_type}: {result.error_message}"
