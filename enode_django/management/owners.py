"""Refuse to start event workers while the code misses subscribers that the databases remember."""

from __future__ import annotations

import psycopg
from django.core.management.base import CommandError
from django.db import DatabaseError

from enode_django.eventing.unowned import possible_databases, unowned_in


def check_owners() -> None:
    """Raises `CommandError` for a stored subscription that no code owns, unless it is kept. A subscriber that was
    renamed without an alias would handle everything a second time under its new name."""
    try:
        found = unowned_in(possible_databases())
    except (DatabaseError, psycopg.Error) as error:
        raise CommandError(f"stored subscriptions cannot be read: {error}; was manage.py migrate run?") from error
    if refused := [one.text for one in found if one.kept_since is None]:
        raise CommandError("\n".join(refused))
