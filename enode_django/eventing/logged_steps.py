"""The last steps of a command: how subscribers handled its events. See `enode_django.telemetry.steplog`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from enode_django.eventing.base_projections import BaseProjection
from enode_django.eventing.pending import Message, PendingAggregate, Progress, follows_events
from enode_django.eventing.process_managers import ProcessManager
from enode_django.eventing.subscribers import Subscriber
from enode_django.telemetry import steplog


def log_handled(
    subscriber: Subscriber, works: Iterable[PendingAggregate], progress: Mapping[str, Progress], seconds: float
) -> None:
    """Log the announced streams that the subscriber handles. ``seconds`` is the time of the whole batch."""
    part = part_of(subscriber)
    for work in works:
        reached = progress[work.aggregate_root_id]
        for message in work.messages:
            is_refusal = message.version is None
            record = work.refusals.get(message.command_id) if is_refusal else work.streams.get(message.version or 0)
            outcome = _outcome(message, reached)
            if record is not None and outcome and (is_refusal or follows_events(subscriber, record)):
                steplog.log(
                    part,
                    subscriber.name,
                    flow_id=steplog.flow_id_of(record.metadata, record.command_id),
                    command_id=record.command_id,
                    aggregate_root_id=record.aggregate_root_id,
                    version=record.version,
                    outcome=outcome,
                    seconds=seconds,
                )


def part_of(subscriber: Subscriber) -> str:
    if isinstance(subscriber, BaseProjection):
        return "projection"
    return "process" if isinstance(subscriber, ProcessManager) else "handler"


def _outcome(message: Message, progress: Progress) -> str:
    """Return an empty text if it was not tried."""
    failure = progress.failure
    if progress.parked is not None and not message.is_handled(progress):
        return f"waits: the aggregate is parked by {progress.parked}"
    if message.is_done(progress):
        return "handled"
    if failure is not None and (failure.version, failure.command_id) == (message.version, message.command_id):
        return f"failed: {failure.text}"
    return ""
