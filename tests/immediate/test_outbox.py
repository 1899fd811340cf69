"""The outbox without a queue: the thread that wrote a command handles it after the commit."""

from __future__ import annotations

import dataclasses
import os
import signal
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any, ClassVar
from urllib.parse import urlsplit

import pytest
from django.db import connection, connections, transaction
from django.db.models.functions import Now
from django.test import TestCase, override_settings

from enode_django import Command, send_command, send_commands
from enode_django.conf.groups import IMMEDIATE
from enode_django.databases import separate_connection
from enode_django.eventing.registry import subscribers
from enode_django.exceptions import ConfigurationError
from enode_django.immediate import bus, catch_up, following
from enode_django.models import EventStream, OutboxCommand, ScheduledCommand
from enode_django.runtime import close_bus, current_bus
from tests import warm
from tests.immediate.conftest import NewProcess
from tests.immediate.domain import Behaviour, Fill, JarRow, JarRows, Label, Pour, mails
from tests.meta.tree import ROOT
from tests.outbox.harness import has_waiting


def totals() -> dict[str, int]:
    return dict(JarRow.objects.values_list("pk", "total"))


def test_a_command_is_handled_after_the_commit(new_process: NewProcess) -> None:
    new_process(JarRows)
    with transaction.atomic():
        send_command(Fill("a"), outbox=True)
        send_commands([Fill("b"), (Fill("a", amount=2), 1)], outbox=True)
        assert totals() == {}
    assert totals() == {"a": 3, "b": 1}
    assert OutboxCommand.objects.count() == 0


def test_nothing_is_handled_after_a_rollback(new_process: NewProcess) -> None:
    new_process(JarRows)
    with transaction.atomic():
        send_command(Fill("a"), outbox=True)
        transaction.set_rollback(True)
    assert (totals(), OutboxCommand.objects.count()) == ({}, 0)


def test_what_a_handler_writes_is_handled_after_its_command(
    new_process: NewProcess, behaviour: Behaviour, monkeypatch: pytest.MonkeyPatch
) -> None:
    new_process(JarRows)
    send_command(Fill("a"))

    def meet(name: str, id: str) -> None:
        if name == "label":
            send_command(Fill("b"), outbox=True)

    monkeypatch.setattr(behaviour, "meet", meet)
    send_command(Label("a"))
    assert totals() == {"a": 1, "b": 1}
    assert not has_waiting()


def test_an_unknown_command_is_rejected(new_process: NewProcess) -> None:
    new_process(JarRows)
    OutboxCommand.objects.create(aggregate_root_id="a", command_id="bad", body=b"nonsense")
    send_command(Fill("a"), outbox=True)
    assert totals() == {"a": 1}
    assert OutboxCommand.objects.get().error.startswith("MalformedMessage")


@dataclasses.dataclass(frozen=True)
class Motto:
    text: str
    refuses: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if self.refuses:
            raise ValueError(f"{self.text} is no motto")


class Engrave(Command):
    type_name = "immediate.Engrave"
    motto: Motto


