"""The sender's side: commands to the queue, answers back."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from functools import partial
from itertools import islice, repeat
from queue import Full
from typing import Protocol

from asgiref.sync import sync_to_async

from enode_django.bus.addresses import crashes_address, reply_address
from enode_django.bus.replies import Replies
from enode_django.bus.results import CommandResult
from enode_django.bus.waiting import AwaitedSubscribers, Wait
from enode_django.concurrency.backoff import delays
from enode_django.concurrency.threads import CallingThreads
from enode_django.domain.messages import Command
from enode_django.domain.metadata import Metadata, current_metadata, known_metadata
from enode_django.equeue.messages import SendResult
from enode_django.equeue.producer import Producer
from enode_django.equeue.transport import Transport
from enode_django.eventstore.base import CommandKey, EventStore
from enode_django.exceptions import CommandTimeout, TransportUnavailable
from enode_django.outbox import rows as outbox
from enode_django.scheduling import rows as scheduling
from enode_django.scheduling.due import Due
from enode_django.serialization.codec import encode_command, encode_metadata
from enode_django.serialization.registry import types
from enode_django.telemetry import steplog
from enode_django.telemetry.tracing import current_tracing

SEND_TRIES = 3
MOST_SENDS = 64
"""The most threads that send commands whose senders wait for an answer. Further commands wait for a thread."""
MOST_WAITING = 50_000
"""The most commands that wait for one of these threads, each with about 5 KB. They stay when their senders give up, so
there would be ever more while the queue does not answer."""

CrashHandler = Callable[[Command], str]
"""Return the name of the process manager that handles the crash of a command; empty if none does."""


def nobody(command: Command) -> str:
    return ""


def outbox_rows(
    commands: Sequence[tuple[Command, Metadata]],
    crash_handler: CrashHandler = nobody,
    expected_versions: Sequence[int | None] = (),
) -> list[outbox.NewRow]:
    """Return the commands as rows of the outbox, encoded as the queue gets them."""
    return [
        outbox.NewRow(
            command.aggregate_root_id,
            command.id,
            encode_command(command, encode_metadata(metadata), crashes_address(crash_handler(command)), version),
        )
        for (command, metadata), version in zip(commands, expected_versions or repeat(None), strict=False)
    ]


class CommandBus(Protocol):
    """The port behind `enode_django.send_command` and its kin.

    ``joins_transactions`` says whether commands run in the caller's transaction, so that a rollback undoes them.
    ``store`` is the store that the bus itself writes; None if workers write the event store of the settings.
    """

    joins_transactions: bool

    @property
    def store(self) -> EventStore | None: ...

    def send(self, commands: Sequence[Command], expected_versions: Sequence[int | None] = ()) -> None:
        """Send commands. Block until the queue has stored them. A command is refused by a `VersionMismatch` if its
        aggregate does not have the expected version when the command is handled (None: any version). Without
        ``expected_versions`` nothing is expected."""

    def forward(self, commands: Sequence[tuple[Command, Metadata]], crash_handler: CrashHandler = nobody) -> None:
        """Send commands, each with its own metadata. ``crash_handler`` returns the process manager that handles the
        command's crash. Blocks as `send` does."""

    def write_to_outbox(
        self,
        alias: str,
        commands: Sequence[tuple[Command, Metadata]],
        crash_handler: CrashHandler = nobody,
        expected_versions: Sequence[int | None] = (),
    ) -> None:
        """Send commands if and only if the transaction that is open in the database commits: they are written in it,
        and sent after its commit, even if processes die. Without a transaction they are written at once. The other
        arguments are those of `forward` and `send`. Blocks on the database. Raises `ConfigurationError` if it cannot
        hold commands, and the driver's errors."""

    def schedule(
        self,
        alias: str,
        commands: Sequence[tuple[Command, Metadata]],
        due: Due,
        expected_versions: Sequence[int | None] = (),
    ) -> None:
        """Send commands when they are due, if the transaction that is open in the database commits. Blocks and raises
        as `write_to_outbox` does."""

    def cancel(self, alias: str, command_id: str) -> bool:
        """Cancel a scheduled command, if the transaction that is open in the database commits. Return False if none
        waits. Blocks and raises as `write_to_outbox` does."""

    def execute(
        self,
        command: Command,
        timeout: float,
        awaited: AwaitedSubscribers | None = None,
        expected_version: int | None = None,
    ) -> CommandResult:
        """Return the command's outcome. Block until it is durable, and handled by the ``awaited`` subscribers of its
        events (None: by none). Raises `CommandTimeout` after ``timeout`` seconds in all, sending included, and what
        ``awaited`` raises."""

    async def aexecute(
        self,
        command: Command,
        timeout: float,
        awaited: AwaitedSubscribers | None = None,
        expected_version: int | None = None,
    ) -> CommandResult: ...

    def close(self) -> None: ...


