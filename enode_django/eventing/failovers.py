"""A subscriber's knowledge of the generations of the store, in the subscriber's database.

A new generation begins when a standby takes over, or a backup is restored: the newest events may be lost. When a
subscriber hears of it, everything that it had handled before is compared with the store. Each compared aggregate gets a
mark, so that events handled from then on do not count as erased. All functions use the connection ``alias``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from psycopg import Cursor

from enode_django.databases import execute
from enode_django.eventing.checkpoints import CHECKPOINT, GENERATION_CHECK, OF_SUBSCRIBER, PARKED, SUBSCRIPTION
from enode_django.eventstore.positions import Position

_KNOWN = f"""
    SELECT shard, store_generation, healed_generation, healed_id, compared_generation, compared_position
    FROM {SUBSCRIPTION} WHERE subscriber = %s
"""
_GENERATIONS = f"SELECT shard, store_generation FROM {SUBSCRIPTION} WHERE subscriber = %s FOR SHARE"
_NOTICE = f"""
    UPDATE {SUBSCRIPTION} SET store_generation = %s, healed_id = '', compared_generation = 0, compared_position = 0
    WHERE subscriber = %s AND shard = %s AND store_generation < %s
"""
_OF_GENERATION = "WHERE subscriber = %s AND shard = %s AND store_generation = %s"
_IDS_COMPARED = f"UPDATE {SUBSCRIPTION} SET healed_id = %s {_OF_GENERATION}"
_ROWS_COMPARED = f"UPDATE {SUBSCRIPTION} SET compared_generation = %s, compared_position = %s {_OF_GENERATION}"
_HEALED = f"UPDATE {SUBSCRIPTION} SET healed_generation = store_generation {_OF_GENERATION}"

_REBUILT = f"""
    UPDATE {SUBSCRIPTION} SET store_generation = %s, healed_generation = %s
    WHERE subscriber = %s AND shard = %s AND store_generation <= %s
"""

_CHECKED = f"""
    SELECT aggregate_root_id, max(generation) FROM {GENERATION_CHECK}
    WHERE subscriber = %s AND aggregate_root_id = ANY(%s) AND generation > %s GROUP BY aggregate_root_id
"""
_SAVE_CHECKS = f"""
    INSERT INTO {GENERATION_CHECK}
        (subscriber, shard, generation, aggregate_root_id, stored_version, handled_version, taken_back)
    SELECT %s, %s, %s, checked.* FROM unnest(%s::text[], %s::bigint[], %s::bigint[], %s::boolean[]) AS checked
    ON CONFLICT DO NOTHING
"""
_FORGET_CHECKS = (
    f"DELETE FROM {GENERATION_CHECK} WHERE subscriber = %s AND shard = %s AND handled_version <= stored_version"
)
_UNPARK = f"""
    DELETE FROM {PARKED} AS parked USING unnest(%s::text[], %s::bigint[]) AS kept (id, version)
    WHERE subscriber = %s AND aggregate_root_id = kept.id AND parked.version > kept.version
"""
# A row without attempts is not retried by itself: refusals that have waited behind a deleted row are due instead of it.
_MAKE_DUE = f"""
    UPDATE {PARKED} AS waiting
    SET attempts = 1, next_try_at = statement_timestamp(), error_type = 'Retry',
        error = 'waited behind an event that is no longer stored'
    WHERE subscriber = %s AND aggregate_root_id = ANY(%s::text[]) AND attempts = 0 AND NOT EXISTS (
        SELECT FROM {PARKED} AS failed WHERE failed.subscriber = waiting.subscriber
        AND failed.aggregate_root_id = waiting.aggregate_root_id AND failed.attempts > 0
    )
"""

_CLAIMS = f"""
    SELECT aggregate_root_id, version FROM {CHECKPOINT}
    WHERE {OF_SUBSCRIBER} AND aggregate_root_id > %s ORDER BY aggregate_root_id LIMIT %s
"""


class Known(NamedTuple):
    """The newest ``generation`` of a shard that a subscriber knows, and how much of what it had handled before was
    compared with the shard: everything, if ``healed`` is the same generation; else the aggregates up to ``healed_id``
    (None: all), and the swept versions below the position ``compared``."""

    generation: int
    healed: int
    healed_id: str | None
    compared: Position

    @property
    def is_healed(self) -> bool:
        return self.generation == self.healed


class Check(NamedTuple):
    """``stored`` is the newest version of an aggregate from before a generation, ``handled`` the version that the
    subscriber had reached when it heard of that."""

    stored: int
    handled: int

    @property
    def is_erased(self) -> bool:
        return self.handled > self.stored


def known(alias: str, subscriber: str) -> dict[int, Known]:
    """Return what the subscriber knows of each shard in which it has begun, by the shard's number."""
    return known_in(known_cursor(alias, subscriber))


