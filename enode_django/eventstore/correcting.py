"""Corrections of stored streams in a Postgres store."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC
from typing import Any

from django.db import transaction
from django.db.backends.base.base import BaseDatabaseWrapper

from enode_django.eventstore import known_corrections, statements
from enode_django.eventstore.base import Corrected, Correction, StreamRecord
from enode_django.eventstore.limits import holds
from enode_django.eventstore.rows import execute, record_of, run
from enode_django.exceptions import AggregateNotFound, CorrectionOutdated


def correct(
    connection: BaseDatabaseWrapper,
    aggregate_root_id: str,
    version: int,
    events: bytes | None,
    by: str,
    reason: str,
    last: int,
) -> Correction:
    """Correct as `EventStore.correct` does. Blocks while another correction is being made."""
    check_exists(holds(aggregate_root_id), aggregate_root_id, version)
    with transaction.atomic(using=connection.alias):
        run(connection, statements.LOCK_OUT_CORRECTORS)
        ((newest,),) = execute(connection, statements.LAST_CORRECTION, (aggregate_root_id, version))
        check_newest(aggregate_root_id, version, newest, last)
        made = execute(connection, statements.CORRECT, (events, by, reason, aggregate_root_id, version))
        check_exists(bool(made), aggregate_root_id, version)
        known_corrections.note(connection, True)
        return _correction_of(made[0])


def check_newest(aggregate_root_id: str, version: int, newest: int, last: int) -> None:
    """Raise `CorrectionOutdated` unless the stream's newest correction is ``last``, which the caller knows."""
    if newest != last:
        raise CorrectionOutdated(
            f"version {version} of {aggregate_root_id!r} was corrected meanwhile: its newest correction is {newest}, "
            f"and this one was made after {last}; look at what it says now, and correct that"
        )


def check_exists(exists: bool, aggregate_root_id: str, version: int) -> None:
    """Raise `AggregateNotFound` if the stream does not exist."""
    if not exists:
        raise AggregateNotFound(
            f"{aggregate_root_id!r} has no stored version {version!r} that could be corrected; check the id"
        )


def corrections(connection: BaseDatabaseWrapper, aggregate_root_id: str) -> Sequence[Correction]:
    if not holds(aggregate_root_id):
        return []
    return list(map(_correction_of, execute(connection, statements.CORRECTIONS_OF, (aggregate_root_id,))))


def corrected_since(connection: BaseDatabaseWrapper, number: int) -> Sequence[Corrected]:
    """Return corrections as `Shard.corrected_since` does; later reads of this process apply them."""
    found = [Corrected(*row) for row in execute(connection, statements.CORRECTED_SINCE, (number,))]
    if found:
        known_corrections.note(connection, True)
    return found


def original(connection: BaseDatabaseWrapper, aggregate_root_id: str, version: int) -> StreamRecord | None:
    if not holds(aggregate_root_id):
        return None
    return next(map(record_of, execute(connection, statements.ORIGINAL, (aggregate_root_id, version))), None)


def _correction_of(row: tuple[Any, ...]) -> Correction:
    made = Correction(*row)
    return made._replace(corrected_at=made.corrected_at.astimezone(UTC))
