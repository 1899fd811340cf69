"""Commands that are written in a transaction are relayed to the queue in order, whatever fails in between."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

import psycopg
import pytest
from django.db import DEFAULT_DB_ALIAS, OperationalError, connection, transaction

from enode_django import Command, Metadata, metadata, send_command, send_command_on_commit, send_commands
from enode_django.databases import separate_connection
from enode_django.exceptions import ConfigurationError, InvalidField, TransportUnavailable
from enode_django.models import OutboxCommand
from enode_django.outbox import relay as relay_module
from enode_django.outbox import rows
from enode_django.serialization.codec import decode_metadata, encode_command
from tests.integration.store_sessions import wait_until
from tests.outbox.harness import BreakingSender, Harness, another_thread, released
from tests.races.counting import Add


class Killed(BaseException):
    """Ends the code as the end of its process would: nothing catches it."""


def kill() -> None:
    raise Killed


def test_the_message_is_what_send_command_sends(harness: Harness) -> None:
    with metadata(user_id="7", correlation_id="k"):
        send_command(Add("a", amount=5, id="c1"), expected_version=3)
        with transaction.atomic():
            send_command(Add("a", amount=5, id="c1"), outbox=True, expected_version=3)
    with metadata(user_id="8"):
        assert harness.relay().run() == 1
    direct, relayed = harness.bodies()
    assert relayed == direct
    assert decode_metadata(harness.sent()[1].metadata) == Metadata(user_id="7", correlation_id="k")


def test_nothing_is_sent_before_the_commit_or_after_a_rollback(harness: Harness) -> None:
    with another_thread() as elsewhere:
        with transaction.atomic():
            send_command(Add("a"), outbox=True)
            assert elsewhere(harness.relay().run).result() == 0
            transaction.set_rollback(True)
        assert harness.relay().run() == 0
        with transaction.atomic():
            send_command(Add("a", id="kept"), outbox=True)
        assert elsewhere(harness.relay().run).result() == 1
    assert [one.id for one in harness.sent()] == ["kept"]
    assert OutboxCommand.objects.count() == 0


def test_outside_of_a_transaction_it_is_written_at_once(harness: Harness) -> None:
    send_command(Add("a"), outbox=True)
    assert harness.relay().run() == 1


def test_the_order_of_a_call_and_of_calls_is_kept(harness: Harness) -> None:
    with transaction.atomic():
        send_commands([Add("a", amount=number) for number in range(50)], outbox=True)
        send_commands([(Add("a", amount=50), 7), Add("b", amount=1)], outbox=True)
    send_command(Add("a", amount=51), outbox=True)
    assert harness.relay(at_once=7).run() == 53
    assert harness.amounts("a") == list(range(52))
    assert harness.amounts("b") == [1]
    assert [one.expected_version for one in harness.sent() if one.fields["amount"] == 50] == [7]


def test_a_row_that_took_its_id_earlier_and_committed_later_comes_before_what_followed_it(harness: Harness) -> None:
    """A relay with a position would pass over it."""
    with another_thread() as elsewhere:
        with transaction.atomic():
            send_command(Add("a", amount=1), outbox=True)
            elsewhere(lambda: send_command(Add("a", amount=2), outbox=True)).result()
            assert elsewhere(harness.relay().run).result() == 1
        send_command(Add("a", amount=3), outbox=True)
        elsewhere(harness.relay(at_once=1).run).result()
    assert harness.amounts("a") == [2, 1, 3]


@pytest.mark.parametrize("seam", ["lock", "waiting", "before", "after", "delete"])
def test_a_relay_that_dies_at_any_step_loses_nothing(
    harness: Harness, monkeypatch: pytest.MonkeyPatch, seam: str
) -> None:
    send_commands([Add("a", amount=1), Add("a", amount=2)], outbox=True)

    def dies_after(call: Callable[..., object]) -> Callable[..., object]:
        def dying(*arguments: object) -> object:
            call(*arguments)
            raise Killed

        return dying

    nothing = lambda: None  # noqa: E731
    sender = BreakingSender(harness, kill if seam == "before" else nothing, kill if seam == "after" else nothing)
    with monkeypatch.context() as patch:
        step = {"lock": "try_lock", "waiting": "waiting", "delete": "delete"}.get(seam)
        if step is not None:
            patch.setattr(relay_module.rows, step, dies_after(getattr(rows, step)))
        with pytest.raises(Killed):
            harness.relay(sender=sender).run()
    assert harness.waiting() == 2
    send_command(Add("a", amount=3), outbox=True)
    assert harness.relay().run() == 3
    assert harness.waiting() == 0
    assert harness.amounts("a") == [1, 2, 3]
    times_sent = 2 if seam in ("after", "delete") else 1
    assert [one.fields["amount"] for one in harness.sent()].count(1) == times_sent, "by the same id, so it counts once"
    assert len({one.id for one in harness.sent()}) == 3


def test_when_its_time_is_over_a_relay_begins_no_further_batch(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 100.0

    def later() -> None:
        nonlocal now
        now += 1.0

    monkeypatch.setattr(relay_module, "time", SimpleNamespace(monotonic=lambda: now))
    send_commands([Add("a", amount=number) for number in range(3)], outbox=True)
    assert harness.relay(at_once=1, sender=BreakingSender(harness, later, lambda: None)).run(1.5) == 2
    assert (harness.amounts("a"), harness.waiting()) == ([0, 1], 1)


def test_a_queue_that_is_away_keeps_the_rows(harness: Harness) -> None:
    send_command(Add("a"), outbox=True)

    def away() -> None:
        raise TransportUnavailable("away")

    with pytest.raises(TransportUnavailable):
        harness.relay(sender=BreakingSender(harness, away, away)).run()
    assert harness.waiting() == 1
    assert harness.relay().run() == 1


def test_only_one_relay_is_at_work(harness: Harness) -> None:
    sending, may_go_on = threading.Event(), threading.Event()

    def block() -> None:
        sending.set()
        released(may_go_on)

    send_command(Add("a", amount=1), outbox=True)
    with another_thread() as elsewhere:
        first = elsewhere(harness.relay(sender=BreakingSender(harness, block, lambda: None)).run)
        released(sending)
        send_command(Add("a", amount=2), outbox=True)
        assert harness.relay().run() == 0, "the other one is at work"
        may_go_on.set()
        assert first.result() == 2, "it also relays what was written meanwhile"
    assert harness.amounts("a") == [1, 2]


def test_a_relay_that_lost_its_session_while_it_sends_changes_no_order(harness: Harness) -> None:
    """Its successor begins at the same row, so the late messages are repeats."""
    sending, may_go_on, pids = threading.Event(), threading.Event(), []

    def block() -> None:
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_backend_pid()")
            pids.append(cursor.fetchone()[0])
        sending.set()
        released(may_go_on)

    send_commands([Add("a", amount=number) for number in (1, 2)], outbox=True)
    with another_thread() as elsewhere:
        first = elsewhere(harness.relay(sender=BreakingSender(harness, block, lambda: None)).run)
        released(sending)
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_terminate_backend(%s, 20000)", pids)
        send_command(Add("a", amount=3), outbox=True)
        assert harness.relay().run() == 3
        may_go_on.set()
        assert first.exception() is not None
    assert harness.amounts("a") == [1, 2, 3]
    assert [one.fields["amount"] for one in harness.sent()] == [1, 2, 3, 1, 2]


def test_a_relay_that_stands_still_while_it_sends_is_succeeded(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as one whose machine has lost its power: nobody tells the database, which keeps its session."""
    usual, sending, may_go_on = rows.LONGEST_STANDSTILL, threading.Event(), threading.Event()

    def stand_still() -> None:
        rows.LONGEST_STANDSTILL = usual
        sending.set()
        released(may_go_on)

    def relay() -> None:
        while not sending.is_set():
            with suppress(psycopg.Error):  # also before it sends, if this machine is so slow
                harness.relay(sender=BreakingSender(harness, stand_still, lambda: None)).run()

    send_commands([Add("a", amount=number) for number in (1, 2)], outbox=True)
    monkeypatch.setattr(rows, "LONGEST_STANDSTILL", "100ms")
    with another_thread() as elsewhere:
        first = elsewhere(relay)
        released(sending)
        send_command(Add("a", amount=3), outbox=True)
        try:
            wait_until(lambda: harness.relay().run() == 3)
        finally:
            may_go_on.set()
        first.result()
    assert [one.fields["amount"] for one in harness.sent()] == [1, 2, 3, 1, 2]


