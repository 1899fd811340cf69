"""Both sides in the caller's thread: same mailbox code, same store, same subscribers, no queue."""

from __future__ import annotations

import inspect
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import ContextDecorator, ExitStack
from itertools import repeat
from typing import Any, Self, TypeVar

from enode_django.commanding.bus import CrashHandler, nobody
from enode_django.commanding.committing import Committer
from enode_django.commanding.entries import Entry, Envelope, Finished
from enode_django.commanding.loading import AggregateLoader, events_of
from enode_django.commanding.processor import CommandProcessor
from enode_django.commanding.results import CommandResult, decode_result, encode_result, failure, stored_result
from enode_django.commanding.waiting import Followers
from enode_django.concurrency.backoff import once
from enode_django.conf import conf
from enode_django.domain.handlers import command_handlers
from enode_django.domain.messages import Command, DomainEvent
from enode_django.domain.metadata import Metadata, current_metadata
from enode_django.eventing.follower import Follower
from enode_django.eventing.process_managers import crash_handler
from enode_django.eventing.registry import subscribers
from enode_django.eventing.retrying import RAISE
from enode_django.eventing.running import Runner
from enode_django.eventing.subscribers import Subscriber
from enode_django.eventstore.base import EventStore
from enode_django.exceptions import DefinitionError, EnodeError
from enode_django.runtime import make_applier, make_retries, make_snapshots, make_store, use_bus
from enode_django.serialization.codec import (
    decode_command,
    encode_command,
    encode_metadata,
    restore_command,
    sent_with,
)
from enode_django.serialization.sent_commands import SentCommand

Function = TypeVar("Function", bound=Callable[..., Any])


class InlineCommandBus:
    """Executes each command before ``send`` returns. ``results`` and ``events`` keep what happened, in order.

    A command sent by a command handler runs after the one being handled. Not for several threads at once: they wait
    for each other. Nothing stays in memory between commands, so whatever a rollback takes away is gone.
    """

    joins_transactions = True

    def __init__(self, store: EventStore, followed_by: Sequence[Subscriber] = ()) -> None:
        self.store = store
        self._followers = [self._follower(subscriber) for subscriber in followed_by]
        self._lock = threading.RLock()
        self._waiting: list[Envelope] = []
        self._running = False
        self.results: list[CommandResult] = []
        self.events: list[DomainEvent] = []

    def send(self, commands: Sequence[Command], expected_versions: Sequence[int | None] = ()) -> None:
        metadata = current_metadata()
        pairs = zip(commands, expected_versions or repeat(None), strict=False)
        self._take([_envelope(command, metadata, version) for command, version in pairs])

    def forward(self, commands: Sequence[tuple[Command, Metadata]], crash_handler: CrashHandler = nobody) -> None:
        self._take(
            [_envelope(command, metadata, crash_handler=crash_handler(command)) for command, metadata in commands]
        )

    def _take(self, envelopes: Sequence[Envelope]) -> None:
        with self._lock:
            self._waiting.extend(envelopes)
            if not self._running:
                self._run()

    def execute(
        self,
        command: Command,
        timeout: float,
        followers: Followers | None = None,
        expected_version: int | None = None,
    ) -> CommandResult:
        with self._lock:
            before = len(self.results)
            self.send([command], [expected_version])
            return next(result for result in self.results[before:] if result.command_id == command.id)

    async def aexecute(
        self,
        command: Command,
        timeout: float,
        followers: Followers | None = None,
        expected_version: int | None = None,
    ) -> CommandResult:
        from asgiref.sync import sync_to_async

        return await sync_to_async(self.execute, thread_sensitive=True)(command, timeout, followers, expected_version)

    def close(self) -> None:
        """There is nothing to let go of."""

    def _follower(self, subscriber: Subscriber) -> Follower:
        """Return a follower that raises a handler's error to the test."""
        handler = crash_handler(subscriber)
        runner = Runner(make_applier(subscriber, self.store, lambda some: self.forward(some, handler)), once)
        for shard in self.store.shards:
            runner.applier.subscribe(shard)
        return Follower(runner, policy=RAISE, notify=lambda notices: None)

    def _run(self) -> None:
        self._running = True
        try:
            while self._waiting:
                self._handle(self._waiting.pop(0))
        finally:
            self._running = False
            self._waiting.clear()

    def _handle(self, envelope: Envelope) -> None:
        current = conf()
        processor = CommandProcessor(
            AggregateLoader(self.store, make_snapshots(self.store)),
            command_handlers,
            persist=once,
            max_aggregates=1,
            max_recent=2,
            max_bytes=current.EVENTS_MAX_BYTES,
            retries=make_retries(current, waits=False),
        )
        committer = Committer(self.store, persist=once, clock=time.monotonic)
        self._settle(processor, committer, processor.handle([envelope]))
        while due := processor.take_due():  # another attempt, at once
            self._settle(processor, committer, processor.handle(due))

    def _settle(self, processor: CommandProcessor, committer: Committer, entries: Sequence[Entry]) -> None:
        while entries:
            committed = committer.commit(entries)
            for one in committed.finished:
                self._finish(one)
            processor.finish(committed.released)
            entries = processor.recover(*committed.recoveries)

    def _finish(self, one: Finished) -> None:
        if one.record is not None:
            result = stored_result(one.record)
            self.events.extend(events_of(one.record))
            self._forward_sent(sent_with(one.record.events))
            for follower in self._followers:
                follower.follow([one.record])
        else:
            result = one.result or failure(one.envelope.id, one.envelope.aggregate_root_id, EnodeError("no outcome"))
        # Through the wire's form, so that a test sees what a caller would see.
        self.results.append(decode_result(encode_result(result)))

    def _forward_sent(self, sent: Sequence[SentCommand]) -> None:
        """Let the commands run that a handler has sent by its context, before those that follow from its events."""
        self._waiting.extend(_delivered(body) for _, body in sent)


