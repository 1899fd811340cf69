"""Processes: the runs of a process manager with a state, one for each key. This module uses no database.

The events of one key come from several aggregates, and have no order among these. So an event may come before the one
that begins its process. It is noted with its key, and is handled right after the beginning; its aggregate goes on. An
ended process passes all events over.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from enode_django.bus.command_bus import outbox_rows
from enode_django.domain.handlers import HANDLER_ERRORS
from enode_django.domain.messages import Command, DomainEvent
from enode_django.domain.metadata import Metadata, ambient_metadata
from enode_django.domain.refusals import DomainException
from enode_django.eventing.marks import HandlerMark
from enode_django.eventing.pending import HandledEvent
from enode_django.eventing.process_managers import ProcessManager, Yielded, deadline_changes, mark_of, yielded_by
from enode_django.eventing.state_types import StateType, joined_in
from enode_django.eventing.subscribers import Handler, Subscriber
from enode_django.eventstore.base import CommandKey, StreamRecord
from enode_django.exceptions import DefinitionError, InvalidId, TooManyWaiting, shown
from enode_django.ids import check_id
from enode_django.scheduling.due import DeadlineKey, Scheduled
from enode_django.serialization.crashes import CommandCrashed
from enode_django.serialization.registry import types

logger = logging.getLogger("enode_django.subscribers")

MOST_WAITING = 1_000
"""The most events that wait for one process to begin."""


class WaitingEvent(NamedTuple):
    """An event or a refusal that came before its process has begun."""

    id: str
    aggregate_root_id: str
    command_id: str


@dataclasses.dataclass(frozen=True, slots=True)
class Process:
    """One process. ``packed`` is its state, empty before it has begun. ``version`` counts the handled events."""

    packed: bytes = b""
    waiting: tuple[WaitingEvent, ...] = ()
    version: int = 0
    has_ended: bool = False

    @property
    def has_begun(self) -> bool:
        return bool(self.packed)


class Step(NamedTuple):
    """An event or refusal for one process, and what to do with it."""

    key: str
    message: DomainEvent | DomainException
    handler: Handler
    mark: HandlerMark


def steps_of(manager: ProcessManager, followed: Iterable[HandledEvent]) -> list[Step]:
    """Return a step for each message of a process. Raises as key functions do, and `InvalidId` for an invalid key."""
    steps: list[Step] = []
    for message, handlers in followed:
        mark = _mark(manager, message)
        key_of_message = mark.key or type(manager)._enode_key
        key = message.aggregate_root_id if key_of_message is None else key_of_message(message)
        if key is None:
            if isinstance(message, CommandCrashed):
                _log_crash(manager, message, "its key is None; take the key from crash.command")
            continue
        try:
            key = check_id(key, "key of a process")
        except InvalidId as error:
            raise InvalidId(
                f"the key function of {manager.name} returns {shown(key)} for {shown(message)}; let it return the key "
                "of a process, a text of 1 to 255 characters, or None if the event concerns no process"
            ) from error
        steps += (Step(key, message, handler, mark) for handler in handlers)
    return steps


def _log_crash(manager: ProcessManager, crash: CommandCrashed, why: str) -> None:
    """Log that a crash is passed over: it is no dead letter, so nobody else is told of it."""
    name, id = manager.name, crash.aggregate_root_id
    told = "%s passes over the crash of %s %r on %r: %s: %s; %s"
    what = (crash.command_type, crash.command_id, id, crash.error_type, crash.message)
    logger.error(told, name, *what, why, extra={"subscriber": name, "aggregate_root_id": id})


def _mark(manager: ProcessManager, message: DomainEvent | DomainException) -> HandlerMark:
    return mark_of(type(manager), manager._enode_method_for(type(message)) or "")


Find = Callable[[Sequence[CommandKey]], Mapping[CommandKey, StreamRecord]]
Follow = Callable[[StreamRecord], Iterable[HandledEvent]]
Sent = tuple[Command, Metadata]


class Processes:
    """The processes that a batch concerns. ``known`` has all of them by key, ``changed`` those that have changed.
    ``yielded`` is what the handlers have yielded: ``commands``, and ``deadlines`` within the keys of the processes.
    ``find`` reads the records of waiting events from the store, and ``follow`` returns a record's messages with their
    handlers."""

    def __init__(self, manager: ProcessManager, known: Mapping[str, Process], find: Find, follow: Follow) -> None:
        self._manager = manager
        self._type = state_type_of(manager)
        self._known = known
        self._find, self._follow = find, follow
        self.changed: dict[str, Process] = {}
        self.commands: list[Sent] = []
        self.deadlines: dict[DeadlineKey, Scheduled | None] = {}
        self.yielded: list[Yielded] = []

    def run(self, steps: Iterable[Step], *, alone: bool = False) -> None:
        """Take the steps of one stream or refusal. Raises what a handler raises; then nothing has changed. With
        ``alone``, a command that cannot be encoded is an error of these steps, not of the batch."""
        turn = _Turn({}, [], {}, [])
        for step in steps:
            self._take(step, turn)
        if alone:
            outbox_rows(turn.commands)
        self.changed.update(turn.changed)
        self.commands.extend(turn.commands)
        self.deadlines.update(turn.deadlines)
        self.yielded.extend(turn.yielded)

    def _take(self, step: Step, turn: _Turn) -> None:
        key = step.key
        process = turn.changed.get(key) or self.changed.get(key) or self._known[key]
        if process.has_ended:
            self._log_late(key, step.message)
        elif process.has_begun or step.mark.starts:
            turn.changed[key] = self._handled(process, step, turn)
            for waited in self._steps_of(key, process.waiting):
                self._take_waited(waited, turn)
        else:
            turn.changed[key] = self._waits(process, step)

    def _take_waited(self, step: Step, turn: _Turn) -> None:
        try:
            self._take(step, turn)
        except HANDLER_ERRORS as error:  # it counts as an error of the event that has begun the process
            error.add_note(f"{step.message.id} has waited for the process {step.key!r} to begin")
            raise

    def _log_late(self, key: str, message: DomainEvent | DomainException) -> None:
        if isinstance(message, CommandCrashed):
            _log_crash(self._manager, message, f"the process {key!r} has ended; see what is missing")
        else:
            logger.debug("%s passes %s over: the process %s has ended", self._manager.name, message.id, key)

    def _handled(self, process: Process, step: Step, turn: _Turn) -> Process:
        message, when = step.message, step.mark.when
        if process.has_begun:
            state, packed = self._type.read(process.packed), process.packed
        else:
            state, packed = self._type.begin(step.key, self._manager._enode_key_field, message)
        joined, is_called = self._joined(process, step)
        if not is_called:
            return dataclasses.replace(
                process, packed=self._type.write(state, packed, joined), version=process.version + 1
            )
        metadata = dataclasses.replace(message.metadata, causation_id=message.id)
        with ambient_metadata(metadata):
            yielded = yielded_by(self._manager, message.id, step.handler, state, message)
            turn.commands.extend((one, metadata) for one in yielded if isinstance(one, Command))
            turn.deadlines.update(deadline_changes(yielded, self._manager, message, step.key))
            turn.yielded.extend(yielded)
            has_ended = step.mark.ends and (when is None or bool(when(state)))
        return Process(self._type.write(state, packed, joined), (), process.version + 1, has_ended)

    def _joined(self, process: Process, step: Step) -> tuple[Sequence[str], bool]:
        """Return the names of the joined classes, if this one adds to them, and whether the handler is called."""
        if not step.mark.join:
            return (), True
        before = joined_in(process.packed)
        methods = self._manager._enode_methods
        came = next(cls for cls in type(step.message).__mro__ if cls in methods)
        names = {types.first_name_of(cls) for cls, method in methods.items() if method == methods[came]}
        name = types.first_name_of(came)
        if name in before:
            return (), False
        joined = [*before, name]
        return joined, names.issubset(joined)

    def _waits(self, process: Process, step: Step) -> Process:
        message = step.message
        others = [one for one in process.waiting if one.id != message.id]  # one with its id was erased by a failover
        if len(others) >= MOST_WAITING:
            raise TooManyWaiting(
                f"{MOST_WAITING} events wait for the process {step.key!r} of {self._manager.name} to begin; do the "
                "handlers marked with @starts use the same keys?"
            )
        logger.debug("%s: %s waits for the process %s to begin", self._manager.name, message.id, step.key)
        waiting = WaitingEvent(message.id, message.aggregate_root_id, message.command_id)
        return dataclasses.replace(process, waiting=(*others, waiting))

    def _steps_of(self, key: str, waiting: Sequence[WaitingEvent]) -> Iterator[Step]:
        """Yield the steps of events that have waited, in their order, without those no longer stored or handled."""
        if not waiting:
            return
        records = self._find(list(dict.fromkeys((one.command_id, one.aggregate_root_id) for one in waiting)))
        for one in waiting:
            record = records.get((one.command_id, one.aggregate_root_id))
            if record is None:
                logger.warning("%s: %s has waited, and is no longer stored", self._manager.name, one.id)
                continue
            for message, handlers in self._follow(record):
                if message.id == one.id:
                    mark = _mark(self._manager, message)
                    yield from (Step(key, message, handler, mark) for handler in handlers)


class _Turn(NamedTuple):
    changed: dict[str, Process]
    commands: list[Sent]
    deadlines: dict[DeadlineKey, Scheduled | None]
    yielded: list[Yielded]


def state_type_of(subscriber: Subscriber) -> StateType:
    """Return the type of the process manager's states. Raises `DefinitionError` if it has none."""
    state_type = subscriber._enode_state_type if isinstance(subscriber, ProcessManager) else None
    if state_type is None:
        raise DefinitionError(f"{subscriber.name} has no state")
    return state_type