def end_session() -> None:
    with suppress(OperationalError), connection.cursor() as cursor:
        cursor.execute("SELECT pg_terminate_backend(pg_backend_pid())")


def test_what_a_slow_queue_has_taken_is_not_sent_again_if_the_session_ended_meanwhile(harness: Harness) -> None:
    """Otherwise a queue that is always so slow would get the same rows without end, and none would be deleted."""
    relay = harness.relay(sender=BreakingSender(harness, lambda: None, end_session))
    for amounts in ((1, 2), (3,)):
        send_commands([Add("a", amount=amount) for amount in amounts], outbox=True)
        with pytest.raises(psycopg.OperationalError):
            relay.run()
    assert (harness.waiting(), relay.run(), harness.waiting()) == (3, 3, 0)
    assert [one.fields["amount"] for one in harness.sent()] == [1, 2, 3]


def test_a_row_with_the_id_of_one_that_was_sent_is_sent_itself(harness: Harness) -> None:
    """A database that fails over may lose a row, and give its id to another one."""
    relay = harness.relay(sender=BreakingSender(harness, lambda: None, end_session))
    send_command(Add("a", amount=1), outbox=True)
    with pytest.raises(psycopg.OperationalError):
        relay.run()
    OutboxCommand.objects.update(command_id="c", body=encode_command(Add("a", amount=2, id="c"), b""))
    with pytest.raises(psycopg.OperationalError):
        relay.run()
    assert relay.run() == 1
    assert harness.amounts("a") == [1, 2]


