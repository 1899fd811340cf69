"""Aggregates that a subscriber has set aside after repeated failure, in the subscriber's database.

The row of an aggregate that has attempts names the failed event. Further rows are refusals that wait behind it. Later
versions need no rows, since the checkpoint says where to go on. The failed event is tried again when it is due, or when
the code has changed since the last try. A worker that finds an aggregate parked locks its rows against removal, so that
unparking takes everything into account that was passed over.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from typing import Any, NamedTuple

from django.db import transaction
from psycopg import Cursor

from enode_django.databases import execute
from enode_django.eventing.checkpoints import PARKED
from enode_django.eventstore.base import StreamRecord

_PARKED = f"""
    SELECT aggregate_root_id, error_type FROM {PARKED}
    WHERE subscriber = %s AND aggregate_root_id = ANY(%b::text[]) ORDER BY aggregate_root_id, attempts = 0, id
    FOR KEY SHARE
"""
COLUMNS = """subscriber, aggregate_root_type, aggregate_root_id, version, command_id, error_type, error, attempts,
    first_failed_at, last_failed_at, next_try_at, fingerprint"""
_PARK = f"""
    INSERT INTO {PARKED} AS known ({COLUMNS}) VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s, statement_timestamp(),
        statement_timestamp() + make_interval(secs => %s), %s)
    ON CONFLICT (subscriber, aggregate_root_id, command_id) DO UPDATE SET error_type = EXCLUDED.error_type,
    error = EXCLUDED.error, attempts = known.attempts + EXCLUDED.attempts, last_failed_at = EXCLUDED.last_failed_at,
    next_try_at = EXCLUDED.next_try_at, fingerprint = EXCLUDED.fingerprint
"""
_WAIT = f"""
    INSERT INTO {PARKED} (subscriber, aggregate_root_type, aggregate_root_id, version, command_id, error_type, error,
        attempts, first_failed_at, last_failed_at)
    VALUES (%s, %s, %s, NULL, %s, '', 'waits behind what failed', 0, statement_timestamp(), statement_timestamp())
    ON CONFLICT DO NOTHING
"""
_LIST = f"""
    SELECT {COLUMNS} FROM {PARKED} WHERE %s IN ('', subscriber) AND %s IN ('', aggregate_root_id)
    ORDER BY attempts = 0, id
"""
# Fingerprints with different tags cannot be compared. An aggregate that is being tried is not due: if its worker dies,
# the next one must not follow at once.
_CLAIM = f"""
    UPDATE {PARKED} SET fingerprint = %s, next_try_at = statement_timestamp()
        + CASE WHEN next_try_at IS NULL THEN NULL
               ELSE least(interval '1 day', greatest(interval '1 minute', statement_timestamp() - first_failed_at)) END
    WHERE id = (
        SELECT id FROM {PARKED}
        WHERE subscriber = %s AND attempts > 0
            AND (%s = 0 OR last_failed_at <= statement_timestamp() - make_interval(secs => %s)) AND (
            next_try_at <= statement_timestamp()
            OR fingerprint <> %s AND split_part(fingerprint, ':', 1) = split_part(%s, ':', 1)
        )
        ORDER BY next_try_at, id LIMIT 1 FOR NO KEY UPDATE SKIP LOCKED
    )
    RETURNING aggregate_root_id
"""
_HURRY = f"""
    UPDATE {PARKED} SET next_try_at = statement_timestamp()
    WHERE subscriber = %s AND aggregate_root_id = %s AND attempts > 0
