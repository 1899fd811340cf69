"""Management commands, checks and the status of a project without a queue."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.db import connection
from django.test import override_settings

from enode_django import send_command
from enode_django.checks.backends import check_backends
from enode_django.checks.deploy import check_production, check_queue
from enode_django.checks.settings import check_settings
from enode_django.conf.groups import BROKER, IMMEDIATE
from enode_django.eventing import parking
from enode_django.eventing.registry import subscribers
from enode_django.eventing.unparking import retry_parked
from enode_django.exceptions import ConfigurationError
from enode_django.immediate import catch_up
from enode_django.monitoring import Health, gather
from enode_django.runtime import has_queue, make_transport, subscription_of
from tests.immediate.conftest import NewProcess
from tests.immediate.domain import Behaviour, Fill, JarRow, JarRows, mails

ENODE: dict[str, Any] = {"QUEUE": {"BACKEND": IMMEDIATE}}


@pytest.fixture
def immediate(settings: Any) -> None:
    settings.ENODE = ENODE


@pytest.mark.usefixtures("immediate")
@pytest.mark.parametrize(
    ("command", "told"),
    [
        (["runprocessors"], "nothing else to run"),
        (["runprocessors", "--with-broker"], "nothing else to run"),
        (["enodedev"], "nothing else to run"),
        (["runbroker"], "no process would use this broker"),
    ],
)
def test_where_there_is_nothing_to_run_a_command_says_so(command: list[str], told: str) -> None:
    with pytest.raises(CommandError, match=told):
        call_command(*command)


@pytest.mark.usefixtures("immediate")
def test_there_is_no_transport() -> None:
    assert not has_queue()
    with pytest.raises(ConfigurationError, match="there is no queue"):
        make_transport()


def test_the_status_counts_neither_the_queue_nor_processors_as_missing(new_process: NewProcess) -> None:
    new_process(JarRows)
    send_command(Fill("a"))
    status = gather(["queue", "processors", "mailboxes", "backlog", "lag", "parked"])
    assert [(part.name, part.health) for part in status.parts if part.health is not Health.OK] == []
    assert status.part("queue").rows[0].kind == "Immediate"
    assert status.part("lag").rows[0].subscriber == "immediate.rows"


def test_what_is_parked_can_be_settled(new_process: NewProcess, behaviour: Behaviour) -> None:
    new_process(JarRows)
    behaviour.failing.add(("rows", "a"))
    send_command(Fill("a"))
    behaviour.failing.clear()
    with subscription_of("immediate.rows") as subscription:
        assert retry_parked(subscription, "a") is None
    assert JarRow.objects.get().total == 1


def test_catching_up_takes_no_command(new_process: NewProcess, behaviour: Behaviour) -> None:
    new_process(JarRows, mails("beginning"))
    behaviour.failing.add(("rows", "b"))
    send_command(Fill("b"))
    behaviour.failing.clear()
    parking.hurry("default", "immediate.rows", "b")
    with subscribers.only():
        send_command(Fill("a"))
    new_process(JarRows, mails("beginning"))
    catch_up()
    assert {*JarRow.objects.values_list("pk", "total")} == {("a", 1), ("b", 1)}
    assert sorted(behaviour.calls) == [("mails", "a", 1), ("mails", "b", 1)]


# -- system checks ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("queue", [{}, {"LOCATION": "tcp://127.0.0.1:7625"}, {"OPTIONS": {"timeout": 1.0}}])
def test_what_a_queue_would_take_is_no_use_without_one(queue: dict[str, Any]) -> None:
    with override_settings(ENODE={"QUEUE": {"BACKEND": IMMEDIATE, **queue}}):
        assert check_settings(None) == []
        assert [message.id for message in check_backends(None)] == (["enode_django.E190"] if queue else [])


def test_a_deploy_check_says_for_what_size_it_is_meant() -> None:
    with override_settings(ENODE=ENODE):
        assert check_queue(None) == []
        assert "enode_django.W190" in {message.id for message in check_production(None)}
    with override_settings(ENODE={"QUEUE": {"BACKEND": BROKER}}):
        assert "enode_django.W190" not in {message.id for message in check_production(None)}


def test_who_has_not_migrated_is_told_to(new_process: NewProcess) -> None:
    new_process()
    with connection.cursor() as cursor, ExitStack() as stack:
        cursor.execute("ALTER TABLE enode_django_eventstream RENAME TO away")
        stack.callback(cursor.execute, "ALTER TABLE away RENAME TO enode_django_eventstream")
        with pytest.raises(ConfigurationError, match=r"eventstream.* does not exist .*; run manage\.py migrate"):
            send_command(Fill("a"))
