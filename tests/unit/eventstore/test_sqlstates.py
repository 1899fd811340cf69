from __future__ import annotations

import django.db
import psycopg
import pytest
from psycopg import errors

from enode_django.eventstore import sqlstates


def wrapped(error: psycopg.Error) -> django.db.Error:
    outer = django.db.OperationalError(str(error))
    outer.__cause__ = error
    return outer


UNAVAILABLE = [
    *(errors.SerializationFailure, errors.DeadlockDetected, errors.QueryCanceled, errors.AdminShutdown),
    *(errors.CrashShutdown, errors.CannotConnectNow, errors.ConnectionFailure, errors.TooManyConnections),
    *(errors.DiskFull, errors.LockNotAvailable, errors.ReadOnlySqlTransaction, errors.IdleInTransactionSessionTimeout),
    *(errors.InvalidSqlStatementName, errors.DuplicatePreparedStatement),
    *(psycopg.OperationalError, psycopg.InterfaceError),
]
DATA = [
    *(errors.UniqueViolation, errors.CheckViolation, errors.NotNullViolation, errors.StringDataRightTruncation),
    errors.CharacterNotInRepertoire,
]
FAILING = [
    *(errors.ProgramLimitExceeded, errors.StatementTooComplex, errors.DiskFull, errors.OutOfMemory),
    *(errors.ConfigurationLimitExceeded, errors.IoError, errors.UndefinedFile, errors.InternalError_),
    *(errors.DataCorrupted, errors.IndexCorrupted),
]
BUGS = [
    *(errors.UndefinedTable, errors.SyntaxError, errors.InsufficientPrivilege, errors.InFailedSqlTransaction),
    errors.FeatureNotSupported,
]


@pytest.mark.parametrize("kind", UNAVAILABLE)
def test_what_may_go_away_makes_the_store_unavailable(kind: type[psycopg.Error]) -> None:
    for error in (kind("x"), wrapped(kind("x"))):
        assert (sqlstates.is_unavailable(error), sqlstates.is_data_error(error)) == (True, False)


@pytest.mark.parametrize("kind", DATA)
def test_what_a_row_holds_is_a_data_error(kind: type[psycopg.Error]) -> None:
    for error in (kind("x"), wrapped(kind("x"))):
        assert (sqlstates.is_unavailable(error), sqlstates.is_data_error(error)) == (False, True)


@pytest.mark.parametrize("kind", FAILING)
def test_what_somebody_has_to_mend_is_no_rows_fault(kind: type[psycopg.Error]) -> None:
    for error in (kind("x"), wrapped(kind("x"))):
        assert (sqlstates.needs_help(error), sqlstates.is_data_error(error)) == (True, False)


@pytest.mark.parametrize("kind", [*DATA, errors.TooManyConnections, errors.AdminShutdown, psycopg.OperationalError])
def test_what_passes_or_is_a_rows_fault_needs_no_help(kind: type[psycopg.Error]) -> None:
    assert not sqlstates.needs_help(kind("x"))


@pytest.mark.parametrize("kind", BUGS)
def test_everything_else_is_a_bug(kind: type[psycopg.Error]) -> None:
    for error in (kind("x"), wrapped(kind("x"))):
        assert (sqlstates.is_unavailable(error), sqlstates.is_data_error(error)) == (False, False)


@pytest.mark.parametrize("kind", [errors.AdminShutdown, errors.CannotConnectNow, errors.TooManyConnections])
def test_a_server_that_takes_no_connection_is_away(kind: type[psycopg.Error]) -> None:
    assert sqlstates.is_away(wrapped(kind("x")))
    assert sqlstates.is_away(psycopg.OperationalError("connection refused"))


@pytest.mark.parametrize("kind", [errors.QueryCanceled, errors.LockNotAvailable, errors.DeadlockDetected, *DATA])
def test_a_server_that_answers_with_another_error_is_not_away(kind: type[psycopg.Error]) -> None:
    assert not sqlstates.is_away(wrapped(kind("x")))


def test_an_error_of_django_without_the_drivers_is_judged_by_its_class() -> None:
    assert sqlstates.is_unavailable(django.db.InterfaceError("connection already closed"))
    assert not sqlstates.is_unavailable(django.db.ProgrammingError("x"))