def test_a_reason_that_no_column_can_hold_keeps_no_other_command_from_being_handled(
    new_process: NewProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    new_process(JarRows)
    with transaction.atomic():
        send_commands([Engrave("a", motto=Motto("\0")), Fill("a")], outbox=True)
        monkeypatch.setattr(Motto, "refuses", True)  # newer code
    assert totals() == {"a": 1}
    assert "\ufffd is no motto" in OutboxCommand.objects.get().error


@pytest.mark.parametrize("way", ["catch_up", "a later command"])
def test_what_a_process_left_between_commit_and_handling_is_handled_later(new_process: NewProcess, way: str) -> None:
    new_process(JarRows)
    bus = current_bus()
    with transaction.atomic():
        send_command(Fill("a"), outbox=True)
        connection.run_on_commit.clear()  # as if the process had ended with the commit
    assert (totals(), has_waiting()) == ({}, True)
    new_process(JarRows)
    assert current_bus() is not bus
    catch_up() if way == "catch_up" else send_command(Fill("b"))
    assert totals()["a"] == 1
    assert not has_waiting()


def test_a_process_that_is_killed_while_it_handles_a_command_leaves_it_to_the_next_one(
    new_process: NewProcess, postgres_url: str
) -> None:
    new_process(JarRows)
    send_command(Fill("a"))
    url = urlsplit(postgres_url)._replace(path=f"/{connection.settings_dict['NAME']}").geturl()
    command = ["-m", "tests.immediate.dying", "label", "a", "outbox"]
    environment = {**os.environ, "DATABASE_URL": url, "DJANGO_SETTINGS_MODULE": "sample_project.settings"}
    done = warm.run(command, cwd=ROOT, env=environment)
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert [row.command_id for row in OutboxCommand.objects.all()] == ["label", "fill"]
    new_process(JarRows, mails())
    catch_up()
    assert EventStream.objects.filter(aggregate_root_id="a").count() == 3
    assert totals() == {"a": 2}
    catch_up()
    assert EventStream.objects.filter(aggregate_root_id="a").count() == 3


def test_without_a_database_the_call_says_so() -> None:
    with override_settings(
        ENODE={"QUEUE": {"BACKEND": "enode_django.immediate.Immediate"}, "EVENT_STORE": {"DATABASES": ["nothing"]}}
    ):
        from django.db import connections

        connections.settings["nothing"] = {**connections.settings["default"], "ENGINE": "django.db.backends.dummy"}
        close_bus()
        try:
            with pytest.raises(ConfigurationError, match="no database is configured, so no command can be kept"):
                send_command(Label("a"), outbox=True)
        finally:
            del connections.settings["nothing"]
            close_bus()


def test_the_handler_of_another_jar_is_a_command_of_its_own(new_process: NewProcess) -> None:
    new_process(JarRows)
    with transaction.atomic():
        send_command(Pour("a", into="b"), outbox=True)
    assert totals() == {"a": 1, "b": 1}


def test_what_is_due_is_handled_by_catch_up_or_after_a_later_command(new_process: NewProcess) -> None:
    new_process(JarRows)
    send_command(Fill("a"), after=3_600)
    send_command(Fill("b"), at=datetime(2020, 1, 1, tzinfo=UTC))
    assert totals() == {}
    catch_up()
    assert totals() == {"b": 1}
    ScheduledCommand.objects.update(due_at=Now())
    send_command(Fill("c"), outbox=True)
    assert totals() == {"a": 1, "b": 1, "c": 1}
    assert ScheduledCommand.objects.count() == 0


def test_in_a_transaction_without_autocommit_it_is_written_too(new_process: NewProcess) -> None:
    """Django runs no hooks then, so the command is handled as one that a dead process has left."""
    new_process(JarRows)
    transaction.set_autocommit(False)
    try:
        send_command(Fill("a"), outbox=True)
        transaction.commit()
    finally:
        transaction.rollback()
        transaction.set_autocommit(True)
    assert totals() == {}
    catch_up()
    assert totals() == {"a": 1}


def test_an_error_of_the_relay_does_not_reach_the_sender(
    new_process: NewProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The database is away from the commit on. The transaction has committed, so nothing may be raised."""
    new_process(JarRows)
    done = []
    with monkeypatch.context() as away, transaction.atomic():
        transaction.on_commit(lambda: (connection.close(), away.setitem(connection.settings_dict, "PORT", "1")))
        send_command(Fill("a"), outbox=True)
        transaction.on_commit(lambda: done.append("the next hook"))
    assert done == ["the next hook"]
    assert (totals(), has_waiting()) == ({}, True)
    catch_up()
    assert totals() == {"a": 1}


# -- several databases: the commands are written in another one than the store's ---------------------------------------


@pytest.fixture
def other(new_process: NewProcess, settings: Any) -> Iterator[str]:
    with separate_connection("default") as alias:
        settings.ENODE = {**settings.ENODE, "OUTBOX": {"DATABASES": [alias]}}
        new_process(JarRows)
        yield alias


def test_what_an_open_transaction_of_another_database_has_written_is_not_handled(other: str) -> None:
    with transaction.atomic(using=other):
        send_command(Fill("a"), outbox=True, using=other)
        catch_up()
        transaction.set_rollback(True, using=other)
    assert totals() == {}


@pytest.mark.parametrize("commits", [True, False])
def test_a_command_does_not_depend_on_an_open_transaction_of_the_store(other: str, commits: bool) -> None:
    with transaction.atomic():
        with transaction.atomic(using=other):
            send_command(Fill("a"), outbox=True, using=other)
        if not commits:
            transaction.set_rollback(True)
    assert totals() == ({"a": 1} if commits else {})
    catch_up()
    assert totals() == {"a": 1}


def test_a_command_spends_the_time_for_what_others_have_left_once_and_not_for_each_database(
    other: str, settings: Any, behaviour: Behaviour, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(following, "KEEPING_UP", 0.05)
    send_command(Fill("a"))
    with transaction.atomic():
        for _ in range(3):
            send_command(Label("a"), outbox=True)
        connection.run_on_commit.clear()
    settings.ENODE = {**settings.ENODE, "OUTBOX": {"DATABASES": [other, "default"]}}
    close_bus()
    behaviour.takes = 0.1
    send_command(Fill("b"))
    assert EventStream.objects.filter(aggregate_root_id="a").count() <= 2
    behaviour.takes = 0.0
    catch_up()
    assert EventStream.objects.filter(aggregate_root_id="a").count() == 4


def test_no_outbox_takes_the_time_of_the_others_again_and_again(
    other: str, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings.ENODE = {**settings.ENODE, "OUTBOX": {"DATABASES": [other, "default"]}}
    close_bus()
    relay_left, relayed = bus.ImmediateCommandBus.relay_left, []

    def relay(self: bus.ImmediateCommandBus, alias: str, seconds: float) -> None:
        relayed.append(alias)
        relay_left(self, alias, seconds)

    monkeypatch.setattr(bus.ImmediateCommandBus, "relay_left", relay)
    for _ in range(2):
        catch_up()
    assert relayed == [other, "default", "default", other]


def test_a_database_that_is_away_keeps_no_other_one_waiting(
    other: str, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings.ENODE = {**settings.ENODE, "OUTBOX": {"DATABASES": [other, "default"]}}
    send_command(Fill("a"), at=datetime(2020, 1, 1, tzinfo=UTC), using="default")
    connections[other].close()
    with monkeypatch.context() as away:
        away.setattr(connections[other], "settings_dict", {**connections[other].settings_dict, "PORT": "1"})
        catch_up()
    assert totals() == {"a": 1}


class InTestCases(TestCase):
    def test_hooks_that_run_inside_the_transaction_of_a_test_come_to_an_end(self) -> None:
        with override_settings(ENODE={"QUEUE": {"BACKEND": IMMEDIATE}}), subscribers.only():
            close_bus()
            with self.captureOnCommitCallbacks(execute=True), transaction.atomic():
                send_command(Fill("a"), outbox=True)
            close_bus()
        assert EventStream.objects.filter(aggregate_root_id="a").count() == 1
