"""Statements that psycopg prepares, with ``OPTIONS["prepare_threshold"]``."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import psycopg
import pytest
from django.db import NotSupportedError, ProgrammingError, connection, connections, transaction
from psycopg import errors

from enode_django.databases import execute, heal_connections, pipelined
from enode_django.eventing import checkpoints, failovers, parking
from enode_django.eventstore.sqlstates import is_transient
from tests.integration.store_sessions import database_alias

pytestmark = pytest.mark.django_db(transaction=True)
TABLES = ("enode_django_checkpoint", "enode_django_parkedevent", "enode_django_subscription")


@pytest.fixture
def preparing() -> Iterator[str]:
    with database_alias("preparing", OPTIONS={"prepare_threshold": 0, "server_side_binding": True}) as alias:
        yield alias


@pytest.fixture
def numbers() -> Iterator[None]:
    execute("default", "CREATE TABLE numbers (number int)", None)
    yield
    execute("default", "DROP TABLE numbers", None)


def prepared(alias: str) -> list[tuple[str, str, list[str]]]:
    raw: psycopg.Connection[Any] = connections[alias].connection
    query = (
        "SELECT name, statement, parameter_types::text[] FROM pg_prepared_statements "
        "WHERE statement ~ 'enode_django|numbers' ORDER BY name"  # without Django's own at the beginning of a session
    )
    return raw.execute(query, prepare=False).fetchall()


def handle_one(alias: str) -> None:
    """Execute what a subscriber executes for each event."""
    checkpoints.lock_cursor(alias, "s", ["a"])
    checkpoints.read_cursor(alias, "s", ["a"])
    parking.parked_cursor(alias, "s", ["a"])
    failovers.known_cursor(alias, "s")
    failovers.generations_cursor(alias, "s")
    checkpoints.save(alias, "s", {"a": 1})


def test_those_of_each_event_are_prepared_and_others_never(preparing: str) -> None:
    for _ in range(2):
        with transaction.atomic(using=preparing):
            handle_one(preparing)
        with pipelined(preparing):
            checkpoints.read_cursor(preparing, "s", ["a"])
            failovers.known_cursor(preparing, "s")
        checkpoints.save(preparing, "s", {"a": 1})
    assert len(prepared(preparing)) == 6


def test_none_is_prepared_by_djangos_default() -> None:
    with database_alias("usual", OPTIONS={"prepare_threshold": None}) as alias:
        for _ in range(10):
            with transaction.atomic(using=alias):
                handle_one(alias)
        assert prepared(alias) == []


def test_what_is_read_of_many_aggregates_is_planned_each_time(preparing: str) -> None:
    """A plan that was made when the table had few rows reads all of it, and compares each row with each id."""
    for _ in range(2):
        with transaction.atomic(using=preparing):
            checkpoints.lock_cursor(preparing, "s", ["a", "b"])
            checkpoints.read_cursor(preparing, "s", ["a", "b"])
            parking.parked_cursor(preparing, "s", ["a", "b"])
            checkpoints.save(preparing, "s", {"a": 1, "b": 1})
    assert [statement.split()[0] for _, statement, _ in prepared(preparing)] == ["INSERT"]


def test_a_plan_made_when_the_tables_were_empty_reads_by_index(preparing: str) -> None:
    with transaction.atomic(using=preparing):
        execute(preparing, f"TRUNCATE {', '.join(TABLES)}", None)  # without statistics, nor an autovacuum meanwhile
        execute(preparing, "SET LOCAL plan_cache_mode = force_generic_plan", None)
        handle_one(preparing)
        for name, statement, types in prepared(preparing):
            values = ", ".join("NULL" for _ in types)
            plan = execute(preparing, f"EXPLAIN EXECUTE {name} ({values})", None).fetchall()
            read = [line for (line,) in plan if "Seq Scan" in line]
            assert not read, f"{statement} reads a whole table: {read}"
        transaction.set_rollback(True, using=preparing)


@pytest.mark.parametrize("within", [transaction.atomic, pipelined], ids=["atomic", "pipelined"])
def test_a_column_of_another_type_is_an_error_that_passes(preparing: str, numbers: None, within: Any) -> None:
    def read() -> list[Any]:
        with within(preparing):
            found = execute(preparing, "SELECT number FROM numbers", (), may_prepare=True)
        return found.fetchall()

    read()
    assert len(prepared(preparing)) == 1
    execute("default", "ALTER TABLE numbers ALTER number TYPE bigint", None)
    with pytest.raises(errors.FeatureNotSupported) as raised:
        read()
    assert is_transient(raised.value)
    assert read() == []


@pytest.mark.parametrize("within", [transaction.atomic, nullcontext], ids=["atomic", "autocommit"])
def test_a_handler_whose_query_is_stale_may_try_it_again(
    preparing: str, numbers: None, within: Callable[[], AbstractContextManager[object]]
) -> None:
    def read() -> list[Any]:
        connection.ensure_connection()
        with within(), connection.wrap_database_errors:  # as a cursor of Django does with server-side binding
            return psycopg.Cursor[Any](connection.connection).execute("SELECT number FROM numbers").fetchall()

    connection.ensure_connection()
    connection.connection.prepare_threshold = 0
    read()
    execute(preparing, "ALTER TABLE numbers ALTER number TYPE bigint", None)
    with pytest.raises(NotSupportedError, match="cached plan must not change result type") as raised:
        read()
    assert is_transient(raised.value)
    heal_connections()
    assert read() == []


@pytest.mark.parametrize("threshold", [0, 1])
def test_statements_after_one_that_fails_are_prepared_when_they_come_again(threshold: int) -> None:
    def send(divisor: int) -> None:
        with pipelined(alias):
            execute(alias, "SELECT 1 / %s", (divisor,), may_prepare=True)
            execute(alias, "SELECT 'second' || %s::text", ("x",), may_prepare=True)

    with database_alias("preparing", OPTIONS={"prepare_threshold": threshold}) as alias:
        send(1)
        connection_before = connections[alias].connection
        with pytest.raises(errors.DivisionByZero):
            send(0)
        send(1)
        send(1)
        assert connections[alias].connection is connection_before, "with Django's pool it would come back as it was"


def test_what_application_code_keeps_in_the_session_outlives_an_error_of_its_query() -> None:
    connection.ensure_connection()
    connection.connection.prepare_threshold = 5
    execute("default", "CREATE TEMPORARY TABLE kept (number int)", None)
    with pytest.raises(ProgrammingError), connection.cursor() as cursor:
        cursor.execute("SELECT no_such_column FROM kept")
    heal_connections()
    assert execute("default", "SELECT number FROM kept", None).fetchall() == []


def test_other_features_that_the_server_does_not_have_do_not_pass() -> None:
    with pytest.raises(errors.FeatureNotSupported) as raised:
        execute("default", "SELECT DISTINCT pid FROM pg_stat_activity FOR UPDATE", ())
    assert not is_transient(raised.value)