def test_rows_that_can_never_be_sent_are_rejected(harness: Harness, caplog: pytest.LogCaptureFixture) -> None:
    send_command(Add("a", amount=1), outbox=True)
    OutboxCommand.objects.create(aggregate_root_id="a", command_id="bad", body=b"\xc1 nonsense")
    OutboxCommand.objects.create(aggregate_root_id="b", command_id="other", body=harness_body(harness))
    harness.queue.max_send = 100_000
    OutboxCommand.objects.create(aggregate_root_id="a", command_id="big", body=bytes(100_000))
    send_command(Add("a", amount=2), outbox=True)
    harness.relay(at_once=2).run()
    assert harness.amounts("a") == [1, 2]
    assert harness.waiting() == 0
    rejected = {row.command_id: row.error for row in OutboxCommand.objects.all()}
    assert set(rejected) == {"bad", "other", "big"}
    assert rejected["bad"].startswith("MalformedMessage")
    assert "not that of the command" in rejected["other"]
    assert "MessageTooLarge" in rejected["big"]
    assert caplog.text.count("is rejected") == 3
    assert harness.relay().run() == 0


def harness_body(harness: Harness) -> bytes:
    return bytes(OutboxCommand.objects.earliest("id").body)


def test_a_batch_ends_where_its_bytes_are_enough(harness: Harness) -> None:
    send_commands([Add("a", amount=number) for number in range(3)], outbox=True)
    size = len(harness_body(harness))
    assert len(rows.waiting("default", 10, 1)) == len(rows.waiting("default", 10, size)) == 1
    assert len(rows.waiting("default", 10, size + 1)) == 2
    assert len(rows.waiting("default", 2, 10 * size)) == 2


