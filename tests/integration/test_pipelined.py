"""Statements that are sent together, in one exchange with the server."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

import psycopg
import pytest
from django.db import transaction

from enode_django.databases import execute, heal_connections, pipelined
from tests.integration.exchanges import exchanges

pytestmark = pytest.mark.django_db(transaction=True)

IN_BLOCK = pytest.mark.parametrize("in_block", [False, True], ids=["each committed", "in an atomic block"])


def send(statements: Sequence[str]) -> None:
    with pipelined("default"):
        for statement in statements:
            execute("default", statement, ())


def session() -> int:
    row = execute("default", "SELECT pg_backend_pid()", ()).fetchone()
    assert row is not None
    return int(row[0])


@IN_BLOCK
def test_they_take_one_exchange_and_their_rows_are_there_afterwards(in_block: bool) -> None:
    with transaction.atomic() if in_block else nullcontext(), exchanges() as counted:
        with pipelined("default"):
            cursors = [execute("default", "SELECT %s::int", (number,)) for number in range(5)]
        assert [cursor.fetchall() for cursor in cursors] == [[(number,)] for number in range(5)]
    assert counted == [1]


def test_each_sees_what_those_before_it_did() -> None:
    execute("default", "CREATE TEMPORARY TABLE numbers (number int)", ())
    with transaction.atomic(), pipelined("default"):
        execute("default", "INSERT INTO numbers VALUES (%s)", (1,))
        found = execute("default", "SELECT number FROM numbers", ())
    assert found.fetchall() == [(1,)]


@IN_BLOCK
def test_the_first_error_is_raised_at_the_end_and_nothing_is_kept(in_block: bool) -> None:
    execute("default", "CREATE TEMPORARY TABLE numbers (number int)", ())
    before = session()
    statements = ["INSERT INTO numbers VALUES (1)", "SELECT 1 / 0", "SELECT * FROM no_such_table"]
    with pytest.raises(psycopg.errors.DivisionByZero), transaction.atomic() if in_block else nullcontext():
        send(statements)
    heal_connections()
    assert execute("default", "SELECT count(*) FROM numbers", ()).fetchall() == [(0,)]
    assert session() == before, "the connection was replaced"


@IN_BLOCK
def test_after_a_lost_connection_there_is_a_new_one(in_block: bool) -> None:
    before = session()
    with pytest.raises(psycopg.OperationalError), transaction.atomic() if in_block else nullcontext():
        send(["SELECT pg_terminate_backend(pg_backend_pid())", "SELECT 1"])
    heal_connections()
    assert session() != before


def test_an_older_library_waits_for_each_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(psycopg.Pipeline, "is_supported", lambda: False)
    with exchanges() as counted:
        with pipelined("default"):
            cursors: list[psycopg.Cursor[Any]] = [execute("default", "SELECT 1", ()) for _ in range(3)]
        assert [cursor.fetchall() for cursor in cursors] == [[(1,)]] * 3
    assert counted == [3]
