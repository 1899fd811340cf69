"""Tests of a project send to no real queue unless their settings say so. (This project's own say so.)"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.core import mail
from django.db import transaction
from django.test import TestCase, override_settings

from enode_django import (
    Command,
    asend_command,
    atry_command,
    send_command,
    send_command_on_commit,
    send_commands,
    try_command,
)
from enode_django.bus.command_bus import QueueCommandBus
from enode_django.equeue.producer import Producer
from enode_django.equeue.transports.memory import MemoryTransport
from enode_django.eventstore.memory import MemoryEventStore
from enode_django.exceptions import SendInsideTest
from enode_django.operating.dead_letters import requeue_in
from enode_django.runtime import close_bus, use_bus
from enode_django.testing import inline
from tests.races.counting import Add

queue = MemoryTransport()
MEMORY = {"QUEUE": {"BACKEND": f"{__name__}.the_queue", "QUEUES_PER_TOPIC": 1}}
WAYS: dict[str, Callable[[Command], object]] = {
    "send_command": send_command,
    "send_commands": lambda command: send_commands([command]),
    "asend_command": lambda command: asyncio.run(asend_command(command)),
    "try_command": try_command,
    "atry_command": lambda command: asyncio.run(atry_command(command)),
}


def the_queue(location: str) -> MemoryTransport:
    return queue


@pytest.fixture(autouse=True)
def settings_of_a_project() -> Iterator[None]:
    global queue
    queue = MemoryTransport()
    queue.create_topic("commands", 1)
    with override_settings(ENODE=MEMORY):
        yield
    close_bus()


def command() -> Add:
    return Add(uuid.uuid4().hex)


def stored() -> int:
    return sum(queue.end_offsets("commands").values())


@pytest.mark.parametrize("way", WAYS)
def test_a_test_that_would_send_for_real_is_told_what_to_do_instead(way: str) -> None:
    with pytest.raises(
        SendInsideTest, match=r"inline\(\), take the pytest fixture enode_bus, or set ENODE\['SEND_IN_TESTS'"
    ):
        WAYS[way](command())
    assert stored() == 0


def test_so_is_one_that_would_send_a_dead_letter_again() -> None:
    with pytest.raises(SendInsideTest):
        list(requeue_in(queue, "default", []))


@pytest.mark.django_db
def test_and_one_whose_transaction_would_commit() -> None:
    with (
        pytest.raises(SendInsideTest),
        TestCase.captureOnCommitCallbacks(execute=True),
        transaction.atomic(),
    ):
        send_command_on_commit(command())
    assert stored() == 0


@pytest.mark.parametrize("way", WAYS)
def test_inside_inline_commands_are_executed(way: str) -> None:
    with inline(MemoryEventStore()) as bus:
        WAYS[way](command())
    assert len(bus.results) == 1
    assert stored() == 0


def test_settings_may_allow_it() -> None:
    with override_settings(ENODE={**MEMORY, "SEND_IN_TESTS": True}):
        send_command(command())
    assert stored() == 1
    with pytest.raises(SendInsideTest):  # the setting is back
        send_command(command())


def test_a_bus_that_the_test_brings_is_used() -> None:
    with use_bus(QueueCommandBus(queue, Producer(queue, queues=1), "commands")):
        send_command(command())
    assert stored() == 1


def without_an_outbox(monkeypatch: pytest.MonkeyPatch, settings: Any) -> None:
    monkeypatch.delattr(mail, "outbox")


def without_the_host_of_the_test_client(monkeypatch: pytest.MonkeyPatch, settings: Any) -> None:
    """Keep `mail.outbox`, as in a project that sends its mail to memory."""
    settings.ALLOWED_HOSTS = ["example.com"]


@pytest.mark.parametrize("change", [without_an_outbox, without_the_host_of_the_test_client])
def test_outside_of_tests_it_is_sent(
    change: Callable[[pytest.MonkeyPatch, Any], None], monkeypatch: pytest.MonkeyPatch, settings: Any
) -> None:
    change(monkeypatch, settings)
    send_command(command())
    assert stored() == 1