def test_a_database_without_the_table_is_named(harness: Harness) -> None:
    with connection.cursor() as cursor:
        cursor.execute("ALTER TABLE enode_django_outboxcommand RENAME TO away")
    try:
        assert not rows.has_table(DEFAULT_DB_ALIAS)
        with pytest.raises(ConfigurationError, match=r"'default' has no table for commands; run manage.py migrate,"):
            send_command(Add("a"), outbox=True)
    finally:
        with connection.cursor() as cursor:
            cursor.execute("ALTER TABLE away RENAME TO enode_django_outboxcommand")
    assert rows.has_table(DEFAULT_DB_ALIAS)


def test_the_setting_lets_on_commit_write_to_the_outbox(harness: Harness, settings: object) -> None:
    with transaction.atomic():
        send_command_on_commit(Add("a", amount=1))
    assert harness.amounts("a") == [1]
    settings.ENODE = {**settings.ENODE, "OUTBOX": {"ON_COMMIT": True}}  # type: ignore[attr-defined]
    with transaction.atomic():
        send_command_on_commit(Add("a", amount=2), expected_version=4)
    assert (harness.amounts("a"), harness.waiting()) == ([1], 1)
    assert harness.relay().run() == 1
    assert harness.amounts("a") == [1, 2]


@pytest.mark.parametrize("on_commit", [False, True])
def test_a_command_for_after_the_commit_has_the_metadata_of_the_call(
    harness: Harness, settings: Any, on_commit: bool
) -> None:
    settings.ENODE = {**settings.ENODE, "OUTBOX": {"ON_COMMIT": on_commit}}
    with transaction.atomic(), metadata(request="GET /"), metadata(user_id="7", correlation_id="k"):
        send_command_on_commit(Add("a"))
    harness.relay().run()
    assert decode_metadata(harness.sent()[0].metadata) == Metadata(user_id="7", request="GET /", correlation_id="k")


class Say(Command):
    type_name = "outbox.Say"
    text: str


@pytest.mark.parametrize("on_commit", [False, True])
def test_a_command_that_cannot_be_encoded_is_refused_while_its_transaction_can_be_rolled_back(
    harness: Harness, settings: Any, on_commit: bool
) -> None:
    settings.ENODE = {**settings.ENODE, "OUTBOX": {"ON_COMMIT": on_commit}}
    with transaction.atomic():
        with pytest.raises(InvalidField, match="surrogates"):
            send_command_on_commit(Say("a", text="\ud800"))
        send_command_on_commit(Add("a"))
    harness.relay().run()
    assert len(harness.sent()) == 1


def test_the_setting_keeps_the_command_in_the_transaction_of_the_call(harness: Harness, settings: Any) -> None:
    """The routers may choose another database for `OutboxCommand` than that of the transaction."""
    settings.ENODE = {**settings.ENODE, "OUTBOX": {"ON_COMMIT": True}}
    with separate_connection("default") as other:

        class Elsewhere:
            def db_for_write(self, model: object, **hints: object) -> str:
                return other

        settings.DATABASE_ROUTERS = [Elsewhere()]
        with transaction.atomic():
            send_command_on_commit(Add("a"))
            transaction.set_rollback(True)
        assert harness.waiting() == 0


def test_a_transaction_wakes_the_relay_once(harness: Harness, django_capture_on_commit_callbacks: object) -> None:
    with transaction.atomic():
        send_command(Add("a"), outbox=True)
        with transaction.atomic():
            send_commands([Add("a"), Add("b")], outbox=True)
        hooks = connection.run_on_commit
        assert len(hooks) == 1


def test_a_sender_does_not_notice_that_the_relay_cannot_be_woken(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The database is away from the commit on. The transaction has committed, so nothing may be raised."""
    with monkeypatch.context() as away, transaction.atomic():
        transaction.on_commit(lambda: (connection.close(), away.setitem(connection.settings_dict, "PORT", "1")))
        send_command(Add("a"), outbox=True)
    connection.close()
    assert harness.relay().run() == 1
