"""Classify database errors for the event store, by SQLSTATE and never by text."""

from __future__ import annotations

import django.db
import psycopg

from enode_django.exceptions import EnodeError, Retry, UnknownMessageType

DATABASE_ERRORS = (psycopg.Error, django.db.Error)

UNIQUE_VIOLATION = "23505"
UNDEFINED_TABLE = "42P01"

# Data exceptions, integrity constraints.
_DATA_CLASSES = ("22", "23")

# Deadlock and serialization failure, lock not available, cancelled (statement timeout), shut down or not yet up,
# connection, resources, a session ended for idling, a server that has become a standby.
_UNAVAILABLE = ("40001", "40P01", "55P03", "57014", "57P0", "08", "53", "25P03", "25P04", "25006")

# Limits of the program, which is how a server says that it has no transaction ids or multixacts left; disk full, out of
# memory, a configured limit; errors of the system around the server; internal errors and damage.
_NEEDS_HELP = ("54", "53000", "53100", "53200", "53400", "58", "XX")

# What a smaller batch may not come up against.
_TOO_MUCH = ("54", "53200", "XX000")


def sqlstate(error: BaseException) -> str:
    """Return the SQLSTATE of the driver's error, which Django may have wrapped; empty if the server sent none."""
    driver_error = _driver_error(error)
    return (driver_error.sqlstate or "") if isinstance(driver_error, psycopg.Error) else ""


def is_data_error(error: BaseException) -> bool:
    """Return True if the database refuses a value of one of the rows: sending it again is of no use."""
    return sqlstate(error).startswith(_DATA_CLASSES)


def needs_help(error: BaseException) -> bool:
    """Return True if the database refuses whatever is asked of it until somebody has mended it, as far as one can see
    from outside: no row is to blame."""
    return sqlstate(error).startswith(_NEEDS_HELP)


def may_be_too_much(error: BaseException) -> bool:
    """Return True if the same rows in smaller batches may be stored."""
    return sqlstate(error).startswith(_TOO_MUCH)


def is_unavailable(error: BaseException) -> bool:
    """Return True if the same call may succeed later."""
    state = sqlstate(error)
    if state:
        return state.startswith(_UNAVAILABLE)
    lost = (psycopg.OperationalError, psycopg.InterfaceError, django.db.OperationalError, django.db.InterfaceError)
    return isinstance(_driver_error(error), lost)


def message(error: BaseException) -> str:
    """The server's own words, in one line."""
    driver_error = _driver_error(error)
    primary = driver_error.diag.message_primary if isinstance(driver_error, psycopg.Error) else None
    return f"{primary or error} (SQLSTATE {sqlstate(error)})"


def _driver_error(error: BaseException) -> BaseException:
    return error.__cause__ if isinstance(error.__cause__, psycopg.Error) else error


_NOT_MIGRATED = ("42P01", "42703")
"""A table or a column is missing: code that runs ahead of its migrations must not park every aggregate there is."""


def is_transient(error: BaseException) -> bool:
    """Return True if the call should simply be tried again: the database or the queue is away, or two transactions are
    in each other's way. A `Retry` is no such error: what raised it is tried again when it says."""
    if isinstance(error, EnodeError):
        return error.retriable and not isinstance(error, UnknownMessageType | Retry)
    if isinstance(error.__cause__ or error, psycopg.InterfaceError):
        return False  # a closed cursor, say: what is lost is an OperationalError
    return is_unavailable(error) or sqlstate(error) in _NOT_MIGRATED


_NOT_UNIQUE = (UNIQUE_VIOLATION, "23P01")
"""The second is that of an exclusion constraint."""


def is_conflict_of_rows(error: BaseException) -> bool:
    """Return True if the database refuses a row because of what another row has at the moment."""
    return sqlstate(error) in _NOT_UNIQUE
