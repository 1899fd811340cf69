"""Refuse to start event workers if the databases have subscriptions of subscribers that the code lacks."""

from __future__ import annotations

from django.core.management.base import CommandError

from enode_django.eventing.unowned import possible_databases, unowned_in
from enode_django.eventstore.sqlstates import DATABASE_ERRORS, remedy


def check_owners() -> None:
    """Raise `CommandError` if a stored subscription has no subscriber in the code, and is not kept. A subscriber that
    was renamed without an alias would handle everything again under its new name."""
    try:
        found = unowned_in(possible_databases())
    except DATABASE_ERRORS as error:
        raise CommandError(f"stored subscriptions cannot be read: {error}{remedy(error)}") from error
    if refused := [one.text for one in found if one.kept_since is None]:
        raise CommandError("\n".join(refused))
