"""A process-wide cache of the databases that have corrections.

Nearly all databases have none, and are read by statements that ignore corrections. Readers check for corrections every
`LOOK_EVERY` seconds, so every process sees the first one of a database within that time. From then on the statements
include corrections, and see each as soon as it is made.
"""

from __future__ import annotations

import time

from django.db.backends.base.base import BaseDatabaseWrapper

from enode_django.eventstore import statements
from enode_django.eventstore.rows import execute
from enode_django.eventstore.statements import Reading

LOOK_EVERY = 1.0
"""Seconds between checks of a database without corrections."""

_Database = tuple[object, ...]
_known: dict[_Database, float] = {}
"""The time of each database's next check, on the monotonic clock; `_NEVER` once corrections were seen."""


def statement_of(connection: BaseDatabaseWrapper, reading: Reading) -> str:
    """Return the statement for this database. Blocks for a query if a check is due."""
    database = _database_of(connection)
    look_again = _known.get(database, 0.0)
    now = time.monotonic()
    if look_again <= now:
        ((has_corrections,),) = execute(connection, statements.HAS_CORRECTIONS, ())
        look_again = note(connection, has_corrections)
    return reading.plain if look_again < _NEVER else reading.corrected


_NEVER = float("inf")


def note(connection: BaseDatabaseWrapper, has_corrections: bool) -> float:
    """Record the result of a check. Return the time of the next one, on the monotonic clock."""
    look_again = _NEVER if has_corrections else time.monotonic() + LOOK_EVERY
    _known[_database_of(connection)] = look_again
    return look_again


def _database_of(connection: BaseDatabaseWrapper) -> _Database:
    settings = connection.settings_dict
    return (settings["HOST"], settings["PORT"], settings["NAME"])
