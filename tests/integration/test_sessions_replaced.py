"""Sessions of long-lived threads that work, and are of no use."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import pytest
from django.db import connection, connections, transaction

from enode_django import CommandStatus, databases, execute_command
from enode_django.databases import end_left_transactions, left_transactions
from enode_django.eventstore.base import Outcome
from enode_django.eventstore.postgres import PostgresEventStore
from enode_django.exceptions import StoreUnavailable
from enode_django.rebuilding.definitions import quoted
from enode_django.testing.event_store_read_contract import outcomes, stream
from tests.integration.notebook import CreateNote, LeaveTransactionOpen
from tests.integration.running import processors
from tests.integration.store_sessions import database_alias, wait_until
from tests.rebuilding.tables import asked

pytestmark = pytest.mark.django_db(transaction=True)


def change_database(setting: str) -> None:
    name = quoted(str(connection.settings_dict["NAME"]))
    with connection.cursor() as cursor:
        cursor.execute("SET SESSION CHARACTERISTICS AS TRANSACTION READ WRITE")
        cursor.execute(f"ALTER DATABASE {name} {setting}")


@pytest.fixture
def read_only_session(transactional_db: None) -> Iterator[str]:
    """Yield the alias of a session that began while the database was read-only by default."""
    change_database("SET default_transaction_read_only = on")
    try:
        with database_alias("hindered") as alias:
            connections[alias].ensure_connection()
            yield alias
    finally:
        change_database("RESET default_transaction_read_only")


def test_a_session_that_began_read_only_is_replaced_when_the_database_is_writable(
    read_only_session: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A provider sets a full database so; a session keeps the default that it began with."""
    monkeypatch.setattr(databases, "READ_ONLY_SECONDS", 0.0)
    store = PostgresEventStore(read_only_session)
    with pytest.raises(StoreUnavailable, match="read-only"):
        store.append([stream("a", 1)])
    change_database("RESET default_transaction_read_only")
    assert outcomes(store.append([stream("a", 1)], doubtful=True)) == [Outcome.STORED]


def test_a_session_that_is_read_only_is_not_replaced_at_each_use(read_only_session: str) -> None:
    raw = connections[read_only_session].connection
    for _ in range(3):
        assert PostgresEventStore(read_only_session).heads(["a"]) == {}
    assert connections[read_only_session].connection is raw


def test_a_transaction_that_a_handler_left_open_is_ended(
    transactional_db: None, caplog: pytest.LogCaptureFixture
) -> None:
    """It would hold its locks, and hold back the events of all, as long as the thread lives."""
    transaction.set_autocommit(False)
    ((_, session),) = asked("SELECT pg_current_xact_id(), pg_backend_pid()")
    end_left_transactions()
    wait_until(lambda: not asked("SELECT 1 FROM pg_stat_activity WHERE pid = %s", session))
    assert connection.autocommit
    assert "'default' off: what it has not committed is rolled back" in caplog.text


def test_a_transaction_that_somebody_ends_is_left_alone(
    transactional_db: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    connection.ensure_connection()
    raw = connection.connection
    with transaction.atomic():
        end_left_transactions()
    transaction.set_autocommit(False)
    end_left_transactions(left_transactions())
    monkeypatch.setitem(connection.settings_dict, "AUTOCOMMIT", False)
    end_left_transactions()
    assert connection.connection is raw
    transaction.set_autocommit(True)


def test_a_command_that_leaves_a_transaction_open_does_not_hold_it_as_long_as_its_worker_lives(
    transactional_db: None, redis_url: str
) -> None:
    with processors():
        session = execute_command(LeaveTransactionOpen(str(uuid.uuid4())), timeout=240).value
        wait_until(lambda: not asked("SELECT 1 FROM pg_stat_activity WHERE pid = %s", session))
        assert execute_command(CreateNote(str(uuid.uuid4())), timeout=240).status is CommandStatus.SUCCESS
