"""Two databases that are shards of one event store, beside the tests' own."""

from __future__ import annotations

import contextlib
import os
import uuid
from collections.abc import Iterator

import psycopg
from django.apps import apps
from django.db import connection, connections, router
from django.test import override_settings

from enode_django.eventstore.buckets import bucket_of
from enode_django.eventstore.postgres import PostgresEventStore
from enode_django.eventstore.shard_map import ShardMap
from enode_django.eventstore.sharding import ShardedEventStore
from tests.emptying import empty_tables
from tests.integration.store_sessions import database_alias
from tests.template import migrated

ALIASES = ("events0", "events1")
ROUTER = "enode_django.routers.EventStoreRouter"


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
        (first, of_shard), *others = names.items()
        session.execute(f"CREATE DATABASE {of_shard} TEMPLATE {migrated(os.environ['DATABASE_URL'])}")
        try:
            with opened({first: of_shard}), sharded_settings():
                drop_foreign_tables(first)
            for _, name in others:
                session.execute(f"CREATE DATABASE {name} TEMPLATE {of_shard}")
            yield names
        finally:
            for name in names.values():
                session.execute(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")


def drop_foreign_tables(alias: str) -> None:
    """Drop the tables that ``migrate`` makes in no shard, which takes a hundredth of the time that it would take."""
    models = apps.get_models(include_auto_created=True)
    foreign = [model._meta.db_table for model in models if not router.allow_migrate_model(alias, model)]
    with connections[alias].cursor() as cursor:
        cursor.execute(f"DROP TABLE IF EXISTS {', '.join(foreign)} CASCADE")


@contextlib.contextmanager
def opened(names: dict[str, str]) -> Iterator[None]:
    """The aliases in this thread."""
    with contextlib.ExitStack() as stack:
        for alias, name in names.items():
            stack.enter_context(database_alias(alias, NAME=name))
        yield


def empty() -> None:
    for alias in ALIASES:
        empty_tables(alias)


def sharded_store() -> ShardedEventStore:
    """Make the store as `make_store` does, with its own map of the shards."""
    shard_map = ShardMap(ALIASES)
    return ShardedEventStore([PostgresEventStore(alias, shard_map) for alias in ALIASES], shard_map)


def id_in(place: int, name: str = "a") -> str:
    """An aggregate root id whose bucket belongs to that shard, if each has half of them."""
    return next(id for n in range(1_000) if bucket_of(id := f"{name}{n}") // 512 == place)