def known_cursor(alias: str, subscriber: str) -> Cursor[Any]:
    """Return a cursor for `known_in`, of what `known` returns."""
    return execute(alias, _KNOWN, (subscriber,), may_prepare=True)


def known_in(cursor: Cursor[Any]) -> dict[int, Known]:
    return {row[0]: Known(row[1], row[2], row[3], Position(row[4], row[5])) for row in cursor.fetchall()}


def generations_cursor(alias: str, subscriber: str) -> Cursor[Any]:
    """Return a cursor of the newest known generation of each shard, which stays the same until the transaction ends."""
    return execute(alias, _GENERATIONS, (subscriber,), may_prepare=True)


def notice(alias: str, subscriber: str, shard: int, generation: int) -> bool:
    """Note a generation. Return False if the subscriber has heard of it, or of a later one, before."""
    return bool(execute(alias, _NOTICE, (generation, subscriber, shard, generation)).rowcount)


def ids_compared(alias: str, subscriber: str, shard: int, generation: int, until: str | None) -> None:
    """Note that aggregates up to this id (None: all) are compared, unless a later generation is known."""
    execute(alias, _IDS_COMPARED, (until, subscriber, shard, generation))


def rows_compared(alias: str, subscriber: str, shard: int, generation: int, until: Position) -> None:
    execute(alias, _ROWS_COMPARED, (until.generation, until.transaction_id, subscriber, shard, generation))


def healed(alias: str, subscriber: str, shard: int, generation: int) -> None:
    """Note that everything is compared, unless a later generation is known. Delete the marks that report nothing."""
    if execute(alias, _HEALED, (subscriber, shard, generation)).rowcount:
        execute(alias, _FORGET_CHECKS, (subscriber, shard))


def rebuilt(alias: str, subscriber: str, shard: int, generation: int) -> None:
    """Note that the rows which are put in use in this transaction were built of a shard in this generation. They have
    none of the events that were erased before it, and may have some that were stored since: compared with what had been
    stored before, these would count as erased."""
    if execute(alias, _REBUILT, (generation, generation, subscriber, shard, generation)).rowcount:
        execute(alias, _FORGET_CHECKS, (subscriber, shard))


def checked(alias: str, subscriber: str, ids: Iterable[str], after: int) -> dict[str, int]:
    """Return the newest generation after ``after`` for which each aggregate was compared; others are left out."""
    return dict(execute(alias, _CHECKED, (subscriber, list(ids), after)).fetchall())


def save_checks(
    alias: str, subscriber: str, shard: int, generation: int, checks: Mapping[str, Check], taken_back: bool
) -> None:
    """Mark aggregates as compared. Unpark what is no longer stored; what has waited behind that is tried at once."""
    ids, stored = list(checks), [check.stored for check in checks.values()]
    handled = [check.handled for check in checks.values()]
    back = [taken_back and check.is_erased for check in checks.values()]
    execute(alias, _SAVE_CHECKS, (subscriber, shard, generation, ids, stored, handled, back))
    if execute(alias, _UNPARK, (ids, stored, subscriber)).rowcount:
        execute(alias, _MAKE_DUE, (subscriber, ids))


def claims(alias: str, subscriber: str, after: str, limit: int) -> list[tuple[str, int]]:
    """Return the next ``limit`` checkpoints with aggregate root ids above ``after``, in the order of ids."""
    return execute(alias, _CLAIMS, (subscriber, subscriber, after, limit)).fetchall()


def next_transaction(alias: str) -> int:
    """Return an id that only transactions that begin to write from now on can get."""
    ((next_id,),) = execute(alias, "SELECT pg_snapshot_xmax(pg_current_snapshot())::text::bigint", ()).fetchall()
    return int(next_id)


def have_ended(alias: str, before: int) -> bool:
    """Return True if all transactions with lower ids have ended, on the whole server."""
    ((oldest,),) = execute(alias, "SELECT pg_snapshot_xmin(pg_current_snapshot())::text::bigint", ()).fetchall()
    return int(oldest) >= before
