"""A session that one test after the other uses is as a new one for each."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest
from django.db import connection, transaction
from django.test import TransactionTestCase, override_settings
from psycopg import IsolationLevel
from psycopg.rows import dict_row

from enode_django.databases import execute
from tests import emptying
from tests.integration.store_sessions import bare_session

pytestmark = pytest.mark.django_db(transaction=True)


def session() -> psycopg.Connection[Any]:
    connection.ensure_connection()
    raw: psycopg.Connection[Any] = connection.connection
    return raw


def end_test() -> None:
    emptying._close_connections(TransactionTestCase())


def asked(query: str) -> object:
    (row,) = execute("default", query, None).fetchall()
    return row[0] if len(row) == 1 else row


@pytest.fixture
def elsewhere() -> Iterator[None]:
    """The sessions of the database begin in another time zone than that of the settings."""
    name = connection.ops.quote_name(str(connection.settings_dict["NAME"]))
    execute("default", f"ALTER DATABASE {name} SET timezone = 'Asia/Kathmandu'", None)
    connection.close()
    yield
    execute("default", f"ALTER DATABASE {name} RESET timezone", None)
    connection.close()


def test_a_session_forgets_what_a_test_has_left_in_it(elsewhere: None) -> None:
    used = session()
    for statement in (
        *("SET lock_timeout = 1", "SET timezone = 'Europe/Berlin'", "SET search_path = pg_catalog", "LISTEN news"),
        *("CREATE TEMPORARY TABLE left_over (number int)", "SELECT pg_advisory_lock(1)", "PREPARE one AS SELECT 1"),
    ):
        execute("default", statement, None)
    used.execute("SELECT 'prepared'", prepare=True)
    connection.needs_rollback = connection.errors_occurred = True
    connection.close_at = 0.0
    connection.run_on_commit.append((set(), end_test, False))

    end_test()
    assert session() is used
    assert asked("SELECT current_setting('lock_timeout'), current_setting('timezone')") == ("0", "UTC")
    assert asked("SELECT current_setting('search_path'), to_regclass('left_over')") == ('"$user", public', None)
    assert asked("SELECT count(*) FROM pg_listening_channels()") == 0
    assert asked("SELECT count(*) FROM pg_prepared_statements") == 0
    assert used.execute("SELECT 'prepared'", prepare=True).fetchall() == [("prepared",)]
    with bare_session() as other:
        assert other.execute("SELECT pg_try_advisory_lock(1)").fetchone() == (True,)
    assert (connection.needs_rollback, connection.errors_occurred, connection.run_on_commit) == (False, False, [])
    connection.close_if_unusable_or_obsolete()
    assert session() is used


def begin_without_time_zones() -> None:
    connection.close()
    with override_settings(USE_TZ=False, TIME_ZONE="Asia/Kathmandu"):
        session()


def begin_with_another_name() -> None:
    connection.close()
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(connection.settings_dict["OPTIONS"], "application_name", "another")
        session()


def end_session() -> None:
    with bare_session() as other:
        other.execute("SELECT pg_terminate_backend(%s, 60000)", [session().info.backend_pid])


@pytest.mark.parametrize(
    "change",
    [
        begin_without_time_zones,
        begin_with_another_name,
        end_session,
        lambda: transaction.set_autocommit(False),
        lambda: session().execute("BEGIN"),
        lambda: setattr(session(), "prepare_threshold", 0),
        lambda: setattr(session(), "isolation_level", IsolationLevel.SERIALIZABLE),
        lambda: setattr(session(), "row_factory", dict_row),
    ],
)
def test_a_session_that_cannot_be_made_as_a_new_one_is_replaced(change: Callable[[], object]) -> None:
    session()
    change()
    end_test()
    assert connection.connection is None
    assert session().autocommit
