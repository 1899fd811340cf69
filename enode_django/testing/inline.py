"""Command handling and subscribers in the caller's thread: the same mailbox code, store and subscribers, no queue."""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import ContextDecorator, ExitStack
from datetime import timedelta
from functools import partial
from typing import Any, Self, TypeVar

from enode_django.bus.command_bus import CrashHandler, nobody, outbox_rows
from enode_django.bus.results import CommandResult
from enode_django.commanding.decisions import Envelope, Finished
from enode_django.commanding.publisher import announce
from enode_django.concurrency.backoff import once
from enode_django.conf import keeps_in_memory
from enode_django.domain.messages import Command, DomainEvent
from enode_django.domain.metadata import Metadata
from enode_django.eventing.base_projections import BaseProjection
from enode_django.eventing.event_handlers import group_of
from enode_django.eventing.event_subscription import EventSubscription
from enode_django.eventing.process_managers import crash_handler
from enode_django.eventing.registry import subscribers
from enode_django.eventing.retry_decisions import RAISE
from enode_django.eventing.runner import Runner
from enode_django.eventing.subscribers import Subscriber
from enode_django.eventstore.base import EventStore, StreamRecord
from enode_django.eventstore.memory import MemoryEventStore
from enode_django.exceptions import DefinitionError
from enode_django.immediate.bus import ImmediateCommandBus, Together, result_of
from enode_django.immediate.following import after_commit
from enode_django.immediate.memory import MemorySubscription, has_tables, without_tables
from enode_django.repository.loading import events_of
from enode_django.runtime import make_processor, make_store, use_bus
from enode_django.scheduling.due import Changes, Due
from enode_django.scheduling.memory import MemorySchedule

Function = TypeVar("Function", bound=Callable[..., Any])


class InlineCommandBus(ImmediateCommandBus):
    """A command bus that executes each command before ``send`` returns. ``results`` and ``events`` collect the outcomes
    and the events in order.

    Scheduled commands and deadlines are ``scheduled``, and wait for `advance`.

    A command sent by a command handler runs after the one being handled. Threads wait for each other. Aggregates are
    not kept in memory between commands, so a rollback undoes everything.

    For example::

        with inline(MemoryEventStore()) as bus:
            execute_command(OpenAccount("ada", owner="Ada"))
        assert bus.events == [AccountOpened(owner="Ada")]
        assert [result.version for result in bus.results] == [1]
    """

    def __init__(self, store: EventStore, followed_by: Sequence[Subscriber] = ()) -> None:
        super().__init__(store, partial(_InlineSubscribers, followed_by))
        self._lock = threading.RLock()
        self.scheduled = MemorySchedule()
        self.results: list[CommandResult] = []
        self.events: list[DomainEvent] = []

    def _take(self, envelopes: Sequence[Envelope]) -> list[Finished]:
        with self._lock:
            return super()._take(envelopes)

    def write_to_outbox(
        self,
        alias: str,
        commands: Sequence[tuple[Command, Metadata]],
        crash_handler: CrashHandler = nobody,
        expected_versions: Sequence[int | None] = (),
    ) -> None:
        """Execute the commands when the atomic block of the database commits, or now if there is none. In a
        ``TestCase`` that is the end of ``captureOnCommitCallbacks(execute=True)``."""
        bodies = [row.body for row in outbox_rows(commands, crash_handler, expected_versions)]
        after_commit(partial(self.deliver, bodies), alias)

    def schedule(
        self,
        alias: str,
        commands: Sequence[tuple[Command, Metadata]],
        due: Due,
        expected_versions: Sequence[int | None] = (),
    ) -> None:
        for row in outbox_rows(commands, nobody, expected_versions):
            self.scheduled.add(row, due)

    def cancel(self, alias: str, command_id: str) -> bool:
        return self.scheduled.cancel(command_id)

    def change_deadlines(self, alias: str, changes: Changes) -> None:
        self.scheduled.change(changes)

    def advance(self, by: timedelta | None = None, **units: float) -> None:
        """Turn the clock of scheduled commands and deadlines forward, by a timedelta or by its arguments, and execute
        what becomes due, each at its time.

        For example::

            with inline(MemoryEventStore()) as bus:
                send_command(OpenAccount("ada", owner="Ada"), after=timedelta(days=3))
                bus.advance(days=2)
                assert bus.results == []
                bus.advance(hours=24)
                assert bus.events == [AccountOpened(owner="Ada")]
        """
        until = self.scheduled.now + (timedelta(**units) if by is None else by)
        while (command := self.scheduled.next_due(until)) is not None:
            self.deliver([command.body])
        self.scheduled.now = until

    def _persist(self, call: Callable[[], list[Finished]], /) -> list[Finished]:
        return call()

    def _announce(self, decided: Sequence[Finished]) -> None:
        """Announce the outcomes at once: the transaction of a test case never commits."""
        announce(decided)

    def _handle(self, envelope: Envelope, together: Together) -> Finished:
        finished = super()._handle(envelope, together)
        self.results.append(result_of(finished))
        if finished.record is not None:
            self.events.extend(events_of(finished.record))
        return finished


