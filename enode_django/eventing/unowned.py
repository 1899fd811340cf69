"""Stored subscriptions that no code owns: their subscriber was renamed without an alias, was removed, or belongs to
other code that shares the database."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from datetime import datetime
from typing import NamedTuple

from django.apps import apps
from django.db import connections, router

from enode_django.eventing import checkpoints
from enode_django.eventing.registry import subscribers
from enode_django.eventing.subscribers import checkpoint_database, key_of

WAYS_OUT = """
- it was renamed: give the class that it is now the name as an alias, aliases = ("{key}",), so that it goes on there
- it was removed: manage.py enode forgetsubscriber {key}{option}
- keep it for now, since the code comes back or other code owns it: manage.py enode keepsubscriber {key}{option}"""


class Unowned(NamedTuple):
    """A subscription that no code owns. ``kept_since`` is None unless it was marked to be kept."""

    key: str
    database: str
    started_at: datetime
    kept_since: datetime | None

    @property
    def ways_out(self) -> str:
        option = "" if self.database == checkpoint_database() else f" --database {self.database}"
        return WAYS_OUT.format(key=self.key, option=option)

    @property
    def text(self) -> str:
        return (
            f"no code owns the stored subscription {self.key!r} (in the database {self.database!r}, since "
            f"{self.started_at:%Y-%m-%d %H:%M}):{self.ways_out}"
        )


def unowned_in(aliases: Iterable[str]) -> Sequence[Unowned]:
    """Return the stored subscriptions in these databases that no code owns. Raises the errors of the databases."""
    owned = {key_of(one) for one in subscribers.known()}
    postgres = [alias for alias in sorted(aliases) if connections[alias].vendor == "postgresql"]
    return [
        Unowned(key, alias, started_at, kept_since)
        for alias in postgres
        if checkpoints.has_subscriptions(alias)
        for key, started_at, kept_since in checkpoints.subscriptions(alias)
        if key not in owned
    ]


def possible_databases() -> Collection[str]:
    """Return the databases that removed subscribers may have used: those that any model is written to."""
    return {checkpoint_database(), *(router.db_for_write(model) for model in apps.get_models())}
