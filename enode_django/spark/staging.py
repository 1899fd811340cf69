"""Staging tables: they take the snapshots that a Spark job's tasks make, which are then published atomically.

A run has one unlogged table, ``enode_staging_<token>``, in each database that it writes to. Each COPY is a transaction
of its own, so none holds the feed back for long. Its rows, a *portion*, have an id. The publisher names the portions
that count. So it ignores rows of attempts that failed, ran twice, or lost their connection before the answer.
Publishing renames the table to ``…_done`` in the same transaction: repeated calls take effect once, and a late attempt
finds no table.

A killed run leaves its table behind, and the next run drops it, regardless of its age: a live run holds the table's
name, see `holding`, from before the table is made. A run that has lost its hold, by a restart of the server, is safe
until another one begins; then it raises `StagingLost` and has published nothing.
"""

from __future__ import annotations

import contextlib
import logging
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import psycopg
from django.db import transaction
from django.db.backends.base.base import BaseDatabaseWrapper

from enode_django.eventstore import sqlstates
from enode_django.eventstore.rows import connected, execute, run
from enode_django.exceptions import StagingLost, StoreUnavailable
from enode_django.repository import postgres
from enode_django.spark.holding import held, is_free

logger = logging.getLogger("enode_django.spark")

LOCK_TIMEOUT = "5s"
COLUMNS = {
    "aggregate_root_id": "text",
    "aggregate_root_type": "text",
    "version": "bigint",
    "fingerprint": "text",
    "payload": "bytea",
    "created_at": "timestamptz",
    "failure": "text",
}
"""The names and PostgreSQL types of a row. One with a failure says why an aggregate has no snapshot."""

# The ids have the database's collation, as in `PostgresSnapshotStore.save`, so that both take their locks in the same
# order.
_PUBLISH = f"""
    INSERT INTO {postgres.TABLE} AS known ({postgres.COLUMNS})
    SELECT DISTINCT ON (aggregate_root_id) {postgres.COLUMNS} FROM {{staged}} WHERE failure IS NULL
    ORDER BY aggregate_root_id, version DESC {postgres.ON_CONFLICT}
"""
_LEFT_BEHIND = """
    SELECT relname FROM pg_class
    WHERE relkind = 'r' AND relname ~ '^enode_staging_[0-9a-f]{16}(_done)?$' AND pg_table_is_visible(oid)
      AND pg_has_role(relowner, 'USAGE')
"""


class Portion(NamedTuple):
    """The rows of a successful COPY."""

    alias: str
    id: str
    rows: int


def done(table: str) -> str:
    """Return the name of the table after its rows were published."""
    return f"{table}_done"


@contextlib.contextmanager
def staging_tables(aliases: Iterable[str]) -> Iterator[str]:
    """Make a table of the same name in each of these databases, and drop it at the end. First drop those of dead
    runs."""
    aliases = list(aliases)
    table = f"enode_staging_{uuid.uuid4().hex[:16]}"
    columns = ", ".join(f"{name} {kind}" for name, kind in COLUMNS.items())
    with contextlib.ExitStack() as stack:
        for alias in aliases:
            drop_left_behind(alias)
            stack.enter_context(held(alias, table))
            stack.callback(_drop_at_last, alias, table)
            with connected(alias) as connection:
                run(connection, f"CREATE UNLOGGED TABLE {table} (portion uuid NOT NULL, {columns})")
        yield table


def drop_left_behind(alias: str) -> list[str]:
    """Drop the staging tables of dead runs, and return their names. One that cannot be dropped now is left."""
    with connected(alias) as connection:
        names = [name for (name,) in execute(connection, _LEFT_BEHIND, ())]
        return [name for name in names if _is_dropped(connection, name)]


