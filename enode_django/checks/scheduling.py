"""System checks of scheduled commands. ``docs/reference/checks.md`` has every id."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from django.apps import AppConfig
from django.core.checks import CheckMessage, Warning
from django.db import connections

from enode_django.eventstore.sqlstates import DATABASE_ERRORS
from enode_django.exceptions import ConfigurationError
from enode_django.runtime import outbox_databases
from enode_django.scheduling.unreadable import LOOKED_AT, unreadable_in


def check_scheduled(
    app_configs: Sequence[AppConfig] | None, databases: Sequence[str] | None = None, **_: Any
) -> list[CheckMessage]:
    """Check the commands that are due next in the ``databases`` that Django checks. A database without the table, or
    one that is away, is passed over."""
    try:
        asked = {*(databases or ())} & {*outbox_databases()}
    except ConfigurationError:  # E001 says so
        return []
    return [message for alias in sorted(asked) for message in _unreadable(alias)]


def _unreadable(alias: str) -> Iterator[CheckMessage]:
    if connections[alias].vendor != "postgresql":  # E063 says so
        return
    try:
        found = unreadable_in(alias)
    except DATABASE_ERRORS:
        return
    for one in found:
        yield Warning(
            f"The code cannot read {one}, among the {LOOKED_AT:,} in the database {alias!r} that are due next: they "
            "will be dead letters.",
            hint=f"{one.way_out[0].upper()}{one.way_out[1:]}.",
            id="enode_django.W179",
        )
