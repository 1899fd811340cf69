"""What callers do of the work that others have left, and when."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.core.management import call_command
from django.db import connection, transaction
from django.test import TestCase
from django.utils import timezone

from enode_django import execute_command, send_command, send_commands
from enode_django.databases import execute, separate_connection
from enode_django.eventing import effects, parking
from enode_django.eventing.registry import subscribers
from enode_django.eventing.subscribers import key_of
from enode_django.immediate import catch_up, following
from enode_django.models import EventStream, ParkedEvent
from enode_django.outbox import rows
from tests.immediate.conftest import NewProcess
from tests.immediate.domain import Behaviour, Fill, JarRow, JarRows, mails
from tests.outbox.harness import another_thread


def totals() -> dict[str, int]:
    return dict(JarRow.objects.values_list("pk", "total"))


def test_catching_up_compares_and_retries_however_recently_a_command_has(
    new_process: NewProcess, behaviour: Behaviour
) -> None:
    new_process(JarRows)
    behaviour.failing.add(("rows", "b"))
    send_command(Fill("a"))
    send_command(Fill("b"))
    with subscribers.only():  # another process, which ends before anybody follows
        send_command(Fill("a"))
    behaviour.failing.clear()
    parking.hurry("default", "immediate.rows", "b")
    assert totals() == {"a": 1}
    catch_up()
    assert totals() == {"a": 2, "b": 1}


def test_refusals_are_deleted_when_they_are_older_than_the_settings_say(new_process: NewProcess) -> None:
    """No worker does it here, and a refusal may quote what a person has entered."""
    new_process(JarRows)
    send_command(Fill("a"))
    send_commands([Fill("a", id="old", amount=200), Fill("a", id="new", amount=200)])
    refusals = EventStream.unprotected.filter(version=None)
    refusals.filter(command_id="old").update(created_at=timezone.now() - timedelta(days=91))
    catch_up()
    assert [refusal.command_id for refusal in refusals] == ["new"]
    assert totals() == {"a": 1}


def test_a_command_waits_for_nobody_who_is_at_work_on_what_others_have_left(
    new_process: NewProcess, caplog: pytest.LogCaptureFixture
) -> None:
    with transaction.atomic():
        send_command(Fill("a"), outbox=True)
        connection.run_on_commit.clear()
    new_process(JarRows)
    with separate_connection("default") as other, transaction.atomic(using=other):
        rows.lock(other)
        execute("default", "SET lock_timeout = '100ms'", None)
        try:
            send_command(Fill("b"))
        finally:
            execute("default", "RESET lock_timeout", None)
    assert "cannot go on" not in caplog.text
    assert totals() == {"b": 1}
    catch_up()
    assert totals() == {"a": 1, "b": 1}


@pytest.fixture
def unhurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """A caller has time for what others have left, however slow the machine is."""
    monkeypatch.setattr(following, "KEEPING_UP", 60.0)


@pytest.mark.usefixtures("unhurried")
def test_a_command_waits_for_no_event_handler_that_another_caller_runs(
    new_process: NewProcess, behaviour: Behaviour, caplog: pytest.LogCaptureFixture
) -> None:
    """What others have left may be at work there."""
    new_process(mails())
    send_command(Fill("c"))
    with subscribers.only():
        send_commands([Fill("a"), Fill("b")])
    new_process(group := mails())
    with another_thread() as elsewhere, following._alone("default", [f"{key_of(group)} a"]):
        elsewhere(lambda: send_command(Fill("c", amount=200))).result(60)  # it is refused: there is no event
        assert sorted(id for _, id, _ in behaviour.calls) == ["b", "c"]
    assert "cannot go on" not in caplog.text
    catch_up()
    assert sorted(id for _, id, _ in behaviour.calls) == ["a", "b", "c"]
    assert not ParkedEvent.objects.exists()


@pytest.mark.usefixtures("unhurried")
def test_a_failure_is_kept_though_another_caller_handles_an_aggregate_of_the_same_batch(
    new_process: NewProcess, behaviour: Behaviour
) -> None:
    """Otherwise the failing event would be handled again after each command until the other aggregate is free."""
    new_process(mails())
    send_command(Fill("c"))
    with subscribers.only():
        send_commands([Fill("a"), Fill("b")])
    behaviour.failing.add(("mails", "b"))
    new_process(group := mails())
    with another_thread() as elsewhere, following._alone("default", [f"{key_of(group)} a"]):
        for _ in range(2):
            elsewhere(lambda: send_command(Fill("c", amount=200))).result(60)  # it is refused: there is no event
    assert list(ParkedEvent.objects.values_list("aggregate_root_id", "attempts")) == [("b", 1)]
    assert [name for name, _ in behaviour.users] == ["mails", "mails"]  # at c, and once at b
    catch_up()
    assert sorted(id for _, id, _ in behaviour.calls) == ["a", "c"]


def test_event_handlers_that_take_long_leave_the_rest_to_the_next_command(
    new_process: NewProcess, behaviour: Behaviour, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(effects, "SIDE_EFFECTS_AT_ONCE", 1)
    monkeypatch.setattr(following, "KEEPING_UP", 0.0)
    new_process(mails())
    send_command(Fill("a"))
    with subscribers.only():
        send_commands([Fill(id) for id in ("b", "c", "d")])
    new_process(mails())
    for handled in (["a", "b"], ["a", "b", "c"], ["a", "b", "c", "d"]):
        send_command(Fill("a", amount=200))  # it is refused: there is no event
        assert sorted(id for _, id, _ in behaviour.calls) == handled
    catch_up()
    assert len(behaviour.calls) == 4


def test_a_transaction_of_several_commands_looks_once_for_what_others_have_left(
    new_process: NewProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    new_process(JarRows)
    keep_up, looks = following.DatabaseSubscribers._keep_up, []

    def look(self: following.DatabaseSubscribers) -> None:
        looks.append(connection.in_atomic_block)
        keep_up(self)

    monkeypatch.setattr(following.DatabaseSubscribers, "_keep_up", look)
    with transaction.atomic():
        for id in ("a", "b", "c"):
            send_command(Fill(id))
        assert looks == []
    assert looks == [False]


def test_a_subscriber_that_cannot_be_made_is_not_the_callers_error(new_process: NewProcess, settings: Any) -> None:
    settings.ENODE = {**settings.ENODE, "SUBSCRIBER_MIDDLEWARE": ["nothing.there"]}
    new_process(JarRows)
    assert execute_command(Fill("a")).version == 1


# -- tests of a project -----------------------------------------------------------------------------------------------


def test_event_handlers_begin_again_after_a_test_case_is_rolled_back(
    new_process: NewProcess, behaviour: Behaviour
) -> None:
    new_process(mails())
    for command in (Fill("a", amount=200), Fill("b")):
        with transaction.atomic():
            with TestCase.captureOnCommitCallbacks(execute=True):
                send_command(command)
            transaction.set_rollback(True)
    assert behaviour.calls == [("mails", "b", 1)]


def test_event_handlers_begin_again_after_a_flush(new_process: NewProcess, behaviour: Behaviour) -> None:
    new_process(mails())
    send_command(Fill("a", amount=200))
    call_command("flush", interactive=False, verbosity=0)
    send_command(Fill("b"))
    assert behaviour.calls == [("mails", "b", 1)]
