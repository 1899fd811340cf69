"""A pytest plugin that empties the tables after a transactional test, faster than Django does.

Django truncates every table and then recreates content types and permissions, which takes longer than most tests. Here
only tables with rows are emptied, and the tables that migrations fill stay as they are.

Django also closes all connections, so that each test gets a clean session. Here the session is cleaned: a new one would
have to load the definitions of the tables again, which takes as long as many tests.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from copy import deepcopy
from operator import attrgetter
from typing import Any
from weakref import WeakKeyDictionary

import psycopg
import pytest
from django.db import DEFAULT_DB_ALIAS, Error, connections
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.backends.signals import connection_created
from django.test import TransactionTestCase
from psycopg.pq import ExecStatus, TransactionStatus

FILLED_BY_MIGRATIONS = {"django_content_type", "auth_permission"}
SMALL = 128 * 1024
"""The bytes up to which it is cheaper to delete the rows: a truncated table gets new files, as each of its indexes."""

# A table without a page has no rows. Files are looked at rather than tables, which a new session would have to load.
# The pages of a partitioned table are in its partitions.
TABLES_WITH_PAGES = (
    "SELECT relname, pg_relation_size(oid) FROM pg_class"
    " WHERE relname = ANY(%s) AND relkind IN ('r', 'p') AND pg_table_is_visible(oid)"
    " AND (relkind = 'p' OR pg_relation_size(oid) > 0) ORDER BY relname"
)


@pytest.fixture(scope="session", autouse=True)
def quick_emptying() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TransactionTestCase, "_fixture_teardown", _empty_databases)
        patch.setattr(TransactionTestCase, "_should_reload_connections", _close_connections)
        connection_created.connect(_remember_beginning)
        yield
        connection_created.disconnect(_remember_beginning)


def _empty_databases(test: TransactionTestCase) -> None:
    for alias in test._databases_names(include_mirrors=False):  # type: ignore[attr-defined]
        empty_tables(alias)


def empty_tables(alias: str) -> None:
    """Empty the tables of models that have rows, without resetting sequences."""
    connection = connections[alias]
    names = {*connection.introspection.django_table_names(include_views=False)} - FILLED_BY_MIGRATIONS
    with connection.cursor() as cursor:
        cursor.execute(TABLES_WITH_PAGES, [[*names]])
        sizes = {connection.ops.quote_name(name): size for name, size in cursor.fetchall()}
    if sizes:
        connection.ops.execute_sql_flush([_emptied(sizes)])


def _emptied(sizes: dict[str, int]) -> str:
    """Return statements that empty the tables, once the transactions have ended that write to them."""
    statements = [f"LOCK TABLE {', '.join(sizes)} IN SHARE ROW EXCLUSIVE MODE"]
    if large := [name for name, size in sizes.items() if size > SMALL]:
        statements.append(f"TRUNCATE {', '.join(large)} CASCADE")
    statements += [f"DELETE FROM {name}" for name, size in sizes.items() if size <= SMALL]
    return "; ".join(statements)


Beginning = tuple[dict[str, Any], object, object]
_first: list[Beginning] = []
_begun_with: WeakKeyDictionary[psycopg.Connection[Any], Beginning] = WeakKeyDictionary()
"""What the first session with the default database began with, and each: the settings, the time zone, and what psycopg
keeps for it."""

_kept_by_psycopg = attrgetter(
    *("prepare_threshold", "prepared_max", "isolation_level", "read_only", "deferrable"),
    *("row_factory", "cursor_factory", "server_cursor_factory"),
)


def _state_of(connection: BaseDatabaseWrapper) -> Beginning:
    return connection.settings_dict, connection.timezone, _kept_by_psycopg(connection.connection)


def _remember_beginning(connection: BaseDatabaseWrapper, **_: object) -> None:
    session = connection.connection
    if connection.alias == DEFAULT_DB_ALIAS and session not in _begun_with:
        _begun_with[session] = deepcopy(connection.settings_dict), *_state_of(connection)[1:]
        if not _first:
            _first.append(_begun_with[session])


def _close_connections(test: TransactionTestCase) -> bool:
    """Close all connections but the default one, if its session can be cleaned. Return False: Django closes no
    others."""
    for connection in connections.all(initialized_only=True):
        if connection.alias != DEFAULT_DB_ALIAS or not _is_cleaned(connection):
            connection.close()
    return False


def _is_cleaned(connection: BaseDatabaseWrapper) -> bool:
    """Forget all that the test has set in the session. Return False if it is not as a new one then."""
    session = connection.connection
    if session is None or connection.in_atomic_block:
        return False
    if _begun_with.get(session) not in _first or _state_of(connection) not in _first:
        return False
    with suppress(psycopg.Error, Error):
        if session.autocommit and session.info.transaction_status == TransactionStatus.IDLE:
            with session.transaction(force_rollback=True):
                pass  # psycopg forgets what it has prepared
            if session.pgconn.exec_(b"DISCARD ALL").status != ExecStatus.COMMAND_OK:
                return False
            if session.info.parameter_status("default_transaction_read_only") != "off":
                return False
            _connect(connection, session)
            return True
    return False


def _connect(connection: BaseDatabaseWrapper, session: psycopg.Connection[Any]) -> None:
    """Let Django begin with the session as with a new one: it sets the time zone, its own state and the session's end
    anew."""
    own: dict[str, Any] = vars(connection)
    own["get_new_connection"] = lambda parameters: session
    try:
        connection.connect()
    finally:
        del own["get_new_connection"]