def _is_dropped(connection: BaseDatabaseWrapper, name: str) -> bool:
    try:
        with transaction.atomic(using=connection.alias):
            is_dead = is_free(connection, name.removesuffix("_done"))
            if is_dead:
                # A task that outlived its driver may be copying.
                run(connection, f"SET LOCAL lock_timeout = '{LOCK_TIMEOUT}'")
                run(connection, f"DROP TABLE IF EXISTS {name}")
            return is_dead
    except sqlstates.DATABASE_ERRORS as error:
        logger.warning("the staging table %s of a dead run could not be dropped: %s", name, error)
        return False


def _drop_at_last(alias: str, table: str) -> None:
    try:
        drop(alias, table)
    except (StoreUnavailable, *sqlstates.DATABASE_ERRORS) as error:
        logger.warning("the next run will drop the staging table %s: %s", table, error)


def drop(alias: str, table: str) -> None:
    """Drop a staging table, published or not, if it exists."""
    with connected(alias) as connection:
        run(connection, f"DROP TABLE IF EXISTS {table}, {done(table)}")


def copy_rows(alias: str, table: str, rows: Sequence[Sequence[Any]]) -> Portion:
    """Write rows with these `COLUMNS` in one COPY. Raises `StoreUnavailable`, and `StagingLost` if
    the table is gone. A repeated call makes another portion, even if the first has succeeded."""
    portion = uuid.uuid4()
    statement = f"COPY {table} ({', '.join(['portion', *COLUMNS])}) FROM STDIN (FORMAT BINARY)"
    try:
        with connected(alias) as connection, psycopg.Cursor[Any](connection.connection).copy(statement) as copy:
            copy.set_types(["uuid", *COLUMNS.values()])
            for row in rows:
                copy.write_row((portion, *row))
    except StoreUnavailable as error:
        if _is_gone(error):
            raise _lost(alias, table) from error
        raise
    return Portion(alias, str(portion), len(rows))


def publish(alias: str, table: str, portions: Mapping[str, int]) -> None:
    """Publish the rows of these portions (the number of rows by id) in one transaction. The table then has the
    published rows only. Does nothing if they are published already. Raises `StoreUnavailable`, and `StagingLost` if
    rows are missing."""
    try:
        with connected(alias) as connection, transaction.atomic(using=alias):
            if _exists(connection, done(table)):
                return
            run(connection, f"ALTER TABLE {table} RENAME TO {done(table)}")
            _check_complete(connection, table, portions)
            run(connection, f"DELETE FROM {done(table)} WHERE portion <> ALL(%s::uuid[])", (list(portions),))
            run(connection, _PUBLISH.format(staged=done(table)))
    except StoreUnavailable as error:
        if not _is_gone(error):
            raise
        with connected(alias) as connection:
            if not _exists(connection, done(table)):  # an earlier commit without an answer may have succeeded
                raise _lost(alias, table) from error


def _is_gone(error: StoreUnavailable) -> bool:
    return sqlstates.sqlstate(error) == sqlstates.UNDEFINED_TABLE


def _exists(connection: BaseDatabaseWrapper, table: str) -> bool:
    ((exists,),) = execute(connection, "SELECT to_regclass(%s) IS NOT NULL", (table,))
    return bool(exists)


def _check_complete(connection: BaseDatabaseWrapper, table: str, portions: Mapping[str, int]) -> None:
    """Raise `StagingLost` if rows are missing: an unlogged table is empty after a crash of the server."""
    counts = dict(execute(connection, f"SELECT portion::text, count(*) FROM {done(table)} GROUP BY portion", ()))
    lost = sum(rows - counts.get(id, 0) for id, rows in portions.items())
    if lost:
        raise StagingLost(
            f"{lost} rows that were staged in database {connection.alias!r} are gone, as after a crash of the server; "
            "nothing was published there, run the job again"
        )


def ask(alias: str, table: str, query: str) -> list[tuple[Any, ...]]:
    """Return the rows of a query on published rows; ``{staged}`` in it stands for the table."""
    with connected(alias) as connection:
        return execute(connection, query.format(staged=done(table)), ())


def _lost(alias: str, table: str) -> StagingLost:
    return StagingLost(
        f"the staging table {table} in database {alias!r} is gone: its run has ended, or lost its connection while "
        "another one began; run the job again"
    )
