"""System checks of the event store's databases. ``docs/reference/checks.md`` has every id."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from django.apps import AppConfig
from django.core.checks import CheckMessage, Error, Warning
from django.db import DatabaseError, connections, models, router
from psycopg import IsolationLevel

from enode_django import conf as settings
from enode_django.conf.groups import IMMEDIATE
from enode_django.databases import execute
from enode_django.eventstore.sqlstates import DATABASE_ERRORS
from enode_django.exceptions import ConfigurationError, ShardMismatch, StoreUnavailable
from enode_django.models import Checkpoint, EventStream

_READ_COMMITTED = "read committed"
_WIDE = ("UTF8", "SQL_ASCII")
"""Encodings with all characters: the second stores what it gets."""


def check_store(app_configs: Sequence[AppConfig] | None, **_: Any) -> list[CheckMessage]:
    try:
        return [*_databases()]
    except ConfigurationError:  # E001 says so
        return []


def _databases() -> Iterator[CheckMessage]:
    aliases = settings.conf().EVENT_STORE.DATABASES
    if not _are_names(aliases) or len(set(aliases)) < len(aliases) or not set(aliases) <= set(connections):
        yield Error(
            f"ENODE['EVENT_STORE']['DATABASES'] is {aliases!r}; it must list one or more of DATABASES, each once.",
            hint=f"DATABASES has {', '.join(sorted(connections))}.",
            id="enode_django.E004",
        )
        return
    if settings.keeps_in_memory():
        return
    for alias in aliases:
        if is_wrong_store(alias):
            yield Error(
                f"The event store is in the database {alias!r}, which is {connections[alias].vendor}; it must be "
                "PostgreSQL.",
                hint='Name one in DATABASES, "ENGINE": "django.db.backends.postgresql", or another alias in '
                "ENODE['EVENT_STORE']['DATABASES'].",
                id="enode_django.E006",
            )
        elif not connections[alias].settings_dict["AUTOCOMMIT"] and settings.conf().QUEUE.BACKEND != IMMEDIATE:
            yield Error(
                f"DATABASES[{alias!r}] has AUTOCOMMIT = False: transactions of runprocessors would stay open, and wait "
                "for one another for ever.",
                hint="Leave AUTOCOMMIT out. To commit several statements together, use transaction.atomic().",
                id="enode_django.E183",
            )
    yield from _routes(aliases)
    yield from _tables_beside_the_store()


def is_wrong_store(alias: str) -> bool:
    """Return True if the event store is in this database, and the database is not PostgreSQL."""
    return alias in settings.conf().EVENT_STORE.tables_in and connections[alias].vendor != "postgresql"


def _are_names(value: object) -> bool:
    return isinstance(value, list | tuple) and bool(value) and all(isinstance(one, str) for one in value)


def _routes(aliases: Sequence[str]) -> Iterator[CheckMessage]:
    """Warn if a router is missing: Django would migrate every table in every database, and read them from the default
    one."""
    wrong = [alias for alias in aliases if not _migrates(alias, "eventstream")]
    wrong += [alias for alias in aliases if alias != router.db_for_write(Checkpoint) and _migrates(alias, "checkpoint")]
    if wrong:
        yield Warning(
            f"Tables of the event store, or others, would be migrated to the wrong databases: {', '.join(wrong)}.",
            hint="Add 'enode_django.routers.EventStoreRouter' to DATABASE_ROUTERS, before routers of your own.",
            id="enode_django.W021",
        )


def _tables_beside_the_store() -> Iterator[CheckMessage]:
    """Report that `migrate` would make the tables of subscribers and jobs in another database than PostgreSQL."""
    alias = router.db_for_write(Checkpoint)
    has_tables = bool(settings.conf().EVENT_STORE.tables_in)
    if has_tables and connections[alias].vendor != "postgresql" and not is_wrong_store(alias):
        yield Error(
            f"The tables of enode_django that are not the event store's are in the database {alias!r}, which is "
            f"{connections[alias].vendor}; they must be in PostgreSQL.",
            hint="Let a router of yours send the app 'enode_django', and the apps with projections, to a PostgreSQL "
            "database. If that is the event store's, too, 'enode_django.routers.EventStoreRouter' is not needed.",
            id="enode_django.E038",
        )


def _migrates(alias: str, model_name: str) -> bool:
    return router.allow_migrate(alias, "enode_django", model_name=model_name)


def check_shards(
    app_configs: Sequence[AppConfig] | None, databases: Sequence[str] | None = None, **_: Any
) -> list[CheckMessage]:
    """Compare all shards if one of them is among the ``databases`` that Django checks. If a shard has no tables, or is
    away, nothing is compared."""
    try:
        aliases = settings.conf().EVENT_STORE.DATABASES
        return _mismatch(aliases) if {*(databases or ())} & {*aliases} else []
    except (ConfigurationError, StoreUnavailable, DatabaseError):
        return []


def _mismatch(aliases: Sequence[str]) -> list[CheckMessage]:
    from enode_django.eventstore.shard_map import ShardMap  # only `check --database` needs it

    try:
        if all(map(_has_claims, aliases)):
            ShardMap(aliases).compare()
    except ShardMismatch as error:
        return [Error(str(error), id="enode_django.E022")]
    return []


def _has_claims(alias: str) -> bool:
    from enode_django.eventstore.statements import SHARD  # as above

    return connections[alias].vendor == "postgresql" and SHARD in connections[alias].introspection.table_names()


_UNIQUE = """
    SELECT ARRAY(SELECT attname::text FROM unnest(i.indkey) WITH ORDINALITY AS key (number, place)
                 JOIN pg_attribute AS a ON a.attrelid = i.indrelid AND a.attnum = number ORDER BY place)
    FROM pg_index AS i
    WHERE i.indrelid = to_regclass(%s) AND i.indisunique AND i.indimmediate AND i.indisvalid AND i.indpred IS NULL
