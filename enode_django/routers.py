"""A database router for an event store with databases of its own."""

from __future__ import annotations

from typing import Any

from django.db import DEFAULT_DB_ALIAS, models

from enode_django.conf import conf

__all__ = ["EventStoreRouter"]

STORE_MODELS = frozenset(
    {"eventstream", "eventcorrection", "snapshot", "storegeneration", "shard", "deadletter", "uniquevalue"}
)
"""The models of the event store, whose tables are in each shard and nowhere else."""


class EventStoreRouter:
    """A router for ``DATABASE_ROUTERS``. It migrates the tables of the event store, and no others, to each of
    ``EVENT_STORE["DATABASES"]``. If the default database is one of them, it gets all tables.

    For example::

        DATABASE_ROUTERS = ["enode_django.routers.EventStoreRouter"]
        ENODE = {"EVENT_STORE": {"DATABASES": ["events0", "events1"]}}
    """

    def db_for_read(self, model: type[models.Model], **hints: Any) -> str | None:
        """Return the first shard for the store's models, None for others. Use ``using`` for another shard."""
        return conf().EVENT_STORE.DATABASES[0] if _is_of_store(model._meta.app_label, model._meta.model_name) else None

    def db_for_write(self, model: type[models.Model], **hints: Any) -> str | None:
        return self.db_for_read(model)

    def allow_migrate(self, db: str, app_label: str, model_name: str | None = None, **hints: Any) -> bool | None:
        shards = conf().EVENT_STORE.DATABASES
        if _is_of_store(app_label, model_name):
            return db in shards
        return False if db in shards and db != DEFAULT_DB_ALIAS else None


def _is_of_store(app_label: str, model_name: str | None) -> bool:
    return app_label == "enode_django" and (model_name or "").lower() in STORE_MODELS