def _envelope(
    command: Command, metadata: Metadata, expected_version: int | None = None, crash_handler: str = ""
) -> Envelope:
    """Return the command as the queue would deliver it: encoded and decoded."""
    return _delivered(encode_command(command, encode_metadata(metadata), "", expected_version), crash_handler)


def _delivered(body: bytes, crash_handler: str = "") -> Envelope:
    wire = decode_command(body)
    return Envelope(
        wire.id,
        wire.aggregate_root_id,
        wire.type_name,
        restore_command(wire),
        metadata=wire.metadata,
        body=body,
        crash_handler=crash_handler,
        expected_version=wire.expected_version,
    )


Chosen = Iterable[type[Subscriber] | Subscriber]


class Inline(ContextDecorator):
    """The context manager that `inline` returns: each use, as a block or of a decorated function, has a bus of its
    own."""

    def __init__(self, store: EventStore | None, followed_by: Chosen | None) -> None:
        self._store = store
        self._followed_by = None if followed_by is None else list(followed_by)
        self._leaving = ExitStack()

    def _recreate_cm(self) -> Self:
        return type(self)(self._store, self._followed_by)

    def __call__(self, function: Function) -> Function:
        if inspect.iscoroutinefunction(function):
            raise DefinitionError(
                f"@inline() would end before {function.__qualname__} begins; inside the async def, write with inline():"
            )
        return super().__call__(function)

    def __enter__(self) -> InlineCommandBus:
        bus = InlineCommandBus(self._store if self._store is not None else make_store(), self._followers())
        self._leaving.enter_context(use_bus(bus))
        return bus

    def __exit__(self, *raised: object) -> None:
        self._leaving.close()

    def _followers(self) -> Sequence[Subscriber]:
        if self._followed_by is None:
            return subscribers.all() if self._store is None else []
        return [one if isinstance(one, Subscriber) else subscribers.instance(one) for one in self._followed_by]


def inline(store: EventStore | None = None, *, followed_by: Chosen | None = None) -> Inline:
    """Commands sent inside the block are executed at once, in this thread and in this database connection, and every
    subscriber has handled their events before the next one is.

    Inside a ``django.test.TestCase`` everything they store is rolled back with the test. Also usable as a decorator of
    plain functions. What a subscriber's handler raises is raised where the command was sent. ``followed_by`` are the
    subscribers that run, by default all. ``store`` replaces that of the settings: with a ``MemoryEventStore`` no
    database is needed, and no subscriber runs unless it is named.
    """
    return Inline(store, followed_by)
