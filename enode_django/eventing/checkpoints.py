"""Store the version that each subscriber has reached in each aggregate, in the thread's connection ``alias``.

`save` never lowers a version, even if several processes call it. Checkpoints are those of the projection's tables that
are in use; inside a transaction that holds a lock on these tables they stay in use.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple

from django.db import transaction
from psycopg import Cursor

from enode_django.databases import execute
from enode_django.eventstore.positions import Position
from enode_django.scheduling.rows import TABLE as SCHEDULED

CHECKPOINT = "enode_django_checkpoint"
SUBSCRIPTION = "enode_django_subscription"
PARKED = "enode_django_parkedevent"
GENERATION_CHECK = "enode_django_generationcheck"
PROCESS_STATE = "enode_django_processstate"
PROJECTION_GENERATION = "enode_django_projectiongeneration"
_REFUSAL = "enode_django_handledrefusal"

# A rebuilt projection has another generation of tables, and checkpoints of its own.
_GENERATION = f"coalesce((SELECT generation FROM {PROJECTION_GENERATION} WHERE subscriber = %s), 0)"
OF_SUBSCRIBER = f"subscriber = %s AND generation = {_GENERATION}"

# Arrays are binary: as text they take twice as long to write.
_READ = f"""
    SELECT aggregate_root_id, version FROM {CHECKPOINT}
    WHERE {OF_SUBSCRIBER} AND aggregate_root_id = ANY(%b::text[])
"""
_LOCK = f"{_READ} ORDER BY aggregate_root_id FOR UPDATE"
_MAKE = f"""
    INSERT INTO {CHECKPOINT} (subscriber, generation, aggregate_root_id, version)
    SELECT %s, {_GENERATION}, missing.id, 0 FROM unnest(%b::text[]) AS missing (id) ORDER BY missing.id
    ON CONFLICT DO NOTHING
"""
_SAVE = f"""
    INSERT INTO {CHECKPOINT} AS known (subscriber, generation, aggregate_root_id, version)
    SELECT %s, {_GENERATION}, reached.id, reached.version
    FROM unnest(%b::text[], %b::bigint[]) AS reached (id, version) ORDER BY reached.id
    ON CONFLICT (subscriber, generation, aggregate_root_id) DO UPDATE SET version = EXCLUDED.version
    WHERE known.version < EXCLUDED.version
"""
_MOVE = f"{_SAVE} RETURNING known.aggregate_root_id"
_SET_BACK = f"""
    UPDATE {CHECKPOINT} AS known SET version = kept.version
    FROM unnest(%b::text[], %b::bigint[]) AS kept (id, version)
    WHERE {OF_SUBSCRIBER} AND aggregate_root_id = kept.id AND known.version > kept.version
"""
_FORGET = f"DELETE FROM {CHECKPOINT} WHERE {OF_SUBSCRIBER} AND aggregate_root_id = ANY(%b::text[])"

_CLAIM = f"""
    INSERT INTO {CHECKPOINT} (subscriber, generation, aggregate_root_id, version)
    SELECT 'rows ' || md5(%s), {_GENERATION}, claimed.digest, 0 FROM unnest(%b::text[]) AS claimed (digest)
    ORDER BY claimed.digest ON CONFLICT DO NOTHING
"""
_UNCLAIM = f"""
    DELETE FROM {CHECKPOINT}
    WHERE subscriber = 'rows ' || md5(%s) AND generation = {_GENERATION} AND aggregate_root_id = ANY(%b::text[])
"""

_SUBSCRIBE = f"""
    INSERT INTO {SUBSCRIPTION}
        (subscriber, shard, started_at, start_generation, start_position, swept_generation, swept_position,
         store_generation, healed_generation, fingerprint)
    VALUES (%s, %s, statement_timestamp(), %s, %s, %s, %s, %s, %s, %s) ON CONFLICT DO NOTHING
"""
_SUBSCRIBED = f"""
    SELECT started_at, start_generation, start_position, swept_generation, swept_position
    FROM {SUBSCRIPTION} WHERE subscriber = %s AND shard = %s
"""
_SWEPT = f"""
    UPDATE {SUBSCRIPTION} SET swept_generation = %s, swept_position = %s
    WHERE subscriber = %s AND shard = %s AND (swept_generation, swept_position) < (%s, %s)
"""

_SUBSCRIPTIONS = f"""
    SELECT subscriber, min(started_at), max(kept_since) FROM {SUBSCRIPTION} GROUP BY subscriber ORDER BY subscriber
"""
_KEEP = f"""
    UPDATE {SUBSCRIPTION} SET kept_since = CASE WHEN %s THEN coalesce(kept_since, statement_timestamp()) END
    WHERE subscriber = %s
