"""`manage.py check --deploy` reports settings that are unsafe for production."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from django.core.checks import run_checks
from django.test import override_settings

from enode_django.checks import deploy as deploy_checks
from enode_django.checks.deploy import check_production, check_queue
from enode_django.equeue.transports.memory import MemoryTransport
from enode_django.eventstore.memory import MemoryEventStore

MEMORY = {"BACKEND": f"{MemoryTransport.__module__}.MemoryTransport"}
BROKER = {"QUEUE": {"OPTIONS": {"secret": "x"}}, "BROKER": {"SECRET": "x", "DIRECTORY": "/var/lib/broker"}}


@pytest.fixture(autouse=True)
def no_debug() -> Iterator[None]:
    with override_settings(DEBUG=False):
        yield


def ids(**settings: Any) -> list[str | None]:
    with override_settings(ENODE=settings):
        messages = check_production(None)
    # Other tests may declare commands that everybody may send. Leave them out.
    return [message.id for message in messages if "everybody" not in message.msg or "notes.CreateNote" in message.msg]


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        (BROKER, []),
        ({**BROKER, "QUEUE": {}}, ["enode_django.W032"]),
        ({**BROKER, "BROKER": {"SECRET": "x"}}, ["enode_django.W035"]),
        # Its directory is not here.
        ({"QUEUE": {"LOCATION": "tcp://10.0.0.7", "OPTIONS": {"secret": "x", "tls": True}}}, []),
        ({"QUEUE": {"LOCATION": "tcp://10.0.0.7", "OPTIONS": {"secret": "x"}}}, ["enode_django.W099"]),
        ({"QUEUE": {"LOCATION": "nonsense", "OPTIONS": {"secret": "x"}}}, []),
        ({"QUEUE": MEMORY}, ["enode_django.W033"]),
        (
            {**BROKER, "EVENT_STORE": {"BACKEND": f"{MemoryEventStore.__module__}.MemoryEventStore"}},
            ["enode_django.W033"],
        ),
        ({**BROKER, "EVENT_STORE": {"BACKEND": "no.such.thing"}}, []),
        ({**BROKER, "EVENT_STORE": {"BACKEND": ".."}}, []),
        ({"QUEUE": "no dictionary"}, []),
    ],
)
def test_defaults_for_development_are_named(settings: dict[str, Any], expected: list[str]) -> None:
    assert ids(**settings) == expected


@pytest.mark.parametrize(
    ("permissions", "expected"),
    [
        (None, []),
        (["bank.add_transfer"], []),
        (["rest_framework.permissions.AllowAny"], ["enode_django.W036"]),
        (["rest_framework.permissions.AllowAny", "rest_framework.permissions.IsAdminUser"], []),
        (["no.such.Permission"], []),
    ],
)
def test_a_command_that_everybody_may_send_is_named(permissions: list[str] | None, expected: list[str]) -> None:
    assert ids(**BROKER, API={"COMMANDS": {"notes.CreateNote": permissions}}) == expected


def test_debug_is_named() -> None:
    with override_settings(DEBUG=True):
        assert ids(**BROKER) == ["enode_django.W034"]


@pytest.mark.parametrize("location", ["redis://:hidden@127.0.0.1:1/0", "tcp://127.0.0.1:1"])
def test_a_queue_that_cannot_be_reached_is_named_without_its_password(location: str) -> None:
    driver = "broker.BrokerTransport" if location.startswith("tcp") else "redis_streams.RedisStreamsTransport"
    queue = {"BACKEND": f"enode_django.equeue.transports.{driver}", "LOCATION": location}
    with override_settings(ENODE={"QUEUE": queue}):
        (message,) = check_queue(None)
    assert message.id == "enode_django.E029"
    assert "127.0.0.1:1" in message.msg
    assert "hidden" not in message.msg


def test_a_queue_that_cannot_be_made_is_named() -> None:
    with override_settings(ENODE={"QUEUE": {"BACKEND": "no.such.thing"}}):
        (message,) = check_queue(None)
    assert "'no.such.thing'" in message.msg


def test_a_queue_that_can_be_reached_is_fine() -> None:
    with override_settings(ENODE={"QUEUE": MEMORY}):
        assert check_queue(None) == []


is_over = threading.Event()


@pytest.fixture
def silence() -> Iterator[None]:
    is_over.clear()
    yield
    is_over.set()


class Silent(MemoryTransport):
    def topics(self) -> Sequence[str]:
        is_over.wait(60)
        return []


@pytest.mark.usefixtures("silence")
def test_a_queue_that_never_answers_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deploy_checks, "PATIENCE", 0.05)
    with override_settings(ENODE={"QUEUE": {"BACKEND": f"{__name__}.Silent"}}):
        (message,) = check_queue(None)
    assert "no answer" in message.msg


class Slow(MemoryTransport):
    def hazards(self) -> Sequence[str]:
        is_over.wait(60)
        return []


@pytest.mark.usefixtures("silence")
def test_a_queue_that_answers_can_be_used_though_its_servers_do_not_tell_their_hazards(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(deploy_checks, "PATIENCE_FOR_HAZARDS", 0.05)
    with override_settings(ENODE={"QUEUE": {"BACKEND": f"{__name__}.Slow"}}):
        assert check_queue(None) == []


class Evasive(MemoryTransport):
    def hazards(self) -> Sequence[str]:
        raise PermissionError("INFO is forbidden")


def test_a_queue_that_raises_when_asked_for_its_hazards_can_be_used() -> None:
    with override_settings(ENODE={"QUEUE": {"BACKEND": f"{__name__}.Evasive"}}):
        (message,) = check_queue(None)
    assert message.id == "enode_django.W037"
    assert "does not tell how it may lose messages (PermissionError: INFO is forbidden)" in message.msg


def test_they_run_for_a_deployment_only() -> None:
    with override_settings(ENODE={"QUEUE": MEMORY}):
        assert "enode_django.W033" not in [message.id for message in run_checks()]
        assert "enode_django.W033" in [message.id for message in run_checks(include_deployment_checks=True)]
