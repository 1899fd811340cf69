"""Commands that wait in the database for their time."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta, timezone
from math import inf
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.db import connection, transaction
from django.db.models import F
from django.db.models.functions import Now

from enode_django import asend_command, cancel_command, metadata, send_command
from enode_django.bus.command_bus import outbox_rows
from enode_django.domain.metadata import Metadata
from enode_django.exceptions import ConfigurationError, InvalidField, shown
from enode_django.models import OutboxCommand, ScheduledCommand
from enode_django.outbox.relay import Relay
from enode_django.outbox.rows import NewRow
from enode_django.processors.outbox_relay import OutboxThread
from enode_django.runtime import make_relay
from enode_django.scheduling import rows
from enode_django.scheduling.due import DeadlineKey, Due, Scheduled
from enode_django.serialization.codec import decode_command, decode_metadata
from tests.outbox.harness import BreakingSender, Harness, another_thread, read_rows_as_they_lie
from tests.outbox.test_relaying import Killed, kill
from tests.outbox.test_threads import until
from tests.races.counting import Add

PAST, FUTURE = datetime(2020, 1, 1, tzinfo=UTC), datetime(2999, 1, 1, tzinfo=UTC)


def relay(harness: Harness, **options: Any) -> Relay:
    return Relay("default", options.pop("sender", None) or harness.sender(), schedule=rows, **options)


def make_due(**which: Any) -> None:
    """Make commands due, as if the clock of the database had advanced."""
    ScheduledCommand.objects.filter(**which).update(due_at=Now() - timedelta(seconds=1))


def key(name: str = "payment", scope: str = "a", subscriber: str = "s") -> DeadlineKey:
    return DeadlineKey(subscriber, scope, name)


def scheduled(id: str, due: Due) -> Scheduled:
    return Scheduled(NewRow("a", id, b""), due)


# -- commands --------------------------------------------------------------------------------------------------------


def test_a_command_is_sent_when_it_is_due_and_not_before(harness: Harness) -> None:
    with metadata(user_id="7"):
        send_command(Add("a", amount=1), after=timedelta(hours=1), expected_version=4)
        send_command(Add("a", amount=2), at=FUTURE)
    first, second = ScheduledCommand.objects.order_by("due_at")
    assert timedelta(minutes=59) < first.due_at - first.scheduled_at <= timedelta(hours=1)
    assert second.due_at == FUTURE
    one = relay(harness)
    assert one.run() == 0
    assert 3_500 < one.pause <= 3_600
    make_due(pk=first.pk)
    assert one.run() == 1
    (sent,) = harness.sent()
    assert (sent.fields["amount"], sent.expected_version) == (1, 4)
    assert decode_metadata(sent.metadata).user_id == "7"
    assert [row.pk for row in ScheduledCommand.objects.all()] == [second.pk]


def test_what_is_due_is_sent_in_the_order_of_times(harness: Harness) -> None:
    for days in range(50, 0, -1):
        send_command(Add("a", amount=days), at=PAST + timedelta(days=days))
    assert relay(harness).run() == 50
    assert harness.amounts("a") == list(range(1, 51))
    assert relay(harness).pause == inf


def test_the_first_ones_are_fired_first_if_more_are_due_than_are_fired_at_once(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rows, "FIRED_AT_ONCE", 2)
    for days in (5, 3, 1, 4, 2):
        send_command(Add("a", amount=days), at=PAST + timedelta(days=days))
    with another_thread() as elsewhere, transaction.atomic():
        elsewhere(read_rows_as_they_lie).result(60)
        ScheduledCommand.objects.select_for_update().get(due_at=PAST + timedelta(days=1))
        assert elsewhere(lambda: rows.fire("default")).result(60) == 0, "of those that are not locked"
        assert elsewhere(relay(harness).run).result(60) == 4
    assert harness.amounts("a") == [2, 3, 4, 5]
    assert relay(harness).run() == 1


def test_it_belongs_to_the_transaction(harness: Harness) -> None:
    with transaction.atomic():
        send_command(Add("a"), at=PAST)
        transaction.set_rollback(True)
    assert relay(harness).run() == 0
    with another_thread() as elsewhere, transaction.atomic():
        send_command(Add("a"), at=PAST, outbox=True)
        assert elsewhere(relay(harness).run).result() == 0
    assert relay(harness).run() == 1


@pytest.mark.parametrize(
    "time",
    [
        {"at": datetime(2999, 1, 1)},
        {"at": "tomorrow"},
        {"after": -1},
        {"after": float("nan")},
        {"after": True},
        {"after": 1e300},
        {"after": 10**400},
        {"after": timedelta(seconds=-1)},
        {"at": FUTURE, "after": 1},
        {"at": datetime.max.replace(tzinfo=timezone(timedelta(hours=-1)))},
        {"at": datetime.min.replace(tzinfo=timezone(timedelta(hours=1)))},
    ],
)
def test_another_time_is_refused(time: dict[str, Any]) -> None:
    with pytest.raises(InvalidField) as refused:
        send_command(Add("a"), **time)
    for name, value in time.items():
        assert f"{name}={shown(value)}" in str(refused.value), "the value that was given"


def test_a_database_without_the_table_is_named(harness: Harness) -> None:
    with connection.cursor() as cursor:
        cursor.execute("ALTER TABLE enode_django_scheduledcommand RENAME TO away")
    try:
        with pytest.raises(ConfigurationError, match="has no table for commands"):
            send_command(Add("a"), after=1)
    finally:
        with connection.cursor() as cursor:
            cursor.execute("ALTER TABLE away RENAME TO enode_django_scheduledcommand")


def test_what_waits_is_cancelled_by_its_id_and_nothing_else(harness: Harness) -> None:
    for id in ("a1", "a2"):
        send_command(Add("a", id=id), at=FUTURE)
    rows.change("default", {key(): scheduled("a1", Due(FUTURE))})
    assert cancel_command("a1")
    assert not cancel_command("a1")
    left = {(row.subscriber, row.command_id) for row in ScheduledCommand.objects.all()}
    assert left == {("", "a2"), ("s", "a1")}, "a deadline is another thing"


def test_a_cancellation_belongs_to_the_transaction(harness: Harness) -> None:
    send_command(Add("a", id="a1"), at=FUTURE)
    with transaction.atomic():
        assert cancel_command("a1")
        transaction.set_rollback(True)
    assert ScheduledCommand.objects.count() == 1


def test_what_is_being_fired_is_not_cancelled(harness: Harness) -> None:
    send_command(Add("a", id="a1"), at=PAST)
    with another_thread() as elsewhere:
        with transaction.atomic():
            rows.fire("default")
            cancelling = elsewhere(lambda: cancel_command("a1"))
            until(waits_for_a_lock)
        assert cancelling.result() is False
    assert OutboxCommand.objects.count() == 1


@contextmanager
def repeatable_read() -> Iterator[None]:
    """The level of the transactions of this thread's session."""
    with connection.cursor() as cursor:
        cursor.execute("SET default_transaction_isolation = 'repeatable read'")
        try:
            yield
        finally:
            cursor.execute("RESET default_transaction_isolation")


