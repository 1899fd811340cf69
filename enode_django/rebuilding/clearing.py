"""Dropping the tables of a generation without blocking others for long.

To drop a table with foreign keys, PostgreSQL locks the tables they point to, which blocks readers of these. So the slow
part, such as deleting a million checkpoints, comes first, in small transactions without locks on other tables. Then
each foreign key is dropped in its own transaction. The schema is dropped last: while it exists, the next rebuild knows
that something is left to drop.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import islice
from typing import TypeVar

from django.db import transaction

from enode_django.concurrency.backoff import delays
from enode_django.concurrency.stopping import pause
from enode_django.databases import execute, lift_statement_timeout
from enode_django.eventing.checkpoints import CHECKPOINT
from enode_django.eventstore import sqlstates
from enode_django.exceptions import RebuildError, TablesInUse
from enode_django.rebuilding.definitions import quoted
from enode_django.rebuilding.shadow import Shadow

Value = TypeVar("Value")

LOCK_TIMEOUT = "5s"
"""``lock_timeout`` of transactions that make tables. Writers of the tables that foreign keys point to wait for them."""
SHORT_LOCK_TIMEOUT = "200ms"
"""``lock_timeout`` of `shortly`: while it waits, so do readers of the tables that foreign keys point to."""
ATTEMPTS = 20
"""Attempts of `shortly`, with growing pauses: half a minute in all."""
LOCK_NOT_AVAILABLE = ("55P03", "40P01")
CHECKPOINTS_AT_ONCE = 10_000

_ONE_AT_A_TIME = "SELECT pg_advisory_xact_lock(hashtextextended(%s, 0))"
_DELETE = f"""
    WITH portion AS (
        SELECT subscriber, generation, aggregate_root_id FROM {CHECKPOINT}
        WHERE subscriber = %s AND generation = %s AND aggregate_root_id > %s ORDER BY aggregate_root_id LIMIT %s
    ), gone AS (
        DELETE FROM {CHECKPOINT} AS known USING portion
        WHERE (known.subscriber, known.generation, known.aggregate_root_id)
            = (portion.subscriber, portion.generation, portion.aggregate_root_id)
    )
    SELECT max(aggregate_root_id) FROM portion
"""
_FOREIGN_KEYS = """
    SELECT conrelid::regclass::text, quote_ident(conname) FROM pg_constraint
    WHERE contype = 'f' AND connamespace = (SELECT oid FROM pg_namespace WHERE nspname = %s)
    ORDER BY conrelid, conname
"""
_SCHEMAS = "SELECT nspname::text FROM pg_namespace WHERE nspname = ANY(%s)"


@contextmanager
def changing(alias: str, name: str, lock_timeout: str = LOCK_TIMEOUT) -> Iterator[None]:
    """Run a transaction that makes or drops tables of the subscriber ``name``, one at a time for each subscriber.

    Raises `TablesInUse` if a lock is not available in time, and `RebuildError` if a statement is refused.
    """
    try:
        with transaction.atomic(using=alias):
            execute(alias, _ONE_AT_A_TIME, (f"rebuild {name}",))
            execute(alias, "SELECT set_config('lock_timeout', %s, true)", (lock_timeout,))
            lift_statement_timeout(alias)
            yield
    except sqlstates.DATABASE_ERRORS as error:
        if sqlstates.sqlstate(error) in LOCK_NOT_AVAILABLE:
            raise TablesInUse(
                f"tables that those of {name} point to, or what an earlier rebuild has made of them, are in "
                "use by a long transaction; see pg_stat_activity, and try again"
            ) from error
        if sqlstates.is_unavailable(error):
            raise
        raise RebuildError(f"tables like those of {name} cannot be made: {sqlstates.message(error)}") from error


def clear(shadow: Shadow) -> None:
    """Drop what exists of a shadow. Can be repeated. Not for use in a transaction. Raises `TablesInUse`."""
    _delete_checkpoints(shadow)
    for table, constraint in execute(shadow.alias, _FOREIGN_KEYS, (shadow.schema,)).fetchall():
        drop = f"ALTER TABLE IF EXISTS {table} DROP CONSTRAINT IF EXISTS {constraint}"
        shortly(shadow, partial(execute, shadow.alias, drop, None))
    shortly(shadow, shadow.drop_tables)
    _delete_checkpoints(shadow)  # of a task that ran until its tables were dropped
    shortly(shadow, partial(execute, shadow.alias, f"DROP SCHEMA IF EXISTS {quoted(shadow.schema)}", None))


def left_over(shadows: Iterable[Shadow]) -> Sequence[Shadow]:
    """Return those shadows, all in one database, whose schemas still exist."""
    known = {shadow.schema: shadow for shadow in shadows}
    if not known:
        return []
    alias = next(iter(known.values())).alias
    return [known[name] for (name,) in execute(alias, _SCHEMAS, (list(known),)).fetchall()]


def _delete_checkpoints(shadow: Shadow) -> None:
    last: str | None = ""
    while last is not None:
        parameters = (shadow.subscriber, shadow.generation, last, CHECKPOINTS_AT_ONCE)
        (last,) = execute(shadow.alias, _DELETE, parameters).fetchone() or (None,)


def shortly(shadow: Shadow, step: Callable[[], Value]) -> Value:
    """Run ``step`` in its own transaction with `SHORT_LOCK_TIMEOUT`, so that others do not wait long behind its locks.
    Not for use in a transaction. Raises as `changing` does, `TablesInUse` after `ATTEMPTS` attempts."""
    for delay in islice(delays(0.1, 2.0), ATTEMPTS - 1):
        try:
            with changing(shadow.alias, shadow.subscriber, SHORT_LOCK_TIMEOUT):
                return step()
        except TablesInUse:
            pause(delay)
    with changing(shadow.alias, shadow.subscriber, SHORT_LOCK_TIMEOUT):
        return step()
