"""Django's connections in long-lived threads. No request ends there, so Django never checks that they still work."""

from __future__ import annotations

import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain, count
from struct import Struct
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

import psycopg
from django.db import DEFAULT_DB_ALIAS, connections, transaction
from django.db.backends.base.base import BaseDatabaseWrapper
from psycopg.abc import Buffer
from psycopg.adapt import AdaptersMap
from psycopg.pq import PipelineStatus, TransactionStatus
from psycopg.types.array import ListBinaryDumper

logger = logging.getLogger("enode_django")
View = TypeVar("View", bound=Callable[..., Any])

_END_SESSIONS = """
    SELECT count(pg_terminate_backend(pid, %s)) FROM pg_stat_activity
    WHERE application_name = %s AND usename = current_user AND datname = current_database()
      AND backend_type = 'client backend' AND state IS DISTINCT FROM 'idle' AND pid <> pg_backend_pid()
"""
_END_SESSION_WAIT_MS = 5_000
_pack_head, _pack_length = Struct("!5I").pack, Struct("!i").pack
_APPLICATION_NAME_BYTES = 63

NOTICE_VANISHED_CLIENT = (
    "SET LOCAL tcp_keepalives_idle = 30; SET LOCAL tcp_keepalives_interval = 10; SET LOCAL tcp_keepalives_count = 3"
)
"""Lets the server end a transaction, and with that its locks, about a minute after the client's machine has vanished.
By default it keeps them for two hours. A client that lives may take any time."""
READ_ONLY_SECONDS = 5.0
_read_only_since: WeakKeyDictionary[psycopg.Connection[object], float] = WeakKeyDictionary()
_numbers = count()


class StatementsWait(ABC):
    """Holds statements back until the next one in a connection; an item of the connection's ``execute_wrappers``."""

    @abstractmethod
    def send(self) -> None:
        """Execute the statements, but not by Django's cursors."""

    def __call__(self, execute: Callable[..., Any], sql: str, params: Any, many: bool, context: Any) -> Any:
        self.send()
        return execute(sql, params, many, context)


def healthy_connection(alias: str = "default") -> BaseDatabaseWrapper:
    """Return the calling thread's connection, open. A connection known to be lost is replaced first.

    It asks the socket, not the server: that costs no round trip, but does not detect a server that vanished silently.
    Then the next statement fails, and the call after that gets a new connection. Inside an atomic block the connection
    is not replaced. Statements held back by a `StatementsWait` are sent first, because the driver's cursors bypass
    Django's. Raises what Django raises if no connection can be made, and what sending raises. Blocks.
    """
    connection = connections[alias]
    discard_if_lost(connection)
    connection.ensure_connection()
    for wrapper in connection.execute_wrappers:
        if isinstance(wrapper, StatementsWait):
            wrapper.send()
    return connection


def discard_if_lost(connection: BaseDatabaseWrapper) -> None:
    """Close the connection if it is lost or stuck in a half-done exchange, unless an atomic block or `pipelined` uses
    it."""
    raw = connection.connection
    if raw is not None and not in_transaction(connection) and not _is_pipelining(raw) and _is_lost(raw):
        connection.close()


def _forget_prepared(connection: BaseDatabaseWrapper) -> None:
    """Let psycopg and the session forget the statements that are prepared. A rollback does that, so that of an open
    transaction will. Close the connection if it is lost."""
    raw = connection.connection
    if raw is None or raw.prepare_threshold is None or in_transaction(connection):
        return
    try:
        with raw.transaction(force_rollback=True):
            pass
    except psycopg.Error:
        connection.close()
    else:
        connection.errors_occurred = False


def in_transaction(connection: BaseDatabaseWrapper) -> bool:
    """Return True if statements are not committed at once: an atomic block is open, or autocommit is off."""
    return connection.in_atomic_block or not connection.autocommit


def _is_lost(raw: psycopg.Connection[object]) -> bool:
    if raw.closed:
        return True
    try:
        # Twice: the first call may only read the server's last message; the second sees the end of the stream.
        raw.pgconn.consume_input()
        raw.pgconn.consume_input()
    except psycopg.Error:
        return True
    return raw.info.transaction_status != TransactionStatus.IDLE or _is_read_only(raw)


_READ_ONLY = ("default_transaction_read_only", "in_hot_standby")


def _is_read_only(raw: psycopg.Connection[object]) -> bool:
    """Return True if the session has been read-only for `READ_ONLY_SECONDS`, by default or on a standby. Another one
    may be able to write: a session keeps the default of its role or database that it began with, and after a failover
    the name of the primary leads for a while to a standby. The server reports both, so this asks nobody."""
    if not any(raw.info.parameter_status(name) == "on" for name in _READ_ONLY):
        return False
    return time.monotonic() - _read_only_since.setdefault(raw, time.monotonic()) >= READ_ONLY_SECONDS


def _is_pipelining(raw: psycopg.Connection[object]) -> bool:
    return not raw.closed and raw.pgconn.pipeline_status != PipelineStatus.OFF


def heal_connections() -> None:
    """Close the calling thread's broken connections to all databases, those opened by application code included."""
    for connection in connections.all(initialized_only=True):
        if connection.vendor == "postgresql":
            if connection.errors_occurred:
                _forget_prepared(connection)  # a statement that a migration made stale fails again and again
            discard_if_lost(connection)
        else:
            connection.close_if_unusable_or_obsolete()


def left_transactions() -> frozenset[str]:
    """Return the aliases of the calling thread's connections whose autocommit is off outside of atomic blocks, although
    the settings turn it on."""
    return frozenset(
        one.alias
        for one in connections.all(initialized_only=True)
        if one.connection is not None
        and not (one.autocommit or one.in_atomic_block)
        and one.settings_dict["AUTOCOMMIT"]
    )