def test_at_a_stricter_level_what_is_being_fired_is_not_cancelled_either(harness: Harness) -> None:
    send_command(Add("a", id="fired"), at=PAST)
    with another_thread() as elsewhere:

        def cancelled() -> bool:
            with repeatable_read():
                return cancel_command("fired")

        with transaction.atomic():
            rows.fire("default")
            cancelling = elsewhere(cancelled)
            until(waits_for_a_lock)
        assert cancelling.result(30) is False


def test_at_a_stricter_level_a_relay_reads_what_was_sent_before_its_turn(harness: Harness) -> None:
    levels = []

    def note_level() -> None:
        with connection.cursor() as cursor:
            cursor.execute("SHOW transaction_isolation")
            levels.extend(cursor.fetchone())

    send_command(Add("a"), outbox=True)
    with repeatable_read():
        assert relay(harness, sender=BreakingSender(harness, note_level, lambda: None)).run() == 1
    assert levels == ["read committed"]


def test_async_code_schedules_and_writes_to_the_outbox(harness: Harness) -> None:
    async def send() -> None:
        await asend_command(Add("a", amount=1), after=timedelta(hours=1), expected_version=4)
        await asend_command(Add("a", amount=2), at=FUTURE)
        await asend_command(Add("a", amount=3), outbox=True)

    with metadata(user_id="7"):
        async_to_sync(send)()
    bodies = [row.body for model in (ScheduledCommand, OutboxCommand) for row in model.objects.order_by("id")]
    wires = [decode_command(bytes(body)) for body in bodies]
    assert [(wire.fields["amount"], wire.expected_version) for wire in wires] == [(1, 4), (2, None), (3, None)]
    assert {decode_metadata(wire.metadata).user_id for wire in wires} == {"7"}
    with pytest.raises(InvalidField):
        async_to_sync(asend_command)(Add("a"), at=FUTURE, after=1)


