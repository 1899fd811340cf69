"""The sender's side: commands to the queue, answers back."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from itertools import islice
from typing import Protocol

from enode_django.commanding.replies import Replies
from enode_django.commanding.results import CommandResult
from enode_django.concurrency.backoff import delays
from enode_django.domain.messages import Command
from enode_django.domain.metadata import current_metadata
from enode_django.equeue.messages import SendResult
from enode_django.equeue.producer import Producer
from enode_django.equeue.transports.base import Transport
from enode_django.eventstore.base import CommandKey
from enode_django.exceptions import CommandTimeout, TransportUnavailable
from enode_django.serialization.codec import encode_command, encode_metadata

SEND_TRIES = 3


class CommandBus(Protocol):
    """What `enode_django.send_command` and its kin stand on.

    ``joins_transactions``: whether commands run in the caller's transaction, so that a rollback undoes them.
    """

    joins_transactions: bool

    def send(self, commands: Sequence[Command]) -> None:
        """Blocks until the queue has stored the commands."""

    def execute(self, command: Command, timeout: float) -> CommandResult:
        """Blocks until the command's outcome is durable; raises `CommandTimeout`."""

    async def aexecute(self, command: Command, timeout: float) -> CommandResult: ...

    def close(self) -> None: ...


class QueueCommandBus:
    """Safe for threads.

    A connection lost while sending leaves it unknown whether the queue has the commands. They are sent again, a few
    times: a command that comes twice takes effect once.
    """

    joins_transactions = False

    def __init__(self, transport: Transport, producer: Producer, topic: str) -> None:
        self._transport = transport
        self._producer = producer
        self._topic = topic
        self._replies = Replies(transport)

    def send(self, commands: Sequence[Command]) -> None:
        self._send(commands, "")

    def _send(self, commands: Sequence[Command], reply_to: str) -> list[SendResult]:
        metadata = encode_metadata(current_metadata())
        messages = [(command.aggregate_root_id, encode_command(command, metadata, reply_to)) for command in commands]
        for delay in islice(delays(), SEND_TRIES - 1):
            try:
                return self._producer.send_batch(self._topic, messages)
            except TransportUnavailable:
                time.sleep(delay)
        return self._producer.send_batch(self._topic, messages)

    def _ask(self, command: Command) -> SendResult:
        return self._send([command], self._replies.address)[0]

    def execute(self, command: Command, timeout: float) -> CommandResult:
        future = self._replies.expect(_key(command))
        try:
            sent = self._ask(command)
            try:
                return future.result(timeout)
            except TimeoutError:
                raise _timed_out(command, sent, timeout) from None
        finally:
            self._replies.forget(_key(command), future)

    async def aexecute(self, command: Command, timeout: float) -> CommandResult:
        future = self._replies.expect(_key(command))
        try:
            sent = await asyncio.to_thread(self._ask, command)
            try:
                return await asyncio.wait_for(asyncio.wrap_future(future), timeout)
            except TimeoutError:
                raise _timed_out(command, sent, timeout) from None
        finally:
            self._replies.forget(_key(command), future)

    def close(self) -> None:
        self._replies.close()
        self._transport.close()


def _key(command: Command) -> CommandKey:
    return (command.id, command.aggregate_root_id)


def _timed_out(command: Command, sent: SendResult, timeout: float) -> CommandTimeout:
    return CommandTimeout(
        f"{type(command).__qualname__} {command.id!r} was sent ({sent.topic}/{sent.queue}, offset {sent.offset}) but "
        f"not answered within {timeout:g} s; it may still be executed: ask again by executing it with the "
        "same id, and see that runprocessors is running"
    )
