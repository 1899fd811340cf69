"""System checks of the event store's databases. Every id is documented in ``docs/reference/checks.md``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from django.apps import AppConfig
from django.core.checks import CheckMessage, Error, Warning
from django.db import DEFAULT_DB_ALIAS, DatabaseError, connections, router

from enode_django import conf as settings
from enode_django.eventstore.shard_map import ShardMap
from enode_django.eventstore.statements import SHARD
from enode_django.exceptions import ConfigurationError, ShardMismatch, StoreUnavailable


def check_store(app_configs: Sequence[AppConfig] | None, **_: Any) -> list[CheckMessage]:
    try:
        return [*_databases()]
    except ConfigurationError:  # E001 says so
        return []


def _databases() -> Iterator[CheckMessage]:
    aliases = settings.conf().EVENT_STORE.get("DATABASES", [DEFAULT_DB_ALIAS])
    if not _are_names(aliases) or len(set(aliases)) < len(aliases) or not set(aliases) <= set(connections):
        yield Error(
            f"ENODE['EVENT_STORE']['DATABASES'] is {aliases!r}; it must list one or more of DATABASES, each once.",
            hint=f"DATABASES has {', '.join(sorted(connections))}.",
            id="enode_django.E004",
        )
        return
    for alias in aliases:
        vendor = connections[alias].vendor
        if settings.conf().event_store_backend == settings.POSTGRES and vendor != "postgresql":
            yield Error(
                f"The event store is in the database {alias!r}, which is {vendor}; it must be PostgreSQL.",
                id="enode_django.E006",
            )
    yield from _routes(aliases)


def _are_names(value: object) -> bool:
    return isinstance(value, list | tuple) and bool(value) and all(isinstance(one, str) for one in value)


def _routes(aliases: Sequence[str]) -> Iterator[CheckMessage]:
    """Without a router, Django migrates every table everywhere, and reads the store's from the default database."""
    wrong = [alias for alias in aliases if not _migrates(alias, "eventstream")]
    wrong += [alias for alias in aliases if alias != DEFAULT_DB_ALIAS and _migrates(alias, "checkpoint")]
    if wrong:
        yield Warning(
            f"Tables of the event store, or others, would be migrated to the wrong databases: {', '.join(wrong)}.",
            hint="Add 'enode_django.routers.EventStoreRouter' to DATABASE_ROUTERS, before routers of your own.",
            id="enode_django.W021",
        )


def _migrates(alias: str, model_name: str) -> bool:
    return router.allow_migrate(alias, "enode_django", model_name=model_name)


def check_shards(
    app_configs: Sequence[AppConfig] | None, databases: Sequence[str] | None = None, **_: Any
) -> list[CheckMessage]:
    """Of the ``databases`` that Django was asked to look at; what has no tables yet, or is away, says nothing."""
    try:
        aliases = settings.conf().event_databases
        if not {*(databases or ())} & {*aliases} or not all(map(_has_claims, aliases)):
            return []
        ShardMap(aliases).compare()
    except ShardMismatch as error:
        return [Error(str(error), id="enode_django.E022")]
    except (ConfigurationError, StoreUnavailable, DatabaseError):
        return []
    return []


def _has_claims(alias: str) -> bool:
    return connections[alias].vendor == "postgresql" and SHARD in connections[alias].introspection.table_names()
