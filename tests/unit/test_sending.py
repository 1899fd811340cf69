from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from django.test import override_settings

from enode_django import Metadata, aexecute_command, asend_command, execute_command, send_command, send_commands
from enode_django.bus.command_bus import QueueCommandBus
from enode_django.domain.metadata import ambient_metadata
from enode_django.equeue.producer import Producer
from enode_django.equeue.transports.memory import MemoryInbox, MemoryTransport
from enode_django.exceptions import CommandTimeout, DefinitionError, InvalidField, TransportUnavailable
from enode_django.runtime import use_bus
from enode_django.serialization.codec import decode_command, decode_metadata
from tests.races.counting import Add


class Shaky(MemoryTransport):
    """Stores messages, and then raises `TransportUnavailable` for this number of sends. Counts the opened inboxes."""

    def __init__(self, failures: int = 0) -> None:
        super().__init__()
        self.failures = failures
        self.inboxes = 0

    def send(self, topic: str, bodies: Mapping[int, Sequence[bytes]], **options: Any) -> Mapping[int, int]:
        sent = super().send(topic, bodies, **options)
        if self.failures:
            self.failures -= 1
            raise TransportUnavailable("the connection was lost after the message was stored")
        return sent

    def open_inbox(self) -> MemoryInbox:
        self.inboxes += 1
        return super().open_inbox()

    @property
    def stored(self) -> int:
        return sum(self.end_offsets("commands").values())


def bus_on(transport: Shaky) -> QueueCommandBus:
    return QueueCommandBus(transport, Producer(transport, queues=1), "commands")


def test_send_commands_says_what_to_do_with_a_single_command() -> None:
    with use_bus(bus_on(Shaky())), pytest.raises(DefinitionError, match=r"got one Add; put it into a list, or call"):
        send_commands(Add("x"))  # type: ignore[arg-type]


def test_using_is_refused_where_no_transaction_would_have_the_command() -> None:
    """Without an outbox it would be sent at once, and a rollback would not take it back."""
    transport = Shaky()
    refused = pytest.raises(
        DefinitionError, match=r"using='default' .* add outbox=True, at= or after=, or leave it out"
    )
    with use_bus(bus_on(transport)):
        with refused:
            send_command(Add("x"), using="default")
        with refused:
            send_commands([Add("x")], using="default")
        with refused:
            asyncio.run(asend_command(Add("x"), using="default"))
    assert transport.topics() == []


@pytest.mark.parametrize(("failures", "stored"), [(0, 1), (1, 2), (2, 3)])
def test_a_command_is_sent_up_to_three_times(failures: int, stored: int) -> None:
    transport = Shaky(failures)
    with use_bus(bus_on(transport)):
        send_command(Add("x"))
    assert transport.stored == stored


class Asked:
    """Metadata that have to be asked for, as those of a request are. Notes the threads that ask."""

    def __init__(self) -> None:
        self.threads: list[threading.Thread] = []

    def __call__(self) -> Metadata:
        self.threads.append(threading.current_thread())
        return Metadata(user_id="7")


def test_a_request_is_asked_for_its_user_in_its_own_thread() -> None:
    """The database may be asked then, over the connection of the thread: the request closes its own only."""
    source, transport = Asked(), Shaky()
    with use_bus(bus_on(transport)), ambient_metadata(source):
        send_command(Add("x"))
        with pytest.raises(CommandTimeout):
            execute_command(Add("x"), timeout=0.05)
    assert source.threads == [threading.current_thread()] * 2
    wait_until_stored(transport, 2)
    assert users(transport) == ["7", "7"]


def test_a_request_of_asynchronous_code_is_asked_in_the_thread_of_synchronous_code() -> None:
    source, transport = Asked(), Shaky()

    async def send_and_execute() -> threading.Thread:
        await asend_command(Add("x"))
        with pytest.raises(CommandTimeout):
            await aexecute_command(Add("x"), timeout=0.05)
        return await sync_to_async(threading.current_thread)()

    with use_bus(bus_on(transport)), ambient_metadata(source):
        thread = asyncio.run(send_and_execute())
    assert source.threads == [thread] * 2
    wait_until_stored(transport, 2)
    assert users(transport) == ["7", "7"]


def wait_until_stored(transport: Shaky, number: int) -> None:
    deadline = time.monotonic() + 60.0
    while transport.stored < number:
        assert time.monotonic() < deadline
        time.sleep(0.001)


def users(transport: Shaky) -> list[str | None]:
    (batch,) = transport.pull("commands", {0: 0}, limit=10, wait=0)
    return [decode_metadata(decode_command(body).metadata).user for body in batch.bodies]


def test_of_commands_with_a_wrong_one_at_the_end_none_is_sent() -> None:
    transport = Shaky()
    with use_bus(bus_on(transport)), pytest.raises(DefinitionError, match="is not a command"):
        send_commands(one for one in (Add("x"), Add("y"), "z"))  # type: ignore[misc]
    assert transport.topics() == []


def test_after_three_tries_the_sender_is_told_to_try_again() -> None:
    transport = Shaky(failures=3)
    with use_bus(bus_on(transport)), pytest.raises(TransportUnavailable) as caught:
        send_command(Add("x"))
    assert caught.value.retriable
    assert (transport.stored, transport.failures) == (3, 0)


def test_a_reply_channel_is_opened_once_and_only_for_who_waits() -> None:
    transport = Shaky()
    with use_bus(bus_on(transport)):
        send_commands(Add("x") for _ in range(3))
        assert transport.inboxes == 0
        for _ in range(2):
            with pytest.raises(CommandTimeout, match=r"within 0\.02 s"):
                execute_command(Add("x"), timeout=0.02)
        assert transport.inboxes == 1


def test_the_settings_say_how_long_an_execution_waits() -> None:
    with (
        override_settings(ENODE={"COMMANDS": {"EXECUTE_TIMEOUT": 0.03}}),
        use_bus(bus_on(Shaky())),
        pytest.raises(CommandTimeout, match=r"within 0\.03 s"),
    ):
        execute_command(Add("x"))


@pytest.mark.parametrize("timeout", [0, -1.0, "5", True, float("nan"), float("inf"), timedelta(seconds=5)])
def test_a_timeout_that_cannot_be_used_is_refused_before_anything_is_sent(timeout: Any) -> None:
    transport = Shaky()
    transport.create_topic("commands", 1)
    with use_bus(bus_on(transport)):
        with pytest.raises(InvalidField, match=r"timeout=.* is not a number of seconds above 0"):
            execute_command(Add("x"), timeout=timeout)
        with pytest.raises(InvalidField, match=r"timeout=.* is not a number of seconds above 0"):
            asyncio.run(aexecute_command(Add("x"), timeout=timeout))
    assert (transport.stored, transport.inboxes) == (0, 0)
