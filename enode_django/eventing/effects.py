"""Turn events into commands and side effects: handlers run, commands are sent, and then the checkpoints move.

Deadlines are written in the transaction that moves the checkpoints, so that each is set once. A worker that finds the
checkpoint moved by another one writes none.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Container, Iterable, Mapping, Sequence

from django.db import transaction

from enode_django.bus.command_bus import CommandBus
from enode_django.databases import end_left_transactions, left_transactions, pipelined
from enode_django.domain.handlers import HANDLER_ERRORS
from enode_django.domain.messages import Command
from enode_django.domain.metadata import Metadata, ambient_metadata
from enode_django.eventing import checkpoints, failovers, parking
from enode_django.eventing.event_processors import Batch, Begun, EventProcessor
from enode_django.eventing.failures import failure_of
from enode_django.eventing.pending import HandledEvent, PendingAggregate, Progress, followed_refusal, handled_by
from enode_django.eventing.process_managers import (
    ProcessManager,
    crash_handler,
    deadline_changes,
    has_state,
    yielded_by,
)
from enode_django.eventing.subscribers import Subscriber
from enode_django.eventstore.base import EventStore, StreamRecord, by_place
from enode_django.eventstore.positions import BEGINNING
from enode_django.scheduling.due import ChangeDeadlines, Changes, DeadlineKey, Scheduled
from enode_django.scheduling.rows import change

SendCommands = Callable[[Sequence[tuple[Command, Metadata]]], None]
"""Send commands with their metadata. Returns when the queue has stored them."""

Cause = str | checkpoints.RefusalKey
"""The id of an aggregate whose streams were handled, or the key of a refusal. Deadlines follow from either."""

SIDE_EFFECTS_AT_ONCE = 50
"""The most streams between two saves of checkpoints: at most this number is handled again when a worker dies."""


def sending(subscriber: Subscriber, bus: Callable[[], CommandBus]) -> SendCommands:
    """Return the way of a process manager's commands: through the outbox, in its transaction, if it has a state."""
    handler = crash_handler(subscriber)
    if has_state(subscriber):
        return lambda some: bus().write_to_outbox(subscriber.database, some, handler)
    return lambda some: bus().forward(some, handler)


class EffectProcessor(EventProcessor):
    """Calls process managers and event handlers, at least once for each event. A process manager's commands have ids
    derived from the events, so sending them again changes nothing."""

    def __init__(
        self, subscriber: Subscriber, store: EventStore, send: SendCommands, change_deadlines: ChangeDeadlines = change
    ) -> None:
        super().__init__(subscriber, store)
        self.send = send
        self._change_deadlines = change_deadlines
        self.at_once = 1_000 if isinstance(subscriber, ProcessManager) else SIDE_EFFECTS_AT_ONCE
        self._known: dict[int, checkpoints.Subscription] = {}

    def commands_of(self, record: StreamRecord) -> Sequence[tuple[Command, Metadata]]:
        """Call the handlers for a stored stream or refusal. Return their commands; raise what they raise."""
        calls = Calls(self.subscriber, self.send)
        self.in_flight.begin(
            PendingAggregate(record.aggregate_root_id, record.aggregate_root_type), record.version or 0
        )
        try:
            calls.run(handled_by(self.subscriber, record), record.aggregate_root_id)
        finally:
            self.in_flight.end()
        return calls.commands

    def _subscription(self, place: int) -> checkpoints.Subscription:
        """Return the subscription in the shard at this index."""
        if place not in self._known:
            self._known[place] = self.subscribe(self.store.shards[place])
        return self._known[place]

    def apply(self, works: Sequence[PendingAggregate], portion: int, *, even_parked: bool) -> dict[str, Progress]:
        ids = [work.aggregate_root_id for work in works]
        begun = self._read(ids, even_parked)
        before = left_transactions()
        alone = len(works) == 1 and portion == 1
        batch = self._next_batch(works, self._positions(ids, dict(begun.rows)), begun, portion)
        calls = Calls(self.subscriber, self.send, self._handled_refusals(works), alone=alone)
        for work in batch.works:
            batch.progress[work.aggregate_root_id] = self._call(work, batch, calls)
            if calls.interruption is not None:
                break
        self.in_flight.end()
        end_left_transactions(before)
        calls.send()
        with transaction.atomic(using=self.alias):
            with pipelined(self.alias):
                known = failovers.generations_cursor(self.alias, self.key) if self.heeded is not None else None
                saved = checkpoints.move_cursor(self.alias, self.key, batch.moved)
                noted = checkpoints.note_refusals_cursor(self.alias, self.key, calls.refusals)
            if self.heeded is not None and known is not None:
                self.heeded.confirm(dict(known.fetchall()))
            if calls.deadlines:
                # Another worker that came as far has written the deadlines of that and maybe of later events.
                ours = {id for (id,) in saved.fetchall()} if saved is not None else set()
                refusals = set(noted.fetchall()) if noted is not None else set()
                if changes := calls.deadlines_of(ours | refusals):
                    self._change_deadlines(self.alias, changes)
        if calls.interruption is not None:
            raise calls.interruption
        return batch.progress

    def _call(self, work: PendingAggregate, batch: Batch, calls: Calls) -> Progress:
        version = batch.positions[work.aggregate_root_id]
        self.in_flight.begin(work, version + 1)
        for record in batch.streams[work.aggregate_root_id]:
            self.in_flight.step()
            try:
                calls.run(self._followed.of(record), work.aggregate_root_id)
            except HANDLER_ERRORS as error:  # handlers are application code: only this aggregate has failed
                return calls.failed(version, record, error)
            version = record.version or 0
        for record in work.refusals.values():
            self.in_flight.step()
            try:
                self._call_refusal(record, calls)
            except HANDLER_ERRORS as error:  # handlers are application code: only this aggregate has failed
                return calls.failed(version, record, error)
        return batch.handled(work)

    def _call_refusal(self, record: StreamRecord, calls: Calls) -> None:
        key = (record.aggregate_root_id, record.command_id)
        if key in calls.handled:
            return
        followed = followed_refusal(self.subscriber, record)
        if followed is not None:
            calls.run(self._tracing.followed(self.name, record, [followed]), key)
            calls.refusals.append(key)

    def _handled_refusals(self, works: Sequence[PendingAggregate]) -> set[checkpoints.RefusalKey]:
        """Return the refusals that were handled, or were stored before this subscriber began. Positions decide that,
        not times, which come from the clocks of several machines."""
        keys = [(work.aggregate_root_id, command_id) for work in works for command_id in work.refusals]
        if not keys:
            return set()
        handled = checkpoints.handled_refusals(self.alias, self.key, keys)
        for place, ids in by_place(self.store, {id for id, _ in keys}).items():
            start, some = self._subscription(place).start_position, set(ids)
            if start > BEGINNING:
                commands = [(command_id, id) for id, command_id in keys if id in some]
                before = self.store.shards[place].stored_before(commands, start)
                handled.update((id, command_id) for command_id, id in before)
        return handled

    def positions(self, ids: Sequence[str]) -> Mapping[str, int]:
        """Return the version of each aggregate's checkpoint. Without a checkpoint, streams stored before this
        subscriber began count as handled."""
        return self._positions(ids, checkpoints.read(self.alias, self.key, ids))

    def _positions(self, ids: Sequence[str], known: dict[str, int]) -> Mapping[str, int]:
        missing = [id for id in ids if id not in known]
        before = self._heads_at_the_start(missing)
        return {**known, **{id: before.get(id, 0) for id in missing}}

    def _read(self, ids: Sequence[str], even_parked: bool) -> Begun:
        """Read what the batch begins with, in one exchange. The order matters: nothing is locked, and an aggregate is
        unparked after its checkpoint is saved."""
        with pipelined(self.alias):
            parked = None if even_parked else parking.parked_cursor(self.alias, self.key, ids)
            versions = checkpoints.read_cursor(self.alias, self.key, ids)
            known = self._known_cursor()
        return self._begun(versions, parked, known)

    def _heads_at_the_start(self, ids: Sequence[str]) -> Mapping[str, int]:
        heads: dict[str, int] = {}
        for place, some in by_place(self.store, ids).items():
            start = self._subscription(place).start_position
            if start > BEGINNING:
                heads.update(self.store.shards[place].heads_before(some, start))
        return heads

    def claimed(self, ids: Sequence[str]) -> Mapping[str, int]:
        """Return the versions of checkpoints, locked until the transaction ends. Aggregates without one are left out:
        they are counted from the store as it is now."""
        return checkpoints.lock_known(self.alias, self.key, ids)

    def skip_to(self, aggregate_root_id: str, version: int) -> None:
        checkpoints.save(self.alias, self.key, {aggregate_root_id: version})