class WritesCommands:
    """The part of a bus that writes commands to the tables of a database, from which they are sent later."""

    def write_to_outbox(
        self,
        alias: str,
        commands: Sequence[tuple[Command, Metadata]],
        crash_handler: CrashHandler = nobody,
        expected_versions: Sequence[int | None] = (),
    ) -> None:
        outbox.insert(alias, outbox_rows(commands, crash_handler, expected_versions))

    def schedule(
        self,
        alias: str,
        commands: Sequence[tuple[Command, Metadata]],
        due: Due,
        expected_versions: Sequence[int | None] = (),
    ) -> None:
        scheduling.insert(alias, outbox_rows(commands, nobody, expected_versions), due)

    def cancel(self, alias: str, command_id: str) -> bool:
        return scheduling.cancel(alias, command_id)


class QueueCommandBus(WritesCommands):
    """The bus that sends commands to a queue. Thread-safe.

    After a connection is lost while sending, it is unknown whether the queue has the commands. They are sent again, up
    to `SEND_TRIES` times in all: a command that comes twice takes effect once.
    """

    joins_transactions = False
    store = None

    def __init__(self, transport: Transport, producer: Producer, topic: str) -> None:
        self._transport = transport
        self._producer = producer
        self._forwarding = producer.with_reserve()
        self._topic = topic
        self._replies = Replies(transport)
        self._threads = CallingThreads("enode-send", MOST_SENDS, MOST_WAITING)
        self._tracing = current_tracing()

    def send(self, commands: Sequence[Command], expected_versions: Sequence[int | None] = ()) -> None:
        with self._tracing.sending(named(commands), current_metadata()) as metadata:
            encoded = encode_metadata(metadata)
            self._send([(command, encoded) for command in commands], nobody, self._producer, expected_versions)

    def forward(self, commands: Sequence[tuple[Command, Metadata]], crash_handler: CrashHandler = nobody) -> None:
        """Send commands as `CommandBus.forward` says. They continue the traces of the events that they follow from. A
        full queue takes them from its reserve: those events are not finished until the commands are sent."""
        encoded = [(command, encode_metadata(metadata)) for command, metadata in commands]
        self._send(encoded, lambda command: crashes_address(crash_handler(command)), self._forwarding)

    def _send(
        self,
        commands: Sequence[tuple[Command, bytes]],
        reply_to: Callable[[Command], str],
        producer: Producer,
        expected_versions: Sequence[int | None] = (),
        deadline: float = math.inf,
    ) -> list[SendResult]:
        begun = time.perf_counter()
        messages = [
            (command.aggregate_root_id, encode_command(command, metadata, reply_to(command), version))
            for (command, metadata), version in zip(commands, expected_versions or repeat(None), strict=False)
        ]
        sent = self._store(producer, messages, deadline)
        if steplog.enabled():
            _log_sent(commands, sent, time.perf_counter() - begun)
        return sent

    def _store(self, producer: Producer, messages: Sequence[tuple[str, bytes]], deadline: float) -> list[SendResult]:
        """Store the messages, in up to `SEND_TRIES` tries, none after the deadline. Raises `TransportUnavailable`."""

        def persist(call: Callable[[], None], /) -> None:
            for delay in islice(delays(), SEND_TRIES - 1):
                try:
                    return call()
                except TransportUnavailable:
                    if time.monotonic() + delay >= deadline:
                        raise
                    time.sleep(delay)
            call()

        return producer.send_batch(self._topic, messages, persist=persist)

    def _ask(
        self, command: Command, known: Metadata, handling: bool, expected_version: int | None, deadline: float
    ) -> SendResult:
        reply_to = reply_address(self._replies.address, handling=handling)
        with self._tracing.sending(named([command]), known) as metadata:
            encoded = [(command, encode_metadata(metadata))]
            return self._send(encoded, lambda _: reply_to, self._producer, [expected_version], deadline)[0]

    def execute(
        self,
        command: Command,
        timeout: float,
        awaited: AwaitedSubscribers | None = None,
        expected_version: int | None = None,
    ) -> CommandResult:
        metadata = current_metadata()
        with self._asking(command, metadata, timeout, awaited, expected_version) as (wait, sending):
            try:
                return wait.future.result(timeout)
            except TimeoutError:
                return _give_up(command, wait, sending, timeout)

    async def aexecute(
        self,
        command: Command,
        timeout: float,
        awaited: AwaitedSubscribers | None = None,
        expected_version: int | None = None,
    ) -> CommandResult:
        metadata = await acurrent_metadata()
        with self._asking(command, metadata, timeout, awaited, expected_version) as (wait, sending):
            try:
                return await asyncio.wait_for(asyncio.wrap_future(wait.future), timeout)
            except TimeoutError:
                return _give_up(command, wait, sending, timeout)

    @contextmanager
    def _asking(
        self,
        command: Command,
        metadata: Metadata,
        timeout: float,
        awaited: AwaitedSubscribers | None,
        expected_version: int | None,
    ) -> Iterator[tuple[Wait, Future[SendResult]]]:
        """Send from another thread, and expect the answer until the block ends. A failed send ends the wait, too.
        ``metadata`` are given: the other thread must not query a database for them, because nothing would close its
        connection.

        The answer may come before the queue has confirmed the command, and is valid then. Giving up does not keep the
        command from being sent. Raises `TransportUnavailable` above `MOST_WAITING`.
        """
        deadline = time.monotonic() + timeout
        wait = self._replies.expect(_key(command), awaited)
        try:
            ask = partial(self._ask, command, metadata, awaited is not None, expected_version, deadline)
            sending = self._start(ask)
            sending.add_done_callback(wait.take_sent)
            yield wait, sending
        finally:
            self._replies.forget(_key(command), wait)

    def _start(self, ask: Callable[[], SendResult]) -> Future[SendResult]:
        try:
            return self._threads.start(ask)
        except Full:
            raise TransportUnavailable(
                f"{MOST_WAITING} commands of this process wait to be sent, as many as may; see that the queue is "
                "running, and send this one again later"
            ) from None

    def close(self) -> None:
        self._threads.close()
        self._replies.close()
        self._transport.close()


