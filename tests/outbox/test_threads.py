"""The threads of a supervisor that relay the outboxes."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.db import connection, transaction

from enode_django import send_command, send_commands
from enode_django.concurrency.outages import outages
from enode_django.exceptions import TransportUnavailable
from enode_django.outbox import rows
from enode_django.outbox.relay import Relay
from enode_django.processors import outbox_relay
from enode_django.processors.outbox_relay import OutboxThread, relayed_outboxes
from enode_django.scheduling import rows as scheduling
from tests.outbox.harness import BreakingSender, Harness, has_waiting, released
from tests.races.counting import Add

NEVER = 3_600.0
"""An interval that no test lasts: what happens within it was woken."""


def until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


@pytest.fixture
def started(harness: Harness) -> Iterator[Callable[..., OutboxThread]]:
    threads = []

    def start(interval: float, **options: Any) -> OutboxThread:
        threads.append(OutboxThread(harness.relay(**options), interval))
        return threads[-1]

    yield start
    for thread in threads:
        thread.stop()
        rows.wake("default")
    for thread in threads:
        thread.thread.join(60)
        assert not thread.thread.is_alive()


def test_a_commit_wakes_the_thread(harness: Harness, started: Callable[..., OutboxThread]) -> None:
    send_command(Add("a", amount=1), outbox=True)
    started(NEVER)
    until(lambda: harness.amounts("a") == [1])
    for amount in (2, 3):
        with transaction.atomic():
            send_command(Add("a", amount=amount), outbox=True)
        until(lambda: len(harness.amounts("a")) == amount)  # noqa: B023
    assert harness.amounts("a") == [1, 2, 3]


def test_a_wake_up_that_is_lost_costs_an_interval_alone(
    harness: Harness, started: Callable[..., OutboxThread], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A wake-up is lost if the sender dies after its commit, or if a pooler keeps messages from the relay."""
    started(0.01)
    with transaction.atomic():
        send_command(Add("a"), outbox=True)
        connection.run_on_commit.clear()
    until(lambda: not has_waiting())
    assert len(harness.sent()) == 1


def test_behind_a_pooler_of_transactions_it_does_not_listen(
    harness: Harness, started: Callable[..., OutboxThread], monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    execute = outbox_relay.execute
    monkeypatch.setattr(outbox_relay, "execute", lambda *call: said.append(call[1]) or execute(*call))
    monkeypatch.setitem(connection.settings_dict, "DISABLE_SERVER_SIDE_CURSORS", True)
    started(0.01)
    send_command(Add("a"), outbox=True)
    until(lambda: not has_waiting())
    assert said == []


def test_it_goes_on_after_the_queue_was_away_and_its_session_lost(
    harness: Harness, started: Callable[..., OutboxThread], caplog: pytest.LogCaptureFixture
) -> None:
    failures = [TransportUnavailable("away"), TransportUnavailable("away")]

    def before() -> None:
        if failures:
            raise failures.pop()

    def after() -> None:
        if harness.amounts("a") == [1]:
            with connection.cursor() as cursor:
                cursor.execute("SELECT pg_terminate_backend(pg_backend_pid())")

    started(0.01, sender=BreakingSender(harness, before, after))
    send_command(Add("a", amount=1), outbox=True)
    until(lambda: harness.amounts("a") == [1])
    send_command(Add("a", amount=2), outbox=True)
    until(lambda: not has_waiting())
    assert harness.amounts("a") == [1, 2]
    assert "trying again until it works" in caplog.text


def test_an_outage_has_ended_when_the_thread_relays_again(
    harness: Harness, started: Callable[..., OutboxThread], caplog: pytest.LogCaptureFixture
) -> None:
    outages.forget()
    failures = [TransportUnavailable("away")]

    def before() -> None:
        if failures:
            raise failures.pop()

    send_command(Add("a"), outbox=True)
    started(NEVER, sender=BreakingSender(harness, before, lambda: None))
    until(lambda: "the queue answers again" in caplog.text)
    assert harness.amounts("a") == [1]


def test_it_stops_between_two_batches(harness: Harness) -> None:
    """It does not relay the whole backlog first, which may take longer than a supervisor waits."""
    threads: list[OutboxThread] = []
    may_stop = threading.Event()

    def stop() -> None:
        released(may_stop)
        threads[0].stop()

    send_commands([Add("a", amount=number) for number in range(3)], outbox=True)
    threads.append(OutboxThread(harness.relay(at_once=1, sender=BreakingSender(harness, stop, lambda: None)), NEVER))
    may_stop.set()
    threads[0].thread.join(60)
    assert not threads[0].thread.is_alive()
    assert (harness.amounts("a"), harness.waiting()) == ([0], 2)


def test_it_listens_in_a_new_session_too(harness: Harness) -> None:
    """A session that was lost between two statements is replaced by the next one, without an error."""
    heard: list[int] = []

    class Losing(Relay):
        def run(self, *arguments: Any, **options: Any) -> int:
            listening = rows.execute("default", "SELECT count(*) FROM pg_listening_channels()", None).fetchone()
            heard.append(listening[0] if listening else 0)
            if len(heard) == 1:
                connection.connection.close()
            return super().run(*arguments, **options)

    thread = OutboxThread(Losing("default", harness.sender(), schedule=scheduling), 0.01)
    try:
        until(lambda: len(heard) > 2)
    finally:
        thread.stop()
        thread.thread.join(60)
    assert heard[1:3] == [1, 1]


def test_a_database_without_the_table_is_left_alone(
    harness: Harness, started: Callable[..., OutboxThread], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outbox_relay, "LOOK_FOR_TABLE", 0.01)
    asked = []
    monkeypatch.setattr(outbox_relay, "has_table", lambda alias: bool(asked.append(alias)) or len(asked) > 2)
    send_command(Add("a"), outbox=True)
    started(NEVER)
    until(lambda: not has_waiting())
    assert len(asked) == 3


def test_all_databases_are_relayed_until_the_block_ends(harness: Harness, settings: Any) -> None:
    settings.ENODE = {**settings.ENODE, "OUTBOX": {"INTERVAL": 0.01}}
    with relayed_outboxes(harness.queue):
        send_command(Add("a"), outbox=True)
        until(lambda: not has_waiting())
    send_command(Add("a"), outbox=True)
    assert has_waiting()
    settings.ENODE = {**settings.ENODE, "OUTBOX": {"DATABASES": []}}
    with relayed_outboxes(harness.queue):
        assert has_waiting()


def test_two_threads_keep_the_order(harness: Harness, started: Callable[..., OutboxThread]) -> None:
    started(0.001, at_once=3)
    started(0.001, at_once=2)
    for amount in range(40):
        send_command(Add("a", amount=amount), outbox=True)
    until(lambda: not has_waiting())
    assert harness.amounts("a") == list(range(40))
    assert len(harness.sent()) == 40