"""
_REMOVE = f"DELETE FROM {PARKED} WHERE subscriber = %s AND aggregate_root_id = %s AND command_id = %s"


class Parked(NamedTuple):
    """A row of a parked aggregate. ``version`` is None for a refusal; ``attempts`` is 0 for one that only waits. Times
    are aware. ``next_try_at`` is None if only a change of the code makes it tried again by itself; ``fingerprint`` is
    that of the code that failed."""

    subscriber: str
    aggregate_root_type: str
    aggregate_root_id: str
    version: int | None
    command_id: str
    error_type: str
    error: str
    attempts: int
    first_failed_at: datetime
    last_failed_at: datetime
    next_try_at: datetime | None = None
    fingerprint: str = ""


def parked_among(alias: str, subscriber: str, ids: Sequence[str]) -> dict[str, str]:
    """Return the error's class name for each parked aggregate; its rows are locked until the transaction ends."""
    return parked_in(parked_cursor(alias, subscriber, ids))


def parked_cursor(alias: str, subscriber: str, ids: Sequence[str]) -> Cursor[Any]:
    """Return a cursor for `parked_in`, of what `parked_among` returns."""
    return execute(alias, _PARKED, (subscriber, ids), may_prepare=len(ids) == 1)


def parked_in(cursor: Cursor[Any]) -> dict[str, str]:
    return dict(reversed(cursor.fetchall()))  # the first row of each counts


def park(
    alias: str,
    parked: Parked,
    waiting: Iterable[StreamRecord] = (),
    *,
    instead_of: Iterable[Parked] = (),
    pause: float | None = None,
) -> None:
    """Park an aggregate. Attempts are added up if the same event is parked already. ``waiting`` are refusals that wait
    behind it; the rows ``instead_of`` are removed. It is due in ``pause`` seconds (None: never)."""
    with transaction.atomic(using=alias):
        remove(alias, instead_of)
        execute(alias, _PARK, (*parked[:9], pause, parked.fingerprint))
        _insert_waiting(alias, parked.subscriber, waiting)


def wait_behind(alias: str, subscriber: str, aggregate_root_id: str, refusals: Iterable[StreamRecord]) -> bool:
    """Let refusals of the aggregate wait. Return False, and let none wait, if it is no longer parked."""
    with transaction.atomic(using=alias):
        if not parked_among(alias, subscriber, [aggregate_root_id]):
            return False
        _insert_waiting(alias, subscriber, refusals)
    return True


def _insert_waiting(alias: str, subscriber: str, refusals: Iterable[StreamRecord]) -> None:
    for refusal in refusals:
        parameters = (subscriber, refusal.aggregate_root_type, refusal.aggregate_root_id, refusal.command_id)
        execute(alias, _WAIT, parameters)


def claim_due(alias: str, subscriber: str, fingerprint: str, *, rested: float = 0.0) -> str | None:
    """Return the id of an aggregate that is due, or that code with this fingerprint has not tried yet, and that has not
    failed in the last ``rested`` seconds; None if there is none. No other caller gets it for a minute or longer."""
    claimed = execute(alias, _CLAIM, (fingerprint, subscriber, rested, rested, fingerprint, fingerprint)).fetchone()
    return None if claimed is None else claimed[0]


def hurry(alias: str, subscriber: str, aggregate_root_id: str) -> None:
    """Make the aggregate due at once."""
    execute(alias, _HURRY, (subscriber, aggregate_root_id))


def list_parked(alias: str, subscriber: str = "", aggregate_root_id: str = "") -> list[Parked]:
    """Return parked rows, the oldest first, those that only wait after all others. An empty argument stands for all."""
    return [Parked(*row) for row in execute(alias, _LIST, (subscriber, aggregate_root_id)).fetchall()]


def remove(alias: str, rows: Iterable[Parked]) -> None:
    with transaction.atomic(using=alias):
        for parked in rows:
            execute(alias, _REMOVE, (parked.subscriber, parked.aggregate_root_id, parked.command_id))


def release(alias: str, rows: Sequence[Parked], is_behind: Callable[[], bool]) -> None:
    """Unpark the aggregate that has these rows, unless it has other rows or ``is_behind()`` is true. At that call,
    nobody can find the aggregate parked and pass over it."""
    with transaction.atomic(using=alias):
        remove(alias, rows)
        if list_parked(alias, rows[0].subscriber, rows[0].aggregate_root_id) or is_behind():
            transaction.set_rollback(True, using=alias)
