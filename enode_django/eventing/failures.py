"""Classify the error of a handler: it is transient, or the aggregate has failed."""

from __future__ import annotations

from datetime import UTC, datetime

from enode_django.eventing.pending import Failure
from enode_django.eventstore.base import StreamRecord
from enode_django.eventstore.sqlstates import is_transient
from enode_django.exceptions import EnodeError


def failure_of(record: StreamRecord, error: BaseException) -> Failure:
    """Return the failure of the aggregate. Raises a transient error, as `HandlerInterrupted` if it is not our own."""
    failure = Failure(record.version, record.command_id, error, datetime.now(UTC))
    if isinstance(error, EnodeError) and is_transient(error):
        raise error
    if is_transient(error):
        raise HandlerInterrupted(record.aggregate_root_id, failure) from error
    return failure


class HandlerInterrupted(Exception):
    """Rolls the batch back after a handler's transient error: its transaction may be broken, and the connection lost.
    ``failure`` is the error as a failure of the aggregate, unless the subscriber's own database is away."""

    def __init__(self, aggregate_root_id: str, failure: Failure) -> None:
        super().__init__(f"interrupted at {failure.place} of {aggregate_root_id}: {failure.text}")
        self.aggregate_root_id = aggregate_root_id
        self.failure = failure