class Calls:
    """The calls, commands and deadlines of the handlers of one batch, without the ``handled`` refusals.

    A transient error ends the batch (``interruption``), but the effects before it count: otherwise each try would
    repeat them while a database is unavailable. With ``alone``, commands are sent at once, so that a command that
    cannot be sent is the failure of the event it follows from.
    """

    def __init__(
        self,
        subscriber: Subscriber,
        send: SendCommands,
        handled: Iterable[checkpoints.RefusalKey] = (),
        *,
        alone: bool = False,
    ) -> None:
        self._subscriber = subscriber
        self._yield_commands = isinstance(subscriber, ProcessManager)
        self.handled = set(handled)
        self.commands: list[tuple[Command, Metadata]] = []
        self.deadlines: list[tuple[Cause, Changes]] = []
        self.refusals: list[checkpoints.RefusalKey] = []
        self.interruption: Exception | None = None
        self._send = send
        self._alone = alone

    def failed(self, version: int, record: StreamRecord, error: BaseException) -> Progress:
        try:
            return Progress(version, failure_of(record, error))
        except Exception as interruption:
            self.interruption = interruption
            return Progress(version)

    def send(self) -> None:
        commands, self.commands = self.commands, []
        if commands:
            self._send(commands)

    def deadlines_of(self, causes: Container[Cause]) -> Changes:
        """Return what the deadlines change that follow from these ``causes``."""
        changes: dict[DeadlineKey, Scheduled | None] = {}
        for cause, some in self.deadlines:
            if cause in causes:
                changes.update(some)
        return changes

    def run(self, followed: Iterable[HandledEvent], cause: Cause) -> None:
        """Call all handlers for some messages. Their commands and deadlines are kept if none has raised."""
        commands: list[tuple[Command, Metadata]] = []
        deadlines: dict[DeadlineKey, Scheduled | None] = {}
        for message, handlers in followed:
            metadata = dataclasses.replace(message.metadata, causation_id=message.id)
            with ambient_metadata(metadata):
                for handler in handlers:
                    if not self._yield_commands:
                        handler(message)
                    elif yielded := yielded_by(self._subscriber, message.id, handler, message):
                        commands.extend((one, metadata) for one in yielded if isinstance(one, Command))
                        deadlines.update(deadline_changes(yielded, self._subscriber, message))
        self.commands.extend(commands)
        if self._alone:
            self.send()
        if deadlines:
            self.deadlines.append((cause, deadlines))
