"""What the error of a handler means: it passes, another row is in the way, or the aggregate has failed."""

from __future__ import annotations

from datetime import UTC, datetime

import psycopg

from enode_django.eventing.work import Failure
from enode_django.eventstore.base import StreamRecord
from enode_django.eventstore.sqlstates import UNIQUE_VIOLATION, is_unavailable, sqlstate
from enode_django.exceptions import EnodeError, Retry, UnknownMessageType

_NOT_MIGRATED = ("42P01", "42703")
"""A table or a column is missing: code that runs ahead of its migrations must not park every aggregate there is."""


def is_transient(error: BaseException) -> bool:
    """Return True if the call should simply be tried again: the database or the queue is away, or two transactions are
    in each other's way. A `Retry` is no such error: what raised it is tried again when it says."""
    if isinstance(error, EnodeError):
        return error.retriable and not isinstance(error, UnknownMessageType | Retry)
    if isinstance(error.__cause__ or error, psycopg.InterfaceError):
        return False  # a closed cursor, say: what is lost is an OperationalError
    return is_unavailable(error) or sqlstate(error) in _NOT_MIGRATED


_NOT_UNIQUE = (UNIQUE_VIOLATION, "23P01")
"""The second is that of an exclusion constraint."""


def is_conflict_of_rows(error: BaseException) -> bool:
    """Return True if the database refuses a row because of what another row has at the moment."""
    return sqlstate(error) in _NOT_UNIQUE


def failure_of(record: StreamRecord, error: Exception) -> Failure:
    """Return the failure of an aggregate that a handler's error means. A transient error ends the batch: it is raised
    again, or, if it is none of ours, as `HandlerInterrupted`."""
    failure = Failure(record.version, record.command_id, error, datetime.now(UTC))
    if isinstance(error, EnodeError) and is_transient(error):
        raise error
    if is_transient(error):
        raise HandlerInterrupted(record.aggregate_root_id, failure) from error
    return failure


class HandlerInterrupted(Exception):
    """A handler has met an error of a database after which its transaction may be broken, and the connection lost. It
    rolls the batch back. ``failure`` is what the error means for the aggregate, unless the subscriber's own database is
    away."""

    def __init__(self, aggregate_root_id: str, failure: Failure) -> None:
        super().__init__(f"interrupted at {failure.place} of {aggregate_root_id}: {failure.text}")
        self.aggregate_root_id = aggregate_root_id
        self.failure = failure