# -- crashes, clocks, several relays -----------------------------------------------------------------------------------


@pytest.mark.parametrize("seam", ["fire", "before", "after"])
def test_a_relay_that_dies_between_firing_and_sending_loses_nothing(
    harness: Harness, monkeypatch: pytest.MonkeyPatch, seam: str
) -> None:
    send_command(Add("a", amount=1), at=PAST)
    send_command(Add("a", amount=2), at=PAST)
    nothing: Callable[[], object] = lambda: None  # noqa: E731
    sender = BreakingSender(harness, kill if seam == "before" else nothing, kill if seam == "after" else nothing)
    with monkeypatch.context() as patch:
        if seam == "fire":

            def dies(alias: str, statement: str, parameters: Any) -> Any:
                done = execute(alias, statement, parameters)
                if "DELETE" in statement:
                    raise Killed
                return done

            execute = rows.execute
            patch.setattr(rows, "execute", dies)
        with pytest.raises(Killed):
            relay(harness, sender=sender).run()
    assert ScheduledCommand.objects.count() + OutboxCommand.objects.count() == 2
    assert relay(harness).run() == 2
    assert harness.amounts("a") == [1, 2]
    assert len({one.id for one in harness.sent()}) == 2


def test_the_clocks_of_processes_do_not_matter(harness: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    send_command(Add("a"), after=3_600)
    for shift in (-1e6, 1e6):
        monkeypatch.setattr(time, "time", lambda shift=shift: 1e9 + shift)
        one = relay(harness)
        assert one.run() == 0
        assert 3_500 < one.pause <= 3_600


def test_after_a_step_of_the_databases_clock_a_pause_is_asked_for_again(harness: Harness) -> None:
    """The thread never sleeps longer than its interval, so a step is seen within it."""
    send_command(Add("a"), after=3_600)
    thread = OutboxThread(relay(harness), 0.02)
    try:
        make_due()
        until(lambda: harness.amounts("a") == [1])
    finally:
        thread.stop()
        thread.thread.join(60)


def test_a_thread_wakes_up_for_the_next_command_that_is_due(harness: Harness) -> None:
    send_command(Add("a"), after=0.1)
    thread = OutboxThread(relay(harness), 3_600.0)
    try:
        until(lambda: harness.amounts("a") == [1])
    finally:
        thread.stop()
        from enode_django.outbox.rows import wake

        wake("default")
        thread.thread.join(60)
        assert not thread.thread.is_alive()


def test_two_relays_fire_each_command_once(harness: Harness) -> None:
    for amount in range(30):
        send_command(Add("a", amount=amount), at=PAST + timedelta(seconds=amount))
    threads = [OutboxThread(relay(harness, at_once=7), 0.001) for _ in range(2)]
    try:
        until(lambda: len(harness.amounts("a")) == 30)
    finally:
        for one in threads:
            one.stop()
        for one in threads:
            one.thread.join(60)
    assert harness.amounts("a") == list(range(30))
    assert len(harness.sent()) == 30


def test_the_relay_of_the_settings_fires(harness: Harness) -> None:
    send_command(Add("a"), at=PAST)
    assert make_relay("default", harness.queue).run() == 1


# -- deadlines ----------------------------------------------------------------------------------------------------


def test_a_deadline_is_replaced_under_its_name_and_cancelled(harness: Harness) -> None:
    rows.change("default", {key(): scheduled("c1", Due(FUTURE)), key("other"): scheduled("o", Due(FUTURE))})
    rows.change("default", {key(): scheduled("c2", Due(FUTURE + timedelta(days=1)))})
    assert {(row.name, row.command_id) for row in ScheduledCommand.objects.all()} == {("payment", "c2"), ("other", "o")}
    for _ in range(2):
        rows.change("default", {key(): None, key(scope="b"): None})
        assert [row.name for row in ScheduledCommand.objects.all()] == ["other"]


def test_a_deadline_may_be_replaced_by_a_command_for_another_aggregate(harness: Harness) -> None:
    rows.change("default", {key(): Scheduled(NewRow("a", "c1", b"old"), Due(FUTURE))})
    ScheduledCommand.objects.update(scheduled_at=PAST)
    rows.change("default", {key(): Scheduled(NewRow("b", "c2", b"new"), Due(PAST))})
    row = ScheduledCommand.objects.get()
    assert row.scheduled_at > row.due_at
    rows.fire("default")
    assert list(OutboxCommand.objects.values_list("aggregate_root_id", "command_id", "body")) == [("b", "c2", b"new")]


def test_what_is_scheduled_wakes_the_relay(harness: Harness) -> None:
    with transaction.atomic():
        send_command(Add("a"), at=FUTURE)
        assert len(connection.run_on_commit) == 1
    with transaction.atomic():
        rows.change("default", {key(): None})
        assert connection.run_on_commit == []
        rows.change("default", {key(): scheduled("c1", Due(FUTURE)), key("other"): None})
        assert len(connection.run_on_commit) == 1


def test_plain_commands_are_no_deadlines(harness: Harness) -> None:
    send_command(Add("a"), at=FUTURE)
    send_command(Add("a"), at=FUTURE)
    rows.change("default", {DeadlineKey("", "", ""): None})
    assert ScheduledCommand.objects.count() == 2


def test_a_deadline_that_is_put_off_while_it_is_fired_does_not_fire(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The relay has chosen the row, and waits for the transaction that changes it, however long that takes."""
    monkeypatch.setattr(rows, "_LIMIT_WAITING", "SET LOCAL lock_timeout = 0")
    rows.change("default", {key(): scheduled("c1", Due(PAST))})
    with another_thread() as elsewhere:
        with transaction.atomic():
            rows.change("default", {key(): scheduled("c2", Due(FUTURE))})
            firing = elsewhere(lambda: rows.fire("default"))
            until(waits_for_a_lock)
        assert firing.result() > 0
    assert OutboxCommand.objects.count() == 0
    assert ScheduledCommand.objects.get().command_id == "c2"


def test_a_worker_and_a_relay_that_change_several_deadlines_do_not_deadlock(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rows were made in the other order than that of their keys, by which the worker changes them. Neither
    has to give up waiting."""
    monkeypatch.setattr(rows, "_LIMIT_WAITING", "SET LOCAL lock_timeout = 0")
    for name in ("b", "a"):
        rows.change("default", {key(name): scheduled(name, Due(PAST))})
    change = rows._change
    with another_thread() as elsewhere:
        firing: list[Future[float]] = []

        def slowly(alias: str, key: DeadlineKey, scheduled: Scheduled | None) -> None:
            change(alias, key, scheduled)
            if not firing:
                firing.append(elsewhere(lambda: rows.fire("default")))
                until(waits_for_a_lock)

        monkeypatch.setattr(rows, "_change", slowly)
        with transaction.atomic():
            rows.change("default", {key(name): scheduled(f"new {name}", Due(FUTURE)) for name in ("a", "b")})
        assert firing[0].result() > 0
    assert {row.command_id for row in ScheduledCommand.objects.all()} == {"new a", "new b"}
    assert OutboxCommand.objects.count() == 0


def test_two_workers_that_set_the_same_new_deadlines_do_not_deadlock(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No row can be locked before the first of them has written it."""
    change = rows._change
    with another_thread() as elsewhere:
        second: list[Future[None]] = []

        def slowly(alias: str, key: DeadlineKey, scheduled: Scheduled | None) -> None:
            change(alias, key, scheduled)
            if not second:
                second.append(elsewhere(lambda: set_deadlines("b", "a")))
                until(waits_for_a_lock)

        def set_deadlines(*names: str) -> None:
            with transaction.atomic():
                rows.change("default", {key(name): scheduled(name, Due(FUTURE)) for name in names})

        monkeypatch.setattr(rows, "_change", slowly)
        set_deadlines("a", "b")
        assert second[0].exception() is None
    assert {row.command_id for row in ScheduledCommand.objects.all()} == {"a", "b"}


def test_a_transaction_that_stays_open_holds_up_no_other_command(harness: Harness) -> None:
    """Somebody has cancelled a command that is due, and does not commit."""
    for id in ("kept", "due"):
        send_command(Add("a", id=id), at=FUTURE)
    make_due()
    send_command(Add("b", id="sent"), outbox=True)
    with another_thread() as elsewhere:
        with transaction.atomic():
            assert cancel_command("kept")
            one = relay(harness)
            assert elsewhere(one.run).result(30) == 2
            assert one.pause == rows.LOOK_AGAIN, "it does not look all the time"
            assert {one.id for one in harness.sent()} == {"due", "sent"}
            transaction.set_rollback(True)
        assert elsewhere(lambda: relay(harness).run()).result(30) == 1
    assert harness.sent()[-1].id == "kept"


def schedule_before_all_others(count: int) -> None:
    ScheduledCommand.objects.bulk_create(
        ScheduledCommand(aggregate_root_id="a", command_id=row.command_id, body=row.body, due_at=PAST)
        for row in outbox_rows([(Add("a"), Metadata()) for _ in range(count)])
    )


def test_nor_does_one_that_keeps_more_of_them_locked_than_are_fired_at_once(harness: Harness) -> None:
    schedule_before_all_others(rows.FIRED_AT_ONCE)
    send_command(Add("a", id="due"), at=FUTURE)
    make_due(command_id="due")
    with another_thread() as elsewhere, transaction.atomic():
        assert len(ScheduledCommand.objects.filter(due_at=PAST).select_for_update()) == rows.FIRED_AT_ONCE
        assert elsewhere(lambda: relay(harness).run()).result(30) == 1
        assert [one.id for one in harness.sent()] == ["due"]


def test_many_that_are_due_at_once_are_fired_and_sent_in_portions(harness: Harness) -> None:
    """So a relay can stop between them, and new rows of the outbox do not wait for all of them."""
    schedule_before_all_others(3 * rows.FIRED_AT_ONCE)
    sent: list[bool] = []
    sender = BreakingSender(harness, lambda: None, lambda: sent.append(True))
    one = relay(harness, sender=sender)
    assert one.run(is_stopped=lambda: bool(sent)) == rows.FIRED_AT_ONCE
    assert (one.pause, ScheduledCommand.objects.count()) == (0.0, 2 * rows.FIRED_AT_ONCE)
    send_command(Add("b", id="new"), outbox=True)
    assert one.run() == 2 * rows.FIRED_AT_ONCE + 1
    assert OutboxCommand.objects.count() == ScheduledCommand.objects.count() == 0


def waits_for_a_lock() -> bool:
    with connection.cursor() as cursor:
        cursor.execute("SELECT EXISTS (SELECT FROM pg_locks WHERE NOT granted)")
        return bool(cursor.fetchone()[0])


def test_a_million_others_are_not_read(harness: Harness) -> None:
    """The next one that is due comes from an index."""
    ScheduledCommand.objects.bulk_create(
        ScheduledCommand(aggregate_root_id="a", command_id=str(n), body=b"", due_at=FUTURE) for n in range(2_000)
    )
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE enode_django_scheduledcommand")
        cursor.execute(f"EXPLAIN {rows._NEXT}")
        plan = "\n".join(line for (line,) in cursor.fetchall())
    assert "enode_scheduled_due" in plan
    assert "Sort" not in plan
    assert ScheduledCommand.objects.filter(due_at__gt=F("scheduled_at")).count() == 2_000
