"""The steps of a command in a worker, for `enode_django.telemetry.steplog`: handled and committed."""

from __future__ import annotations

import time
from collections.abc import Callable

from enode_django.bus.results import CommandResult
from enode_django.commanding.cache import Slot
from enode_django.commanding.committer import Committed
from enode_django.commanding.decisions import Decision, DecisionKind, Envelope
from enode_django.eventstore.base import StreamRecord
from enode_django.exceptions import MessageError
from enode_django.serialization.codec import StoredRefusal, read_stored
from enode_django.telemetry import steplog

Take = Callable[[Slot, Envelope], Decision]


def logged(take: Take) -> Take:
    """Return ``take`` with logging: how each command was handled, and how long that took."""

    def log_and_take(slot: Slot, envelope: Envelope) -> Decision:
        begun = time.perf_counter()
        entry = take(slot, envelope)
        record = entry.record
        _log_of(
            "command",
            envelope,
            version=entry.rests_on if record is None or record.version is None else record.version,
            outcome=_handled(entry),
            seconds=time.perf_counter() - begun,
        )
        return entry

    return log_and_take


def log_committed(committed: Committed, seconds: float) -> None:
    """Log the outcomes of a batch. ``seconds`` is how long the whole batch took."""
    for envelope, record, result, _ in committed.finished:
        version = record.version if record is not None else result.version if result is not None else None
        outcome = _stored(record) if record is not None else _decided(result)
        _log_of("commit", envelope, version=version, outcome=outcome, seconds=seconds)


def _log_of(part: str, envelope: Envelope, *, version: int | None, outcome: str, seconds: float) -> None:
    steplog.log(
        part,
        envelope.type_name,
        flow_id=steplog.flow_id_of(envelope.metadata, envelope.id),
        command_id=envelope.id,
        aggregate_root_id=envelope.aggregate_root_id,
        version=version,
        outcome=outcome,
        seconds=seconds,
    )


def _handled(entry: Decision) -> str:
    if entry.kind in (DecisionKind.STREAM, DecisionKind.REFUSAL) and entry.record is not None:
        return _stored(entry.record, names_events=True)
    if entry.kind is DecisionKind.REPEAT:
        return "repeated: its outcome should be stored"
    if entry.kind is DecisionKind.POSTPONED:
        return f"postponed: {_error_of(entry.result) if entry.result is not None else 'it waits behind another'}"
    return _decided(entry.result)


def _stored(record: StreamRecord, *, names_events: bool = False) -> str:
    try:
        stored = read_stored(record.events)
    except MessageError as error:
        return f"failed: {error}"
    if isinstance(stored, StoredRefusal):
        return f"refused: {stored.type_name}"
    return ", ".join(dict.fromkeys(event.type_name for event in stored.events)) if names_events else "stored"


def _decided(result: CommandResult | None) -> str:
    if result is None:
        return "decided"
    if result.error_type:
        return f"{result.status.value}: {_error_of(result)}"
    return str(result.status.value).replace("_", " ")


def _error_of(result: CommandResult) -> str:
    return f"{result.error_type}: {result.error_message}"