class _InlineSubscribers:
    """The subscribers of an inline bus, which raise a handler's error to the test."""

    def __init__(self, followed_by: Sequence[Subscriber], bus: ImmediateCommandBus) -> None:
        self._subscriptions = [_subscription(subscriber, bus) for subscriber in followed_by]

    def begin(self) -> None:
        """Do nothing: subscribers begin when the bus is made."""

    def follow(self, record: StreamRecord) -> None:
        for subscription in self._subscriptions:
            subscription.follow([record])

    def keep_up(self) -> None:
        """Do nothing: errors are raised, so no subscriber is behind."""

    def catch_up(self) -> None:
        """Do nothing, like `keep_up`."""

    def progress(self, record: StreamRecord, keys: Sequence[str]) -> tuple[list[str], list[str]]:
        return [], []


def _subscription(subscriber: Subscriber, bus: ImmediateCommandBus) -> EventSubscription | MemorySubscription:
    if isinstance(bus.store, MemoryEventStore) and not has_tables(subscriber):
        return MemorySubscription(subscriber, bus)
    handler = crash_handler(subscriber)
    processor = make_processor(subscriber, bus.store, lambda some: bus.forward(some, handler), bus.change_deadlines)
    runner = Runner(processor, once)
    for shard in bus.store.shards:
        runner.processor.subscribe(shard)
    return EventSubscription(runner, policy=RAISE, notify=lambda notices: None)


Chosen = Iterable[type[Subscriber] | Callable[[Any], Any] | str | Subscriber]


class Inline(ContextDecorator):
    """The context manager that `inline` returns. Each block, or call of a decorated function, has its own bus."""

    def __init__(self, store: EventStore | None, followed_by: Chosen | None) -> None:
        if store is not None and (isinstance(store, type) or not hasattr(store, "shards")):
            raise DefinitionError(
                f"the first argument of inline() is an event store, such as MemoryEventStore(), got {store!r}; name "
                "subscribers with followed_by=[…]"
            )
        if isinstance(followed_by, str | type | Subscriber) or not isinstance(followed_by, Iterable | None):
            raise DefinitionError(f"followed_by takes a list of subscribers, got {followed_by!r}; put it into a list")
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
        bus = InlineCommandBus(self._new_store(), self._subscriptions())
        self._leaving.enter_context(use_bus(bus))
        return bus

    def __exit__(self, *raised: object) -> None:
        self._leaving.close()

    def _new_store(self) -> EventStore:
        if self._store is not None:
            return self._store
        return MemoryEventStore() if keeps_in_memory() else make_store()

    def _subscriptions(self) -> Sequence[Subscriber]:
        if self._followed_by is None:
            if self._store is not None:
                return []
            return without_tables() if keeps_in_memory() else subscribers.all()
        return [_subscriber(one) for one in self._followed_by]


def _subscriber(chosen: type[Subscriber] | Callable[[Any], Any] | str | Subscriber) -> Subscriber:
    if isinstance(chosen, Subscriber):
        return chosen
    if isinstance(chosen, str):
        return subscribers.get(chosen)
    if isinstance(chosen, type) and issubclass(chosen, Subscriber):
        has_model = hasattr(chosen, "model") or hasattr(chosen, "models")
        if not chosen._enode_methods or (issubclass(chosen, BaseProjection) and not has_model):
            raise DefinitionError(
                f"followed_by names {chosen.__qualname__}, which handles nothing, or has no model; name a subclass "
                "that is complete"
            )
        return subscribers.instance(chosen)
    if inspect.isfunction(chosen):
        return group_of(chosen)
    raise DefinitionError(
        "followed_by takes projections, process managers, functions marked with @event_handler, and names, "
        f"got {chosen!r}"
    )


def inline(store: EventStore | None = None, *, followed_by: Chosen | None = None) -> Inline:
    """Execute commands sent inside the block at once, in this thread and database connection. Every subscriber has
    handled the events of a command before the next one is executed.

    Inside a ``django.test.TestCase`` everything is rolled back with the test. It also works as a decorator of plain
    functions. An error of a subscriber's handler is raised where the command was sent. ``followed_by`` are the
    subscribers that run, by default all: classes, functions marked with `event_handler`, or names.

    ``store`` replaces the store of the settings; no subscriber runs then unless it is named. With a
    ``MemoryEventStore`` only projections need a database. If no database is configured, each block has its own
    ``MemoryEventStore``. Raises `DefinitionError` for other arguments.

    For example::

        with inline(MemoryEventStore(), followed_by=[TransferProcess]):
            execute_command(OpenAccount("ada", owner="Ada"))
            assert BankAccount.load("ada").version == 1
    """
    return Inline(store, followed_by)