"""

_KEYS = "unnest(%b::text[], %b::text[]) AS key (root, command)"
_REFUSALS_HANDLED = f"""
    SELECT aggregate_root_id, command_id FROM {_REFUSAL} JOIN {_KEYS}
    ON aggregate_root_id = key.root AND command_id = key.command WHERE subscriber = %s
"""
_REFUSALS_SAVE = f"""
    INSERT INTO {_REFUSAL} (subscriber, aggregate_root_id, command_id)
    SELECT %s, key.root, key.command FROM {_KEYS} ORDER BY key.root, key.command ON CONFLICT DO NOTHING
"""
_REFUSALS_NOTE = f"{_REFUSALS_SAVE} RETURNING aggregate_root_id, command_id"
_REFUSALS_OLD = f"""
    SELECT aggregate_root_id, command_id FROM {_REFUSAL}
    WHERE subscriber = %s AND handled_at < statement_timestamp() - %s::interval LIMIT %s
"""
_REFUSALS_FORGET = f"""
    DELETE FROM {_REFUSAL} USING {_KEYS}
    WHERE subscriber = %s AND aggregate_root_id = key.root AND command_id = key.command
"""

_TABLES = (CHECKPOINT, SUBSCRIPTION, _REFUSAL, PARKED, GENERATION_CHECK, PROCESS_STATE, SCHEDULED)
# Scheduled commands that are not deadlines have an empty subscriber.
_FORGET_ALL = "DELETE FROM {} WHERE subscriber = %s AND subscriber <> ''"

RefusalKey = tuple[str, str]
"""(aggregate root id, command id)"""


class Subscription(NamedTuple):
    """A subscription in one shard, in which both positions are. ``started_at`` is aware."""

    started_at: datetime
    start_position: Position
    swept_position: Position


def read(alias: str, subscriber: str, ids: Sequence[str]) -> dict[str, int]:
    """Return the versions reached. An aggregate without a checkpoint is left out."""
    return dict(read_cursor(alias, subscriber, ids).fetchall())


def read_cursor(alias: str, subscriber: str, ids: Sequence[str]) -> Cursor[Any]:
    """Return a cursor of what `read` returns, for `pipelined`."""
    return execute(alias, _READ, (subscriber, subscriber, ids), may_prepare=len(ids) == 1)


def lock_cursor(alias: str, subscriber: str, ids: Sequence[str]) -> Cursor[Any]:
    """Return a cursor of what `lock_known` returns, for `pipelined`."""
    return execute(alias, _LOCK, (subscriber, subscriber, ids), may_prepare=len(ids) == 1)


def lock(alias: str, subscriber: str, ids: Sequence[str]) -> dict[str, int]:
    """Return the versions of all these aggregates, locked until the transaction ends. Make missing checkpoints."""
    locked = lock_known(alias, subscriber, ids)
    missing = [id for id in ids if id not in locked]
    if missing:
        make(alias, subscriber, missing)
        locked.update(lock_known(alias, subscriber, missing))
    return locked


def make(alias: str, subscriber: str, ids: Sequence[str]) -> None:
    """Make checkpoints at version 0 for the aggregates that have none."""
    execute(alias, _MAKE, (subscriber, subscriber, ids))


def lock_known(alias: str, subscriber: str, ids: Sequence[str]) -> dict[str, int]:
    """Return the versions reached as `read` does, locked until the transaction ends."""
    return dict(lock_cursor(alias, subscriber, ids).fetchall())


def save(alias: str, subscriber: str, versions: Mapping[str, int]) -> None:
    if versions:
        _save(alias, _SAVE, subscriber, versions)


def move_cursor(alias: str, subscriber: str, versions: Mapping[str, int]) -> Cursor[Any] | None:
    """Save versions as `save` does. Return a cursor of the ids of the aggregates whose version was lower before; None
    without versions."""
    if not versions:
        return None
    return _save(alias, _MOVE, subscriber, versions)


def _save(alias: str, statement: str, subscriber: str, versions: Mapping[str, int]) -> Cursor[Any]:
    parameters = (subscriber, subscriber, list(versions), list(versions.values()))
    return execute(alias, statement, parameters, may_prepare=True)


def set_back(alias: str, subscriber: str, versions: Mapping[str, int]) -> None:
    """Set checkpoints back to these versions: later ones are no longer stored."""
    if versions:
        execute(alias, _SET_BACK, (list(versions), list(versions.values()), subscriber, subscriber))


def forget(alias: str, subscriber: str, ids: Sequence[str]) -> None:
    if ids:
        execute(alias, _FORGET, (subscriber, subscriber, ids))


def claim(alias: str, subscriber: str, digests: Sequence[str]) -> None:
    """Lock things without rows in the projection's tables until the transaction ends. Another transaction that claims
    one of them waits. The rows made for this have a name that no subscriber has, and are never visible to others."""
    if digests:
        execute(alias, _CLAIM, (subscriber, subscriber, digests))
        execute(alias, _UNCLAIM, (subscriber, subscriber, digests))


def subscription(alias: str, subscriber: str, shard: int) -> Subscription | None:
    """Return where the subscriber began in that shard, or None if it has not begun."""
    for started_at, *places in _fetch(alias, _SUBSCRIBED, (subscriber, shard)):
        return Subscription(started_at, Position(*places[:2]), Position(*places[2:]))
    return None


def subscribe(
    alias: str,
    subscriber: str,
    shard: int,
    position: Position,
    generation: int | None = None,
    fingerprint: str | None = None,
) -> None:
    """Let the subscriber begin at ``position``, before its transaction, if it has not begun. ``generation`` is the
    shard's generation, if it differs from the position's; ``fingerprint`` is that of a projection's code."""
    place = (position.generation, position.transaction_id)
    generation = position.generation if generation is None else generation
    execute(alias, _SUBSCRIBE, (subscriber, shard, *place, *place, generation, generation, fingerprint))


