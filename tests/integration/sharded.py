"""Two databases that are shards of one event store, beside the tests' own."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Iterator

import psycopg
from django.core.management import call_command
from django.db import connection, connections
from django.test import override_settings

from enode_django.eventstore import postgres_unique_values, statements
from enode_django.eventstore.buckets import bucket_of
from enode_django.eventstore.postgres import PostgresEventStore
from enode_django.eventstore.shard_map import ShardMap
from enode_django.eventstore.sharding import ShardedEventStore
from tests.integration.store_sessions import database_alias

ALIASES = ("events0", "events1")
ROUTER = "enode_django.routers.EventStoreRouter"
TABLES = (
    statements.TABLE,
    statements.CORRECTIONS,
    statements.GENERATIONS,
    statements.SHARD,
    "enode_django_deadletter",
    "enode_django_snapshot",
    postgres_unique_values.TABLE,
)


@contextlib.contextmanager
def sharded_settings() -> Iterator[None]:
    enode = {"EVENT_STORE": {"DATABASES": list(ALIASES)}}
    with override_settings(DATABASE_ROUTERS=[ROUTER], ENODE=enode):
        yield


@contextlib.contextmanager
def shard_databases() -> Iterator[dict[str, str]]:
    """Migrated and empty; the names by alias."""
    names = {alias: f"{alias}_{uuid.uuid4().hex}" for alias in ALIASES}
    parameters = connection.get_connection_params() | {"dbname": "postgres"}
    for key in ("context", "cursor_factory"):
        parameters.pop(key, None)
    with contextlib.closing(psycopg.connect(**parameters, autocommit=True)) as session:
        (first, migrated), *others = names.items()
        session.execute(f"CREATE DATABASE {migrated}")
        try:
            with opened({first: migrated}), sharded_settings():
                call_command("migrate", database=first, verbosity=0)
            for _, name in others:
                session.execute(f"CREATE DATABASE {name} TEMPLATE {migrated}")
            yield names
        finally:
            for name in names.values():
                session.execute(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")


@contextlib.contextmanager
def opened(names: dict[str, str]) -> Iterator[None]:
    """The aliases in this thread."""
    with contextlib.ExitStack() as stack:
        for alias, name in names.items():
            stack.enter_context(database_alias(alias, NAME=name))
        yield


def empty() -> None:
    for alias in ALIASES:
        with connections[alias].cursor() as cursor:
            cursor.execute(f"TRUNCATE {', '.join(TABLES)}")


def sharded_store() -> ShardedEventStore:
    """Make the store as `make_store` does, with its own map of the shards."""
    shard_map = ShardMap(ALIASES)
    return ShardedEventStore([PostgresEventStore(alias, shard_map) for alias in ALIASES], shard_map)


def id_in(place: int, name: str = "a") -> str:
    """An aggregate root id whose bucket belongs to that shard, if each has half of them."""
    return next(id for n in range(1_000) if bucket_of(id := f"{name}{n}") // 512 == place)
