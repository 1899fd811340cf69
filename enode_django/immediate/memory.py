"""Subscribers that follow events without a database."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING

from enode_django.domain.messages import Command
from enode_django.domain.metadata import Metadata
from enode_django.eventing.base_projections import BaseProjection
from enode_django.eventing.effects import Calls
from enode_django.eventing.pending import handled_by
from enode_django.eventing.process_managers import ProcessManager, crash_handler, has_state
from enode_django.eventing.processes import Process, Processes, steps_of
from enode_django.eventing.registry import subscribers
from enode_django.eventing.subscribers import NOW, Subscriber, follows, key_of, running
from enode_django.eventstore.base import CommandKey, EventStore, StreamRecord
from enode_django.eventstore.positions import BEGINNING, END
from enode_django.scheduling.due import Changes

if TYPE_CHECKING:
    from enode_django.immediate.bus import ImmediateCommandBus

logger = logging.getLogger("enode_django.subscribers")

MOST = 2**31


class MemorySubscription:
    """A subscription of one process manager, or of the event handlers of one group. Its checkpoints, the refusals that
    it has handled, and the states of its processes, are in memory."""

    def __init__(self, subscriber: Subscriber, bus: ImmediateCommandBus) -> None:
        self.subscriber = subscriber
        self._bus = bus
        self._reached = dict(_heads(bus.store)) if subscriber.start == NOW else {}
        self._refusals: set[CommandKey] = set()
        self._processes: dict[str, Process] = {}

    def follow(self, records: Sequence[StreamRecord]) -> None:
        """Handle the records. Raises what a handler raises; the aggregate's next event retries the unhandled ones."""
        for record in records:
            if record.version is None:
                if record.command_key not in self._refusals:
                    self._call(record)
                    self._refusals.add(record.command_key)
            elif follows(self.subscriber, record.aggregate_root_type):
                self._catch_up(record.aggregate_root_id)

    def _catch_up(self, id: str) -> None:
        for stream in self._bus.store.load(id, after=self._reached.get(id, 0)):
            self._call(stream)
            self._reached[id] = stream.version or 0

    def _call(self, record: StreamRecord) -> None:
        with running(self.subscriber):
            if has_state(self.subscriber):
                self._step(self.subscriber, record)
            else:
                calls = Calls(self.subscriber, self._send)
                calls.run(handled_by(self.subscriber, record), record.aggregate_root_id)
                calls.send()
                self._change(calls.deadlines_of({record.aggregate_root_id}))

    def _step(self, manager: ProcessManager, record: StreamRecord) -> None:
        steps = steps_of(manager, handled_by(manager, record))
        known = {step.key: self._processes.get(step.key, Process()) for step in steps}
        processes = Processes(manager, known, self._bus.store.find, partial(handled_by, manager))
        processes.run(steps)
        self._send(processes.commands)
        self._change(processes.deadlines)
        self._processes.update(processes.changed)

    def _change(self, deadlines: Changes) -> None:
        if deadlines:
            self._bus.change_deadlines(self.subscriber.database, deadlines)

    def _send(self, commands: Sequence[tuple[Command, Metadata]]) -> None:
        if commands:
            self._bus.forward(commands, crash_handler(self.subscriber))


class MemorySubscribers:
    """The process managers and event handlers of a project without a database; projections do not run. An aggregate
    whose handler fails is retried with its next event. Handlers run one at a time."""

    def __init__(self, bus: ImmediateCommandBus) -> None:
        self._bus = bus
        self._lock = threading.RLock()
        self._beginning = threading.Lock()
        self._subscriptions: dict[Subscriber, MemorySubscription] = {}
        self._failed: set[tuple[str, str]] = set()

    def begin(self) -> None:
        for subscriber in without_tables():
            if subscriber not in self._subscriptions:
                self._begin(subscriber)

    def _begin(self, subscriber: Subscriber) -> None:
        with self._beginning:  # a second subscription would take what has been stored meanwhile for handled
            if subscriber not in self._subscriptions:
                self._subscriptions[subscriber] = MemorySubscription(subscriber, self._bus)

    def follow(self, record: StreamRecord) -> None:
        with self._lock:
            for subscriber in without_tables():
                if subscriber in self._subscriptions:
                    self._follow(self._subscriptions[subscriber], record)

    def keep_up(self) -> None:
        """Do nothing: unhandled events end with the process."""

    def catch_up(self) -> None:
        """Do nothing, like `keep_up`."""

    def progress(self, record: StreamRecord, keys: Sequence[str]) -> tuple[list[str], list[str]]:
        id = record.aggregate_root_id
        begun = list(self._subscriptions)  # other threads may begin more
        return [one.name for one in begun if key_of(one) in keys and (one.name, id) in self._failed], []

    def _follow(self, subscription: MemorySubscription, record: StreamRecord) -> None:
        name, id = subscription.subscriber.name, record.aggregate_root_id
        try:
            subscription.follow([record])
            if record.version is not None:
                self._failed.discard((name, id))
        except Exception as error:  # handlers are application code, and the command is stored
            self._failed.add((name, id))
            extra = {"subscriber": name, "aggregate_root_id": id}
            logger.error("%s failed at %s: %s", name, id, error, exc_info=error, extra=extra)


def _heads(store: EventStore) -> Iterator[tuple[str, int]]:
    for id, (_, version) in store.shards[0].settled(BEGINNING, END, limit=MOST).settled.heads.items():
        yield id, version


def has_tables(subscriber: Subscriber) -> bool:
    """Return True for a projection: it writes rows, so it needs a database, and a rollback undoes its work."""
    return isinstance(subscriber, BaseProjection)


def without_tables() -> list[Subscriber]:
    """Return the project's subscribers that need no database."""
    return [one for one in subscribers.all() if not has_tables(one)]