"""


def check_constraints(
    app_configs: Sequence[AppConfig] | None, databases: Sequence[str] | None = None, **_: Any
) -> list[CheckMessage]:
    """Check the unique indexes of the event store in its databases that Django checks (``databases``). A database that
    is unavailable or lacks the tables is passed over."""
    return [message for alias in _asked(databases) for message in _missing_constraints(alias)]


def _missing_constraints(alias: str) -> Iterator[CheckMessage]:
    table = EventStream._meta.db_table
    try:
        if table not in connections[alias].introspection.table_names():
            return
        found = [columns for (columns,) in execute(alias, _UNIQUE, (table,))]
    except DATABASE_ERRORS:
        return
    for constraint in EventStream._meta.constraints:
        if isinstance(constraint, models.UniqueConstraint) and [*constraint.fields] not in found:
            yield Error(
                f"The database {alias!r} has no unique index on ({', '.join(constraint.fields)}) of {table}, the "
                f"constraint {constraint.name}: commands could take effect twice, and versions be stored twice.",
                hint=f"Remove duplicate rows, and create it: ALTER TABLE {table} ADD CONSTRAINT "
                f"{constraint.name} UNIQUE ({', '.join(constraint.fields)})",
                obj=EventStream,
                id="enode_django.E027",
            )


def check_encoding(
    app_configs: Sequence[AppConfig] | None, databases: Sequence[str] | None = None, **_: Any
) -> list[CheckMessage]:
    """Check that those databases of the event store that Django checks (``databases``) can store every character. A
    database that is away is passed over."""
    return [
        Error(
            f"The database {alias!r} {narrow}.",
            hint="Make it anew: CREATE DATABASE … ENCODING 'UTF8' TEMPLATE template0",
            id="enode_django.E189",
        )
        for alias in _asked(databases)
        if (narrow := narrow_encoding(alias))
    ]


def narrow_encoding(alias: str) -> str:
    """Say what is wrong if a database has an encoding without some characters; empty if it has all, or is away."""
    encoding = _setting(alias, "server_encoding")
    if encoding in ("", *_WIDE):
        return ""
    return f"has the encoding {encoding}, not UTF8: an id with a character that {encoding} lacks would stop all workers"


def check_sessions(
    app_configs: Sequence[AppConfig] | None, databases: Sequence[str] | None = None, **_: Any
) -> list[CheckMessage]:
    """Check the timeout of idle transactions, and the isolation level, in those databases of the event store that
    Django checks (``databases``). A database that is away is passed over."""
    return [message for alias in _asked(databases) for message in (*_idle_sessions(alias), *_isolation(alias))]


def _isolation(alias: str) -> Iterator[CheckMessage]:
    chosen = connections[alias].settings_dict["OPTIONS"].get("isolation_level")
    level = _READ_COMMITTED if chosen is not None else _setting(alias, "default_transaction_isolation")
    if chosen not in (None, IsolationLevel.READ_COMMITTED) or level not in ("", _READ_COMMITTED):
        yield Warning(
            f"Transactions in the database {alias!r} are stricter than READ COMMITTED: subscribers that meet on an "
            "aggregate fail with serialization errors, and are slowed down by the retries.",
            hint=f"Set default_transaction_isolation to {_READ_COMMITTED!r} for the workers' role, or in OPTIONS: "
            "'isolation_level': IsolationLevel.READ_COMMITTED. A transaction of your own can ask for a stricter one.",
            id="enode_django.W172",
        )


def _setting(alias: str, name: str) -> str:
    """Return a setting of the database's sessions; empty if the database is away."""
    try:
        ((value,),) = execute(alias, "SELECT current_setting(%s)", (name,)).fetchall()
    except DATABASE_ERRORS:
        return ""
    return str(value)


def _idle_sessions(alias: str) -> Iterator[CheckMessage]:
    limit = _setting(alias, "idle_in_transaction_session_timeout")
    if limit == "0":
        yield Warning(
            f"The database {alias!r} has no idle_in_transaction_session_timeout: a session that leaves its transaction "
            "open holds back sweeps, rebuilds and the feed of the event store until it ends.",
            hint="Set it for the server, the database or the role: ALTER DATABASE … SET "
            "idle_in_transaction_session_timeout = '10min'",
            id="enode_django.W031",
        )


def check_durability(
    app_configs: Sequence[AppConfig] | None, databases: Sequence[str] | None = None, **_: Any
) -> list[CheckMessage]:
    """Check that a commit waits for the disk in those databases of the event store that Django checks
    (``databases``). A database that is away is passed over."""
    return [message for alias in _asked(databases) for message in _lost_commits(alias)]


def _lost_commits(alias: str) -> Iterator[CheckMessage]:
    off = [name for name in ("fsync", "full_page_writes", "synchronous_commit") if _setting(alias, name) == "off"]
    if off:
        yield Warning(
            f"The database {alias!r} has {' and '.join(f'{name} = off' for name in off)}: a crash of its server may "
            "lose events of commands that were answered with success, or damage the event store.",
            hint="Turn it on, for the server and for the role of the workers: without it an answer is not final.",
            id="enode_django.W186",
        )


def _asked(databases: Sequence[str] | None) -> list[str]:
    """Return the databases of the event store that are on PostgreSQL and among those that Django checks."""
    try:
        aliases = settings.conf().EVENT_STORE.DATABASES
    except ConfigurationError:  # E001 says so
        return []
    asked = {*(databases or ())} & {*connections}
    return [alias for alias in aliases if alias in asked and connections[alias].vendor == "postgresql"]