def save_swept(alias: str, subscriber: str, shard: int, position: Position) -> None:
    place = (position.generation, position.transaction_id)
    execute(alias, _SWEPT, (*place, subscriber, shard, *place))


def handled_refusals(alias: str, subscriber: str, keys: Iterable[RefusalKey]) -> set[RefusalKey]:
    """Return the refusals that are remembered as handled."""
    roots, commands = _columns(keys)
    return set(_fetch(alias, _REFUSALS_HANDLED, (roots, commands, subscriber))) if roots else set()


def save_refusals(alias: str, subscriber: str, keys: Iterable[RefusalKey]) -> None:
    roots, commands = _columns(keys)
    if roots:
        execute(alias, _REFUSALS_SAVE, (subscriber, roots, commands))


def note_refusals_cursor(alias: str, subscriber: str, keys: Iterable[RefusalKey]) -> Cursor[Any] | None:
    """Save refusals as `save_refusals` does. Return a cursor of those that were not saved before; None without any."""
    roots, commands = _columns(keys)
    return execute(alias, _REFUSALS_NOTE, (subscriber, roots, commands)) if roots else None


def old_refusals(alias: str, subscriber: str, age: str, limit: int) -> set[RefusalKey]:
    """Return refusals that were handled longer ago than ``age``, an interval such as ``"1 day"``."""
    return set(_fetch(alias, _REFUSALS_OLD, (subscriber, age, limit)))


def forget_refusals(alias: str, subscriber: str, keys: Iterable[RefusalKey]) -> None:
    roots, commands = _columns(keys)
    if roots:
        execute(alias, _REFUSALS_FORGET, (roots, commands, subscriber))


def subscribed(alias: str) -> list[str]:
    """Return the keys of all subscribers that ever began in this database."""
    return [name for (name,) in _fetch(alias, f"SELECT DISTINCT subscriber FROM {SUBSCRIPTION}", ())]


def has_subscriptions(alias: str) -> bool:
    """Return True if the database has the table of subscriptions."""
    return _fetch(alias, f"SELECT to_regclass('{SUBSCRIPTION}') IS NOT NULL", ()) == [(True,)]


def subscriptions(alias: str) -> Sequence[tuple[str, datetime, datetime | None]]:
    """Return for each subscriber that ever began in this database: its key, when it began, and since when it is kept
    (None: it is not) if no code owns it."""
    return _fetch(alias, _SUBSCRIPTIONS, ())


def keep(alias: str, subscriber: str, *, is_kept: bool) -> bool:
    """Set or clear the mark of a subscription that stays although no code owns it. Return False if there is none."""
    return execute(alias, _KEEP, (is_kept, subscriber)).rowcount > 0


def forget_subscriber(alias: str, subscriber: str) -> int:
    """Delete everything that is remembered of a subscriber, and its deadlines. Return the number of rows."""
    with transaction.atomic(using=alias):
        return sum(execute(alias, _FORGET_ALL.format(table), (subscriber,)).rowcount for table in _TABLES)


def _columns(keys: Iterable[RefusalKey]) -> tuple[list[str], list[str]]:
    known = list(keys)
    return [root for root, _ in known], [command for _, command in known]


def _fetch(alias: str, statement: str, parameters: Sequence[Any]) -> list[Any]:
    return execute(alias, statement, parameters).fetchall()
