"""The rows of the outbox: written in the sender's transaction, read and deleted by the relay."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any, NamedTuple

import psycopg
from django.db import connections, transaction

from enode_django.conf import keeps_in_memory
from enode_django.databases import NOTICE_VANISHED_CLIENT, execute, healthy_connection, migrate_command
from enode_django.eventstore.dead_letters import ERROR_MAX, column_text
from enode_django.eventstore.sqlstates import DATABASE_ERRORS, UNDEFINED_TABLE, sqlstate
from enode_django.exceptions import ConfigurationError

TABLE = "enode_django_outboxcommand"
CHANNEL = "enode_outbox"
"""The channel of PostgreSQL on which a relay is woken."""
LONGEST_STANDSTILL = "60s"
"""The time that a relay may leave its transaction idle, far more than sending a batch takes. Then its session ends, and
with that its lock: it stands still, or its machine has vanished."""

_INSERT = f"""
    INSERT INTO {TABLE} (aggregate_root_id, command_id, body)
    SELECT * FROM unnest(%s::text[], %s::text[], %s::bytea[])
"""
_WAITING = f"""
    SELECT id, aggregate_root_id, command_id, body FROM (
        SELECT *, sum(octet_length(body)) OVER (ORDER BY id) - octet_length(body) AS bytes_before
        FROM (SELECT * FROM {TABLE} WHERE rejected_at IS NULL ORDER BY id LIMIT %s) AS first
    ) AS measured
    WHERE bytes_before < %s ORDER BY id
"""
_DELETE = f"DELETE FROM {TABLE} WHERE id = ANY(%s)"
_REJECT = f"UPDATE {TABLE} SET rejected_at = statement_timestamp(), error = %s WHERE id = %s"
_EACH_STATEMENT = "SET TRANSACTION ISOLATION LEVEL READ COMMITTED"
_LOCK = "SELECT pg_try_advisory_xact_lock(hashtextextended(%s, 0))"
_WAIT_FOR_LOCK = "SELECT pg_advisory_xact_lock(hashtextextended(%s, 0))"
_HAS_TABLE = "SELECT to_regclass(%s) IS NOT NULL AND NOT pg_is_in_recovery()"
_NOTIFY = f"NOTIFY {CHANNEL}"


class NewRow(NamedTuple):
    """A command to be written. ``body`` is the message as the queue gets it."""

    aggregate_root_id: str
    command_id: str
    body: bytes


class Row(NamedTuple):
    id: int
    aggregate_root_id: str
    command_id: str
    body: bytes


def insert(alias: str, rows: Sequence[NewRow]) -> None:
    """Write commands in the transaction that is open in the database, or at once if there is none. They are relayed in
    this order after the commit, and not at all after a rollback. Blocks.

    Raises `ConfigurationError` if the database is not PostgreSQL or has no outbox, and the driver's errors.
    """
    if not rows:
        return
    with named_tables(alias):
        execute(alias, _INSERT, tuple(map(list, zip(*rows, strict=True))))
    wake_after_commit(alias)


@contextmanager
def named_tables(alias: str) -> Iterator[None]:
    """Raise `ConfigurationError` if the statements of the block cannot find their tables in the database."""
    if keeps_in_memory():
        raise ConfigurationError(
            "no database is configured, so no command can be kept in one; send it without outbox=True, at= and after=, "
            "or name a PostgreSQL database in DATABASES"
        )
    if connections[alias].vendor != "postgresql":
        raise ConfigurationError(
            f"the database {alias!r} is not PostgreSQL, so commands cannot be kept in it; name another one by using="
        )
    try:
        yield
    except DATABASE_ERRORS as error:
        if sqlstate(error) != UNDEFINED_TABLE:
            raise
        raise ConfigurationError(
            f"the database {alias!r} has no table for commands; run {migrate_command(alias)}, or name another database "
            "by using="
        ) from error


def wake_after_commit(alias: str) -> None:
    """Wake the relay, once for each transaction. A wake-up that is lost costs time alone: the relay also looks by
    itself.

    It is a statement of its own, after the commit: a transaction that notifies would hold a lock of the whole server
    while it writes its commit to disk.
    """
    connection: Any = connections[alias]
    hook = _hook(alias)
    if runs_hooks(alias) and not any(one is hook for _, one, *_ in connection.run_on_commit):
        transaction.on_commit(hook, using=alias, robust=True)


def runs_hooks(alias: str) -> bool:
    """Return False if the user commits without Django, which then runs no hooks after the commit."""
    connection = connections[alias]
    return connection.in_atomic_block or connection.get_autocommit()


@cache
def _hook(alias: str) -> Callable[[], None]:
    """Return the hook that wakes a relay. Django logs the error of a robust hook by its name, which a `partial` does
    not have."""
    return lambda: wake(alias)


def wake(alias: str) -> None:
    """Wake the relays of a database."""
    execute(alias, _NOTIFY, None)


# -- the relay --------------------------------------------------------------------------------------------------------


def has_table(alias: str) -> bool:
    """Return True if the database has an outbox that can be relayed, and is not a standby."""
    return bool(_value(alias, _HAS_TABLE, (TABLE,)))


def try_lock(alias: str, ends_standstill: bool = True) -> bool:
    """Become the only relay of the database until the end of the transaction. Return False if another one is at work.
    Call it first in the transaction, as `lock`. With ``ends_standstill`` the server ends a session that is idle for
    `LONGEST_STANDSTILL`.

    The lock belongs to the transaction and not to the session, which a pooler may share.
    """
    read_after_locks(alias, ends_standstill)
    return bool(_value(alias, _LOCK, (TABLE,)))


def lock(alias: str) -> None:
    """Become the only relay of the database until the end of the transaction. Blocks while another one is at work."""
    read_after_locks(alias)
    execute(alias, _WAIT_FOR_LOCK, (TABLE,))


def read_after_locks(alias: str, ends_standstill: bool = False) -> None:
    """Let each statement of a new transaction see what was committed before it. At a stricter isolation level, which
    may be the server's default, all would see the rows as they were before a lock was free: a relay would send again
    what another one has sent. Also let the server end the session of a machine that has vanished; ``ends_standstill``
    is that of `try_lock`. In a caller's transaction, whose level is fixed, do nothing."""
    connection: Any = connections[alias]
    if not connection.savepoint_ids:
        end_standstill = f"SET LOCAL idle_in_transaction_session_timeout = '{LONGEST_STANDSTILL}'"
        limit = end_standstill if ends_standstill else NOTICE_VANISHED_CLIENT
        execute(alias, f"{_EACH_STATEMENT}; {limit}", None)


def waiting(alias: str, limit: int, most_bytes: int) -> list[Row]:
    """Return the first rows that wait, in the order of their ids: up to ``limit``, and no more once ``most_bytes`` are
    reached."""
    connection = healthy_connection(alias)
    cursor = psycopg.Cursor[Any](connection.connection)
    return [Row(*row) for row in cursor.execute(_WAITING, (limit, most_bytes), prepare=False, binary=True)]


def delete(alias: str, ids: Sequence[int]) -> None:
    execute(alias, _DELETE, (list(ids),))


def reject(alias: str, id: int, error: str) -> None:
    execute(alias, _REJECT, (column_text(error, ERROR_MAX), id))


def _value(alias: str, statement: str, parameters: Sequence[Any]) -> Any:
    row = execute(alias, statement, parameters).fetchone()
    return None if row is None else row[0]
