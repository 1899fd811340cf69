"""Projections in another database than the events: neither is part of the other's transaction."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import psycopg
import pytest
from django.db import connections, transaction
from django.db.models import Model
from psycopg.errors import DeadlockDetected, OperationalError

from enode_django import WaitFor, execute_command, send_command, send_commands
from enode_django.concurrency import backoff
from enode_django.databases import separate_connection
from enode_django.eventstore.memory import MemoryEventStore
from enode_django.exceptions import CommandTimeout, SubscriberUnavailable
from enode_django.immediate import catch_up, patience
from tests.immediate.conftest import NewProcess
from tests.immediate.domain import MODELS, Fill, JarEntries, JarRow, JarRows


class RowsElsewhere:
    """A router that writes what is known of jars to another database."""

    def __init__(self, alias: str) -> None:
        self._alias = alias

    def db_for_write(self, model: type[Model], **hints: object) -> str | None:
        return self._alias if model in MODELS else None


@pytest.fixture
def elsewhere(new_process: NewProcess, settings: Any) -> Iterator[str]:
    before = settings.DATABASE_ROUTERS
    with separate_connection("default") as alias:
        settings.DATABASE_ROUTERS = [RowsElsewhere(alias), *before]
        new_process(JarRows)
        yield alias
        settings.DATABASE_ROUTERS = before


def totals() -> dict[str, int]:
    return dict(JarRow.objects.values_list("pk", "total"))


@pytest.mark.usefixtures("elsewhere")
def test_rows_that_a_rollback_does_not_undo_wait_for_the_commit() -> None:
    with transaction.atomic():
        send_command(Fill("a", amount=5))
        transaction.set_rollback(True)
    with transaction.atomic():
        execute_command(Fill("a", amount=7), wait_for=WaitFor.HANDLED)
        assert totals() == {}
    assert totals() == {"a": 7}


def test_who_waits_for_rows_whose_database_is_away_learns_that_the_command_is_stored(
    elsewhere: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("enode_django.immediate.patience.PATIENCE", 0.0)
    send_command(Fill("a"))
    connections[elsewhere].close()
    with monkeypatch.context() as away:
        away.setattr(connections[elsewhere], "settings_dict", {**connections[elsewhere].settings_dict, "PORT": "1"})
        with pytest.raises(CommandTimeout, match=r"not handled by immediate\.rows") as caught:
            execute_command(Fill("a"), wait_for=WaitFor.HANDLED)
    assert caught.value.executed is not None
    assert caught.value.executed.version == 2
    catch_up()
    assert totals() == {"a": 2}


def test_a_caller_waits_once_for_a_database_that_is_away_however_many_subscribers_use_it(
    elsewhere: str, new_process: NewProcess, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    new_process(JarRows, JarEntries)
    send_command(Fill("a"))
    now, pauses = 0.0, []

    def wait(seconds: float) -> None:
        nonlocal now
        now += 60.0
        pauses.append(seconds)

    connections[elsewhere].close()
    with monkeypatch.context() as away:
        away.setattr(connections[elsewhere], "settings_dict", {**connections[elsewhere].settings_dict, "PORT": "1"})
        away.setattr(backoff, "pause", wait)
        away.setattr(backoff, "time", SimpleNamespace(monotonic=lambda: now))
        away.setattr(patience, "PATIENCE", 60.0)
        send_commands([Fill("a"), Fill("a")])
    assert len(pauses) == 1
    told = {name for record in caplog.records if (name := getattr(record, "subscriber", ""))}
    assert told == {"immediate.entries", "immediate.rows"}


@pytest.mark.parametrize(("error", "tries"), [(OperationalError("the server is away"), 1), (DeadlockDetected(), 2)])
def test_a_deadlock_makes_no_subscriber_impatient_with_the_next_one(
    error: psycopg.Error, tries: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls, now = [], 0.0

    def wait(seconds: float) -> None:
        nonlocal now
        now += 60.0

    def meets() -> None:
        calls.append(now)
        raise SubscriberUnavailable("it cannot go on") from error

    monkeypatch.setattr(backoff, "pause", wait)
    monkeypatch.setattr(backoff, "time", SimpleNamespace(monotonic=lambda: now))
    monkeypatch.setattr(patience, "PATIENCE", 60.0)
    persist = patience.SharedPatience(MemoryEventStore()).of("default")
    for _ in range(2):
        with pytest.raises(SubscriberUnavailable):
            persist(meets)
    assert len(calls) == 2 + tries
