"""The rows of scheduled commands and deadlines. The clock of the database decides what is due.

A command that is due becomes a row of the outbox in one statement, and its relay sends it: nothing is lost in between,
and it takes effect once by its id.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

from django.db import transaction
from psycopg.errors import LockNotAvailable

from enode_django.databases import execute
from enode_django.outbox import rows as outbox
from enode_django.outbox.rows import NewRow
from enode_django.scheduling.due import Changes, DeadlineKey, Due, Scheduled

TABLE = "enode_django_scheduledcommand"
FIRED_AT_ONCE = 1_000
LOCK_TIMEOUT = "200ms"
"""The longest wait for a row that another transaction changes. The relay has more to send."""
LOOK_AGAIN = 0.25
"""Seconds until rows are fired that another transaction has kept locked."""

_INSERT = f"""
    INSERT INTO {TABLE} (aggregate_root_id, command_id, body, due_at)
    SELECT new.*, coalesce(%s::timestamptz, statement_timestamp() + %s * interval '1 second')
    FROM unnest(%s::text[], %s::text[], %s::bytea[]) AS new
"""
_SET = f"""
    INSERT INTO {TABLE} (subscriber, scope, name, aggregate_root_id, command_id, body, due_at)
    VALUES (%s, %s, %s, %s, %s, %s, coalesce(%s::timestamptz, statement_timestamp() + %s * interval '1 second'))
    ON CONFLICT (subscriber, scope, name) WHERE subscriber <> '' DO UPDATE SET
        aggregate_root_id = excluded.aggregate_root_id, command_id = excluded.command_id, body = excluded.body,
        due_at = excluded.due_at, scheduled_at = excluded.scheduled_at
"""
_CANCEL_COMMAND = f"DELETE FROM {TABLE} WHERE command_id = %s AND subscriber = ''"
# Several rows are always locked in the order of their ids, so a relay and a worker do not deadlock.
_LOCK = f"""
    SELECT FROM {TABLE} WHERE (subscriber, scope, name) IN (SELECT * FROM unnest(%s::text[], %s::text[], %s::text[]))
        AND subscriber <> '' ORDER BY id FOR UPDATE
"""
_CANCEL = f"DELETE FROM {TABLE} WHERE subscriber = %s AND scope = %s AND name = %s AND subscriber <> ''"
_NEXT = f"SELECT extract(epoch FROM due_at - statement_timestamp()) FROM {TABLE} ORDER BY due_at, id LIMIT 1"
_LOOK = f"""
    SELECT EXISTS (SELECT FROM {outbox.TABLE} WHERE rejected_at IS NULL), ({_NEXT})
"""
# The second condition is looked at again if somebody has changed the row meanwhile: a deadline that was put off stays.
_FIRE = f"""
    WITH first AS MATERIALIZED (
        SELECT id FROM {TABLE} WHERE due_at <= statement_timestamp() ORDER BY due_at, id LIMIT %s
    ), locked AS MATERIALIZED (
        SELECT id FROM {TABLE} WHERE due_at <= statement_timestamp() AND id IN (SELECT id FROM first)
        ORDER BY id FOR UPDATE
    ), due AS (
        DELETE FROM {TABLE} WHERE id IN (SELECT id FROM locked) RETURNING *
    )
    INSERT INTO {outbox.TABLE} (aggregate_root_id, command_id, body)
    SELECT aggregate_root_id, command_id, body FROM due ORDER BY due_at, id
"""
# Leaves the rows out that others keep locked, however many come first.
_FIRE_OTHERS = _FIRE.replace("LIMIT %s", "LIMIT %s FOR UPDATE SKIP LOCKED")
_LIMIT_WAITING = f"SET LOCAL lock_timeout = '{LOCK_TIMEOUT}'"


def insert(alias: str, commands: Sequence[NewRow], due: Due) -> None:
    """Schedule commands in the transaction that is open in the database, or at once if there is none. Raises as
    `outbox.rows.insert` does."""
    if commands:
        with outbox.named_tables(alias):
            columns = tuple(map(list, zip(*commands, strict=True)))
            execute(alias, _INSERT, (due.moment, due.after.total_seconds(), *columns))
            outbox.wake_after_commit(alias)


def cancel(alias: str, command_id: str) -> bool:
    """Delete a scheduled command that is not a deadline. Return False if there is no such command. If it is being
    fired, or changed by another transaction, block until that ends. Raises as `insert` does."""
    with outbox.named_tables(alias), transaction.atomic(using=alias, savepoint=False):
        outbox.read_after_locks(alias)
        return execute(alias, _CANCEL_COMMAND, (command_id,)).rowcount > 0


def change(alias: str, changes: Changes) -> None:
    """Set and cancel deadlines in the transaction that is open in the database. Doing it again changes nothing. Raises
    as `insert` does."""
    if changes:
        with outbox.named_tables(alias):
            if len(changes) > 1:
                execute(alias, _LOCK, tuple(map(list, zip(*changes, strict=True))))
            for key, scheduled in sorted(changes.items(), key=lambda item: item[0]):
                _change(alias, key, scheduled)
            if any(changes.values()):
                outbox.wake_after_commit(alias)  # the next due time may have changed


def _change(alias: str, key: DeadlineKey, scheduled: Scheduled | None) -> None:
    if scheduled is None:
        execute(alias, _CANCEL, key)
    else:
        due = scheduled.due
        execute(alias, _SET, (*key, *scheduled.command, due.moment, due.after.total_seconds()))


def look(alias: str) -> tuple[bool, float]:
    """Return whether rows wait in the outbox, and the seconds until a command is due (infinite: none waits)."""
    row = execute(alias, _LOOK, None).fetchone()
    waits, seconds = row if row is not None else (False, None)
    return waits, inf if seconds is None else float(seconds)


def fire(alias: str) -> float:
    """Move commands that are due into the outbox, up to `FIRED_AT_ONCE`, in the order of their times. Return the
    seconds until the next one is due (0: it is; infinite: none is known, or a relay that is at work looks after it).
    One that another transaction keeps locked for longer than `LOCK_TIMEOUT` is left to a later call: it must not hold
    up the others. Blocks."""
    with transaction.atomic(using=alias):
        if not outbox.try_lock(alias):
            return inf
        fired = _fire(alias)
    seconds = _next_due(alias)
    return seconds if fired or seconds else LOOK_AGAIN


def _fire(alias: str) -> int:
    """Return the number of commands that were moved."""
    try:
        with transaction.atomic(using=alias):
            execute(alias, _LIMIT_WAITING, None)
            return execute(alias, _FIRE, (FIRED_AT_ONCE,)).rowcount
    except LockNotAvailable:
        return execute(alias, _FIRE_OTHERS, (FIRED_AT_ONCE,)).rowcount


def _next_due(alias: str) -> float:
    row = execute(alias, _NEXT, None).fetchone()
    return inf if row is None else max(0.0, float(row[0]))