def end_left_transactions(before: Collection[str] = ()) -> None:
    """Roll back and close the `left_transactions`, except those of ``before``, which are the caller's. Only handlers
    can have left the others: nobody else would end the transaction, which holds its locks, and holds back the events of
    all."""
    for alias in left_transactions() - set(before):
        logger.error(
            "a handler has left autocommit of the database %r off: what it has not committed is rolled back; "
            "use transaction.atomic() instead",
            alias,
        )
        connections[alias].close()


@contextmanager
def separate_connection(alias: str) -> Iterator[str]:
    """Open another connection of this thread to the same database, and give its alias. Its statements are not part of a
    transaction that is open in the first one. It is closed at the end of the block."""
    name = f"{alias} beside {next(_numbers)}"
    connections[name] = connections[alias].copy(name)
    try:
        yield name
    finally:
        connections[name].close()
        del connections[name]


def let_hooks_fail_alone(alias: str, around: Callable[[Callable[[], Any]], Callable[[], Any]]) -> None:
    """Make the ``transaction.on_commit`` hooks of an atomic block run independently: a hook runs even if others raise,
    and Django logs their errors. Call it before the end of the block; inside an inner block it does nothing.
    ``around(hook)`` returns the function that is called instead of the hook."""
    connection: Any = connections[alias]  # hooks that are robust are not in the stubs
    if not connection.savepoint_ids:
        connection.run_on_commit = [(sids, around(hook), True) for sids, hook, _ in connection.run_on_commit]


class FlatArrayDumper(ListBinaryDumper):
    """Writes a list without None and lists as a binary array, without a step of Python for each value: one dimension,
    whether there are nulls, the type of the values, their number, the number of the first one, and each value behind
    its length."""

    def dump(self, obj: list[Any]) -> Buffer | None:
        dumper = self.sub_dumper
        if dumper is None or isinstance(obj[0], list) or None in obj:
            return super().dump(obj)
        values: list[Any] = [*map(dumper.dump, obj)]
        if None in values:
            return super().dump(obj)
        parts = chain.from_iterable(zip(map(_pack_length, map(len, values)), values, strict=True))
        return b"".join([_pack_head(1, 0, dumper.oid, len(values), 1), *parts])


def execute(
    alias: str,
    statement: str,
    parameters: Sequence[Any] | None,
    adapt: Callable[[AdaptersMap], None] | None = None,
    *,
    may_prepare: bool = False,
) -> psycopg.Cursor[Any]:
    """Execute a statement in the calling thread's connection. If ``parameters`` is None the statement is taken
    literally, percent signs included. ``adapt`` changes the adapters of its values.

    With ``may_prepare`` psycopg prepares the statement in a transaction or in `pipelined`, if
    ``OPTIONS["prepare_threshold"]`` is set. A session keeps the plan until the table is analysed again: use it only for
    statements whose plan stays right while their tables grow, or that find one row by its whole key.

    Raises the driver's errors, and `TransactionManagementError` in a transaction that is marked for rollback.
    """
    connection = healthy_connection(alias)
    connection.validate_no_broken_transaction()
    cursor = psycopg.Cursor[Any](connection.connection)
    if parameters is not None and list in map(type, parameters):
        cursor.adapters.register_dumper(list, FlatArrayDumper)
    if adapt is not None:
        adapt(cursor.adapters)
    # After an error psycopg has to forget what the session has prepared: a rollback does that, and `pipelined`.
    is_forgotten = in_transaction(connection) or _is_pipelining(connection.connection)
    return cursor.execute(statement, parameters, prepare=None if may_prepare and is_forgotten else False)


def lift_statement_timeout(alias: str) -> None:
    """Lift ``statement_timeout``, which is made for web requests, until the end of the transaction."""
    execute(alias, "SET LOCAL statement_timeout = 0", None)


@contextmanager
def pipelined(alias: str) -> Iterator[None]:
    """Let `execute` send the statements of the block without waiting for their answers, which takes one exchange with
    the server instead of one for each. Fetch from their cursors after the block, at whose end the first error is
    raised. Statements still see what those before them have done, and commits of others meanwhile.

    Without an atomic block, the statements are one transaction. A libpq before version 14 waits for each answer.
    """
    connection = healthy_connection(alias)
    if not psycopg.Pipeline.is_supported():
        yield
        return
    try:
        with connection.connection.pipeline():
            yield
    except psycopg.Error:
        _forget_prepared(connection)  # psycopg takes statements for prepared that the server has passed over
        raise


def migrate_command(alias: str) -> str:
    """Return the command that applies the migrations to this database.

    >>> migrate_command("default"), migrate_command("events")
    ('manage.py migrate', 'manage.py migrate --database events')
    """
    return "manage.py migrate" if alias == DEFAULT_DB_ALIAS else f"manage.py migrate --database {alias}"


def without_atomic_requests(view: View) -> View:
    """Return the view, exempt from ``ATOMIC_REQUESTS`` on all databases."""
    for alias in connections:
        view = transaction.non_atomic_requests(using=alias)(view)
    return view


def end_sessions(alias: str, owner: str) -> int:
    """End this user's sessions in the database whose ``application_name`` is ``owner``, except the calling thread's,
    and return their number. Idle ones hold nothing, and are left: a pooler may give them to another client by then.

    Blocks up to 5 seconds for each session. Raises the driver's error if the database cannot be reached; the outcome is
    then unknown, and the call may be repeated.
    """
    name = owner.encode()[:_APPLICATION_NAME_BYTES].decode(errors="ignore")
    ((ended,),) = execute(alias, _END_SESSIONS, (_END_SESSION_WAIT_MS, name)).fetchall()
    return int(ended)
