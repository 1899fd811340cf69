"""The outbox without a queue: threads that relay it at once, and commands that relayed commands write."""

from __future__ import annotations

import time
from functools import partial
from threading import Event
from types import SimpleNamespace
from typing import cast

import pytest
from django.db import connection, transaction

from enode_django import execute_command, send_command
from enode_django.databases import execute, separate_connection
from enode_django.eventstore.base import EventStore
from enode_django.exceptions import StoreUnavailable
from enode_django.immediate import bus, catch_up, following
from enode_django.models import EventStream, OutboxCommand
from enode_django.outbox import relay, rows
from enode_django.runtime import current_bus
from tests.immediate.conftest import NewProcess
from tests.immediate.domain import Behaviour, Fill, JarRow, JarRows, Label
from tests.outbox.harness import another_thread, has_waiting, released

LEVELS = ["read committed", "repeatable read", "serializable"]
_WAITS = "SELECT EXISTS (SELECT FROM pg_locks WHERE locktype = 'advisory' AND NOT granted)"


def wait_until_a_relay_waits() -> None:
    deadline = time.monotonic() + 60
    while execute("default", _WAITS, None).fetchone() != (True,):
        assert time.monotonic() < deadline
        time.sleep(0.005)


@pytest.mark.parametrize("level", LEVELS)
def test_whoever_waits_for_another_relay_does_not_handle_what_that_one_has(
    new_process: NewProcess,
    behaviour: Behaviour,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    level: str,
) -> None:
    """The second one begins to wait before the first one commits, at any level that the server has by default."""
    new_process(JarRows)
    send_command(Fill("a"))
    entered, may_go_on, handled = Event(), Event(), []

    def meet(name: str, id: str) -> None:
        if name == "label":
            handled.append(id)
            entered.set()
            released(may_go_on)

    def send(command: Fill | Label) -> None:
        execute("default", f"SET default_transaction_isolation = '{level}'", None)
        send_command(command, outbox=True)

    monkeypatch.setattr(behaviour, "meet", meet)
    with another_thread() as one, another_thread() as other:
        first = one(lambda: send(Label("a")))
        released(entered)
        second = other(lambda: send(Fill("b")))
        wait_until_a_relay_waits()
        may_go_on.set()
        first.result()
        second.result()
    assert handled == ["a"]
    assert not [record for record in caplog.records if record.levelname == "ERROR"]
    assert (JarRow._base_manager.get(pk="b").total, OutboxCommand.objects.count()) == (1, 0)


def test_the_level_of_an_open_transaction_stays(new_process: NewProcess) -> None:
    new_process(JarRows)
    with transaction.atomic():
        execute("default", "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ", None)
        with transaction.atomic():
            rows.lock("default")
        assert execute("default", "SHOW transaction_isolation", None).fetchone() == ("repeatable read",)


def keepalive(alias: str = "default") -> object:
    return execute(alias, "SHOW tcp_keepalives_idle", None).fetchone()


@pytest.mark.django_db(transaction=True)
def test_the_server_ends_a_holder_of_locks_whose_machine_has_vanished(monkeypatch: pytest.MonkeyPatch) -> None:
    usual, held = keepalive(), []
    with transaction.atomic():
        rows.lock("default")
        held.append(keepalive())
    monkeypatch.setattr(following, "_lock", lambda alias, name, waits: held.append(keepalive(alias)))
    with following._alone("default", ["a"]):
        assert held == [("30",), ("30",)]
    assert keepalive() == usual != ("30",)


def test_a_long_chain_of_commands_does_not_fill_the_stack(
    new_process: NewProcess, behaviour: Behaviour, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each command writes the next one. If each commit relayed within the relay of the one before, some handler would
    end with a RecursionError, and the rest of the chain would be lost."""
    new_process()

    def fill_the_next(id: str) -> None:
        assert _depth(150) == 150  # as the calls of a handler that uses models
        if id != "0":
            send_command(Fill(str(int(id) - 1)), outbox=True)

    monkeypatch.setattr(behaviour, "lose_session", fill_the_next)
    send_command(Fill("150"), outbox=True)
    assert EventStream.objects.count() == 151
    assert not has_waiting()


def test_commands_that_relayed_commands_write_do_not_prolong_the_time_of_the_relay(
    new_process: NewProcess, behaviour: Behaviour, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A caller does not have to do all that others have left because a part of it writes a command."""
    new_process()
    now = 0.0

    def fill_another_one(id: str) -> None:
        nonlocal now
        now += 1.0
        if id == "a":
            send_command(Fill("c"), outbox=True)

    monkeypatch.setattr(behaviour, "lose_session", fill_another_one)
    monkeypatch.setattr(relay, "time", SimpleNamespace(monotonic=lambda: now))
    with transaction.atomic():
        for id in ("a", "b"):
            send_command(Fill(id), outbox=True)
        connection.run_on_commit.clear()
    current = current_bus()
    assert isinstance(current, bus.ImmediateCommandBus)
    current.relay("default", 0.5)
    assert list(EventStream.objects.values_list("aggregate_root_id", flat=True)) == ["a"]
    assert OutboxCommand.objects.count() == 2
    current.relay("default")
    assert not has_waiting()


@pytest.mark.django_db(transaction=True)
def test_of_several_databases_the_one_with_the_unique_values_commits_first() -> None:
    """A claim must not be lost if the process ends between the two commits."""
    committed: list[str] = []
    with separate_connection("default") as other:
        shards = [SimpleNamespace(alias=alias) for alias in ("default", other)]
        with bus.Together(cast(EventStore, SimpleNamespace(shards=shards))) as together:
            together.begin()
            for alias in (other, "default"):
                transaction.on_commit(partial(committed.append, alias), using=alias)
    assert committed == ["default", other]


def _depth(wanted: int) -> int:
    return 1 + _depth(wanted - 1) if wanted else 0


def test_an_error_of_the_relay_does_not_hide_that_the_command_of_the_writing_handler_is_stored(
    new_process: NewProcess, behaviour: Behaviour, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    new_process(JarRows)

    def fill_another_one(id: str) -> None:
        if id == "a":
            with transaction.atomic():
                send_command(Fill("b"), outbox=True)

    def fail(*arguments: object) -> None:
        raise StoreUnavailable("away")

    monkeypatch.setattr(behaviour, "lose_session", fill_another_one)
    with monkeypatch.context() as away:
        away.setattr(bus._Handling, "send", fail)
        assert execute_command(Fill("a")).version == 1
    assert dict(JarRow._base_manager.values_list("pk", "total")) == {"a": 1}
    assert "the outbox of default cannot go on: away" in caplog.text
    catch_up()
    assert dict(JarRow._base_manager.values_list("pk", "total")) == {"a": 1, "b": 1}
