"""Ask the databases for their migrations, and the event store's shards for their ownership and size."""

from __future__ import annotations

from typing import Any, NamedTuple

from django.db import DEFAULT_DB_ALIAS, connections
from django.db.migrations.executor import MigrationExecutor

from enode_django.databases import execute, migrate_command
from enode_django.eventing.registry import subscriber_databases
from enode_django.eventstore import statements
from enode_django.monitoring.parts import Finding, bad


class DatabaseRow(NamedTuple):
    """``unapplied``: migrations that this code has and the database has not."""

    alias: str
    vendor: str
    unapplied: int


class ShardRow(NamedTuple):
    """``streams`` is an estimate by the database's statistics. ``number`` is None before the first start of
    processors. ``generation`` is 0 unless the database was restored or moved."""

    alias: str
    number: int | None
    buckets: int
    generation: int
    streams: int


def project_databases() -> list[str]:
    """Return the databases of subscribers, jobs and reports. The event store may share them."""
    return sorted({DEFAULT_DB_ALIAS, *subscriber_databases()})


def ask_database(alias: str) -> Finding:
    connection = connections[alias]
    connection.ensure_connection()
    unapplied = unapplied_migrations(alias)
    problems = [bad(_unapplied(alias, unapplied))] if unapplied else []
    return Finding((DatabaseRow(alias, connection.vendor, unapplied),), problems)


_applied: set[tuple[str, Any]] = set()
"""Databases in which all migrations were applied. They stay so while this process runs, and a check is slow."""


def unapplied_migrations(alias: str) -> int:
    """Return the number of migrations that are not applied. On a database that only the event store uses, other apps'
    migrations are not counted. Raises the database's errors."""
    place = (alias, connections[alias].settings_dict["NAME"])
    if place in _applied:
        return 0
    executor = MigrationExecutor(connections[alias])
    is_whole = alias in project_databases()
    targets = [node for node in executor.loader.graph.leaf_nodes() if is_whole or node[0] == "enode_django"]
    unapplied = len(executor.migration_plan(targets))
    if not unapplied:
        _applied.add(place)
    return unapplied


def _unapplied(alias: str, count: int) -> str:
    return f"{count} migrations are not applied to the database {alias!r}; run {migrate_command(alias)}"


# Before the first ANALYZE the highest sequence is used.
_SHARD = f"""
    SELECT (SELECT number FROM {statements.SHARD}),
           coalesce((SELECT cardinality(buckets) FROM {statements.SHARD}), 0),
           coalesce((SELECT max(generation) FROM {statements.GENERATIONS}), 0),
           CASE WHEN about < 0 THEN ({statements.LAST_SEQUENCE}) ELSE about END
    FROM ({statements.ABOUT_ROWS}) AS estimate (about)
"""


def ask_shard(alias: str) -> Finding:
    ((number, buckets, generation, streams),) = execute(alias, _SHARD, None).fetchall()
    return Finding((ShardRow(alias, number, buckets, generation, streams),))
