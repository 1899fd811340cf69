"""The processes of a process manager as rows. All functions work inside a transaction of ``alias``."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping

from enode_django.databases import execute
from enode_django.eventing.checkpoints import PROCESS_STATE
from enode_django.eventing.processes import Process, WaitingEvent

# An existing row is locked, and not updated. So all transactions make and lock rows in the same order.
_MAKE = f"""
    INSERT INTO {PROCESS_STATE} AS known (subscriber, key)
    SELECT %s, wanted.key FROM unnest(%b::text[]) AS wanted (key) ORDER BY wanted.key COLLATE "C"
    ON CONFLICT (subscriber, key) DO UPDATE SET key = EXCLUDED.key WHERE false
"""
_READ = f"""
    SELECT key, state, waiting, version, ended_at IS NOT NULL FROM {PROCESS_STATE}
    WHERE subscriber = %s AND key = ANY(%b::text[])
"""
_SAVE = f"""
    UPDATE {PROCESS_STATE} AS known
    SET state = moved.state, waiting = moved.waiting::jsonb, version = moved.version,
        changed_at = statement_timestamp(),
        started_at = CASE WHEN moved.has_begun THEN coalesce(known.started_at, statement_timestamp()) END,
        ended_at = CASE WHEN moved.has_ended THEN statement_timestamp() END
    FROM unnest(%b::text[], %b::bytea[], %b::text[], %b::bigint[], %b::boolean[], %b::boolean[])
        AS moved (key, state, waiting, version, has_begun, has_ended)
    WHERE known.subscriber = %s AND known.key = moved.key
"""
_FORGET_EMPTY = f"""
    DELETE FROM {PROCESS_STATE}
    WHERE subscriber = %s AND key = ANY(%b::text[]) AND started_at IS NULL AND waiting = '[]'::jsonb
"""
_PRUNE = f"""
    DELETE FROM {PROCESS_STATE} WHERE id IN (
        SELECT id FROM {PROCESS_STATE}
        WHERE subscriber = %s AND (ended_at < statement_timestamp() - %s::interval
            OR started_at IS NULL AND changed_at < statement_timestamp() - %s::interval)
        LIMIT %s FOR UPDATE SKIP LOCKED
    ) RETURNING key, jsonb_array_length(waiting)
"""
_RUNNING = f"""
    SELECT id, state FROM {PROCESS_STATE} WHERE subscriber = %s AND started_at IS NOT NULL AND ended_at IS NULL
"""
_OLDEST_AND_NEWEST = f"""
    SELECT state FROM (({_RUNNING} ORDER BY id LIMIT %s) UNION ({_RUNNING} ORDER BY id DESC LIMIT %s)) AS running
    ORDER BY id
"""
PRUNED_AT_ONCE = 10_000


def lock(alias: str, subscriber: str, keys: Iterable[str]) -> dict[str, Process]:
    """Return the processes with these keys, locked until the transaction ends. Make missing rows."""
    wanted = list(keys)
    if not wanted:
        return {}
    execute(alias, _MAKE, (subscriber, wanted))
    rows = execute(alias, _READ, (subscriber, wanted)).fetchall()
    return {
        key: Process(bytes(state), tuple(WaitingEvent(*one) for one in json.loads(waiting)), version, has_ended)
        for key, state, waiting, version, has_ended in rows
    }


def save(alias: str, subscriber: str, locked: Iterable[str], changed: Mapping[str, Process]) -> None:
    """Store the changed processes, and delete the rows of the other locked ones that have nothing to keep."""
    if changed:
        some = changed.values()
        columns = (
            list(changed),
            [one.packed for one in some],
            [json.dumps(one.waiting) for one in some],
            [one.version for one in some],
            [one.has_begun for one in some],
            [one.has_ended for one in some],
        )
        execute(alias, _SAVE, (*columns, subscriber))
    unchanged = [key for key in locked if key not in changed]
    if unchanged:
        execute(alias, _FORGET_EMPTY, (subscriber, unchanged))


def running(alias: str, subscriber: str, each: int) -> list[bytes]:
    """Return the states of running processes: as many of the oldest as ``each`` says, and as many of the newest."""
    rows = execute(alias, _OLDEST_AND_NEWEST, (subscriber, each, subscriber, each)).fetchall()
    return [bytes(state) for (state,) in rows]


def prune(alias: str, subscriber: str, age: str) -> Mapping[str, int]:
    """Delete processes that ended longer ago than ``age``, an interval such as ``"30 days"``, and processes that have
    not begun within that age. Return the number of events that waited for each, by key."""
    return dict(execute(alias, _PRUNE, (subscriber, age, age, PRUNED_AT_ONCE)).fetchall())
