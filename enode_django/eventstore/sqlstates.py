"""Classify database errors for the event store, by SQLSTATE and never by text."""

from __future__ import annotations

import django.db
import psycopg
from django.db import DEFAULT_DB_ALIAS

from enode_django.databases import migrate_command
from enode_django.exceptions import EnodeError, Retry, UnknownMessageType

DATABASE_ERRORS = (psycopg.Error, django.db.Error)

UNIQUE_VIOLATION = "23505"
UNDEFINED_TABLE = "42P01"

# Data exceptions, integrity constraints.
_DATA_CLASSES = ("22", "23")

# Serialization failure and deadlock, lock not available, cancelled (statement timeout), shutting down or starting,
# connection, resources, idle timeouts of a session or transaction, a server that has become a standby.
_UNAVAILABLE = ("40001", "40P01", "55P03", "57014", "57P0", "08", "53", "25P03", "25P04", "25006")

# A prepared statement that the session does not have, or has already, because a pooler has changed the session.
_OTHER_SESSION = ("26000", "42P05")

# Program limits, also raised when transaction ids or multixacts are exhausted; resources, disk full, out of memory, a
# configured limit; errors of the operating system; internal errors and corruption.
_NEEDS_HELP = ("54", "53000", "53100", "53200", "53400", "58", "XX")

# Errors of the connection, a server that ends or starts, too many connections.
_AWAY = ("08", "57P0", "53300")

# Errors that a smaller batch may avoid.
_TOO_MUCH = ("54", "53200", "XX000")


def sqlstate(error: BaseException) -> str:
    """Return the SQLSTATE of a driver's error, which Django may have wrapped; empty if the server sent none."""
    driver_error = _driver_error(error)
    return (driver_error.sqlstate or "") if isinstance(driver_error, psycopg.Error) else ""


def is_data_error(error: BaseException) -> bool:
    """Return True if the database refuses a value of a row: a retry is useless."""
    return sqlstate(error).startswith(_DATA_CLASSES)


def needs_help(error: BaseException) -> bool:
    """Return True if the database probably refuses every statement until its server is repaired, it is migrated, or the
    user has the privileges: no row is at fault."""
    return sqlstate(error).startswith(_NEEDS_HELP) or is_unprepared(error)


def help_for(error: BaseException, alias: str = DEFAULT_DB_ALIAS) -> str:
    """Return what an operator has to do about an error of the database ``alias`` that `needs_help`."""
    if lacks_privilege(error):
        return "GRANT its user what is missing"
    return f"run {migrate_command(alias)}" if is_unprepared(error) else "look after its server"


def lacks_privilege(error: BaseException) -> bool:
    """Return True if the database's user may not use a table, a sequence, a function or a schema."""
    if sqlstate(error) != "42501":
        return False
    # A row that a security policy refuses has the same state, but comes from another function of the server. The text
    # would be in the server's language.
    return _source(error).startswith("aclcheck_error")


def may_be_too_much(error: BaseException) -> bool:
    """Return True if the same rows in smaller batches may be stored."""
    return sqlstate(error).startswith(_TOO_MUCH)


def is_unavailable(error: BaseException) -> bool:
    """Return True if the same call may succeed later."""
    state = sqlstate(error)
    if state:
        return state.startswith(_UNAVAILABLE) or is_stale_statement(error)
    lost = (psycopg.OperationalError, psycopg.InterfaceError, django.db.OperationalError, django.db.InterfaceError)
    return isinstance(_driver_error(error), lost)


def is_stale_statement(error: BaseException) -> bool:
    """Return True if the session cannot execute a prepared statement any more: a migration has changed the type of its
    columns, or it is another session."""
    state = sqlstate(error)
    # Other features that are not supported have the same state.
    return state in _OTHER_SESSION or (state == "0A000" and _source(error) == "RevalidateCachedQuery")


def is_away(error: BaseException) -> bool:
    """Return True if the server could not be reached, accepts no connection, or has ended this one."""
    state = sqlstate(error)
    return state.startswith(_AWAY) if state else is_unavailable(error)


def message(error: BaseException) -> str:
    """Return the server's primary message and the SQLSTATE."""
    driver_error = _driver_error(error)
    primary = driver_error.diag.message_primary if isinstance(driver_error, psycopg.Error) else None
    return f"{primary or error} (SQLSTATE {sqlstate(error)})"


def _source(error: BaseException) -> str:
    """Return the name of the server's function that raised the error; empty if it is not known."""
    driver_error = _driver_error(error)
    return (isinstance(driver_error, psycopg.Error) and driver_error.diag.source_function) or ""


def _driver_error(error: BaseException) -> BaseException:
    return error.__cause__ if isinstance(error.__cause__, psycopg.Error) else error


_NOT_MIGRATED = ("42P01", "42703")
"""A table or a column is missing: code that runs ahead of its migrations must not park every aggregate there is."""


def is_unprepared(error: BaseException) -> bool:
    """Return True if the database answers, and has no such table or column, or does not let its user use it."""
    return sqlstate(error) in _NOT_MIGRATED or lacks_privilege(error)


def remedy(error: BaseException) -> str:
    """Return what to do about an error that `is_unprepared`, as the end of a message; empty for others."""
    return f"; {help_for(error)}" if is_unprepared(error) else ""


def is_transient(error: BaseException) -> bool:
    """Return True if the call should be retried: the database or the queue is unavailable, migrations or privileges are
    missing, or transactions conflict. Return False for a `Retry`, which has its own delay."""
    if isinstance(error, EnodeError):
        return error.retriable and not isinstance(error, UnknownMessageType | Retry)
    if isinstance(error.__cause__ or error, psycopg.InterfaceError):
        return False  # such as a closed cursor; a lost connection is an OperationalError
    return is_unavailable(error) or is_unprepared(error)


_NOT_UNIQUE = (UNIQUE_VIOLATION, "23P01")
"""A unique constraint or an exclusion constraint is violated."""


def is_conflict_of_rows(error: BaseException) -> bool:
    """Return True if the database refuses a row because it conflicts with another row."""
    return sqlstate(error) in _NOT_UNIQUE


def is_conflict_of_transactions(error: BaseException) -> bool:
    """Return True if the database has rolled the transaction back because of another one: a deadlock, or a
    serialization failure."""
    return sqlstate(error).startswith("40")
