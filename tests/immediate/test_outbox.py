"""The outbox where there is no queue: the thread that has written a command handles it after the commit."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from datetime import UTC, datetime
from urllib.parse import urlsplit

import pytest
from django.db import connection, transaction
from django.db.models.functions import Now
from django.test import override_settings

from enode_django import send_command, send_commands
from enode_django.exceptions import ConfigurationError
from enode_django.immediate import catch_up
from enode_django.models import EventStream, OutboxCommand, ScheduledCommand
from enode_django.outbox import rows
from enode_django.runtime import close_bus, current_bus
from tests.immediate.conftest import NewProcess
from tests.immediate.domain import Behaviour, Fill, JarRow, JarRows, Label, Pour, mails
from tests.meta.tree import ROOT


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
    assert not rows.has_waiting("default")


def test_an_unknown_command_is_rejected(new_process: NewProcess) -> None:
    new_process(JarRows)
    OutboxCommand.objects.create(aggregate_root_id="a", command_id="bad", body=b"nonsense")
    send_command(Fill("a"), outbox=True)
    assert totals() == {"a": 1}
    assert OutboxCommand.objects.get().error.startswith("MalformedMessage")


@pytest.mark.parametrize("way", ["catch_up", "a later command"])
def test_what_a_process_left_between_commit_and_handling_is_handled_later(new_process: NewProcess, way: str) -> None:
    new_process(JarRows)
    bus = current_bus()
    with transaction.atomic():
        send_command(Fill("a"), outbox=True)
        connection.run_on_commit.clear()  # as if the process had ended with the commit
    assert (totals(), rows.has_waiting("default")) == ({}, True)
    new_process(JarRows)
    assert current_bus() is not bus
    catch_up() if way == "catch_up" else send_command(Fill("b"))
    assert totals()["a"] == 1
    assert not rows.has_waiting("default")


def test_a_process_that_is_killed_while_it_handles_a_command_leaves_it_to_the_next_one(
    new_process: NewProcess, postgres_url: str
) -> None:
    new_process(JarRows)
    send_command(Fill("a"))
    url = urlsplit(postgres_url)._replace(path=f"/{connection.settings_dict['NAME']}").geturl()
    command = [sys.executable, "-m", "tests.immediate.dying", "label", "a", "outbox"]
    environment = {**os.environ, "DATABASE_URL": url, "DJANGO_SETTINGS_MODULE": "sample_project.settings"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=120)
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