async def acurrent_metadata() -> Metadata:
    """Return `current_metadata`. If they must be looked up, that is done in the thread of Django's synchronous code,
    which closes the connections of a request."""
    known = known_metadata()
    return await sync_to_async(current_metadata)() if known is None else known


def named(commands: Sequence[Command]) -> str:
    """Return the name of the class of a single command, or the number of commands."""
    return type(commands[0]).__qualname__ if len(commands) == 1 else f"{len(commands)} commands"


def _key(command: Command) -> CommandKey:
    return (command.id, command.aggregate_root_id)


def _give_up(command: Command, wait: Wait, sending: Future[SendResult], timeout: float) -> CommandResult:
    """Return the result if it came while the time ran out. Otherwise raise `CommandTimeout`."""
    executed, missing = wait.progress()
    if executed is not None and not missing:
        return executed
    what = f"{type(command).__qualname__} {command.id!r}"
    if executed is None:
        raise CommandTimeout(_unanswered(what, sending, timeout)) from None
    raise CommandTimeout(
        f"{what} was executed as version {executed.version} of {command.aggregate_root_id!r}, but within {timeout:g} s "
        f"it was not handled by {', '.join(missing)}; it will be: ask again by executing it with the same id, and see "
        "that runprocessors is running, with the role event or all",
        executed=executed,
        missing=missing,
    ) from None


def _unanswered(what: str, sending: Future[SendResult], timeout: float) -> str:
    if not sending.done():
        return (
            f"{what} is being sent, but the queue has not confirmed it within {timeout:g} s; it may still be executed: "
            "ask again by executing it with the same id, and see that the queue is running"
        )
    sent = sending.result()
    return (
        f"{what} was sent ({sent.topic}/{sent.queue}, offset {sent.offset}) but not answered within {timeout:g} s; "
        "it may still be executed: ask again by executing it with the same id, and see that runprocessors is running"
    )


def _log_sent(commands: Sequence[tuple[Command, bytes]], sent: Sequence[SendResult], seconds: float) -> None:
    for (command, metadata), place in zip(commands, sent, strict=True):
        steplog.log(
            "queue",
            types.name_of(type(command)),
            flow_id=steplog.flow_id_of(metadata, command.id),
            command_id=command.id,
            aggregate_root_id=command.aggregate_root_id,
            outcome=f"stored in {place.topic}/{place.queue} at {place.offset}",
            seconds=seconds,
        )
