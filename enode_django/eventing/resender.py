"""Sends commands of process managers again if a failing queue has lost them.

A queue may lose acknowledged messages: a Redis that fails over loses the last second. So handled streams are checked
again. Once the commands' queue is worked off, every command that followed from them must have an effect in the event
store, a stream or a refusal, or be a dead letter. A command with neither is sent again. Its id is the same, so it takes
effect once, even if the first one was handled. A command that changed nothing, or failed because its aggregate does not
exist, leaves no trace; sent again, it has the same outcome.

After a change of the code, handlers may yield other commands than before: what was stored until then is left alone.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime

from enode_django.databases import execute
from enode_django.domain.handlers import HANDLER_ERRORS
from enode_django.domain.messages import Command
from enode_django.domain.metadata import Metadata
from enode_django.equeue.transport import Transport
from enode_django.eventing import checkpoints
from enode_django.eventing.code import handlers_fingerprint, is_other_code
from enode_django.eventing.drained_topics import Goal, is_worked_off
from enode_django.eventing.effects import EffectProcessor
from enode_django.eventing.pending import Failure
from enode_django.eventstore.base import FeedEntry, Shard, StreamRecord
from enode_django.eventstore.dead_letters import DeadLetters, key_of
from enode_django.eventstore.positions import Position
from enode_django.eventstore.sqlstates import is_transient
from enode_django.exceptions import QueueError, error_text

logger = logging.getLogger("enode_django.subscribers")

ROWS_AT_ONCE = 500
LOOK_AGAIN = 0.5
"""Seconds between checks whether the commands' queue is worked off."""

_READ = f"""
    SELECT resent_generation, resent_position, coalesce(fingerprint, '') FROM {checkpoints.SUBSCRIPTION}
    WHERE subscriber = %s AND shard = %s AND resent_position IS NOT NULL
"""
_SAVE = f"""
    UPDATE {checkpoints.SUBSCRIPTION} SET resent_generation = %s, resent_position = %s, fingerprint = %s
    WHERE subscriber = %s AND shard = %s
"""

Sent = tuple[Command, Metadata]


class Resender:
    """Looks for the effects of one process manager's commands that follow from one shard's streams. ``dead_letters``
    are those of all shards. `tick` is called by the subscriber's thread, in the worker that owns the first queue."""

    def __init__(
        self,
        processor: EffectProcessor,
        shard: Shard,
        transport: Transport,
        *,
        topic: str,
        group: str,
        interval: float,
        dead_letters: Sequence[DeadLetters] = (),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._processor = processor
        self._shard = shard
        self._transport = transport
        self._topic = topic
        self._group = group
        self._interval = interval
        self._dead_letters = dead_letters
        self._clock = clock
        self._goal: Goal | None = None
        self._after: Position | None = None
        self.next_step = clock()
        """The time of the clock at which `tick` has something to do next."""

    def tick(self) -> None:
        """Do a part of the work, if any is due. Blocks on the databases and the queue."""
        if self._clock() < self.next_step:
            return
        after = self._after = self._after or self._begin()
        if self._goal is None:
            swept = self._processor.subscribe(self._shard).swept_position
            if swept <= after.transaction:
                self.next_step = self._clock() + self._interval
                return
            self._goal = self._new_goal(swept)
        # Before the queue is worked off, a command without an effect may still be waiting.
        if self._goal is None or not is_worked_off(self._transport, self._group, self._topic, self._goal.ends):
            self.next_step = self._clock() + LOOK_AGAIN
            return
        self._look(after, self._goal)

    def postpone(self) -> None:
        self.next_step = self._clock() + self._interval

    def _begin(self) -> Position:
        """Return the position to go on from. It is at first the swept one: only later streams are checked. With other
        code than before it is the present one."""
        noted = execute(self._processor.alias, _READ, self._key).fetchone()
        if noted is None:
            position = self._processor.subscribe(self._shard).swept_position
        else:
            generation, transaction_id, code = noted
            position = Position(generation, transaction_id)
            if is_other_code(code, self._code):
                position = max(position, self._shard.position())
        self._save(position)
        return position

    def _look(self, after: Position, goal: Goal) -> None:
        page = self._shard.feed(after, limit=ROWS_AT_ONCE)
        entries = [entry for entry in page.entries if entry.position < goal.position]
        self._send_lost(entries)
        if len(entries) >= ROWS_AT_ONCE:
            self._after = entries[-1].position  # there may be more streams below the goal
        else:
            self._after, self._goal = goal.position, None
            self.postpone()
        self._save(self._after)

    def _send_lost(self, entries: Sequence[FeedEntry]) -> None:
        sent = [one for record in self._handled(entries) for one in self._commands_of(record)]
        found = self._processor.store.find([_command_key(command) for command, _ in sent])
        lost = self._without_letter([one for one in sent if _command_key(one[0]) not in found])
        if lost:
            name = self._processor.name
            logger.info("%s sends %d commands again that have had no effect", name, len(lost))
            self._processor.send(lost)

    def _without_letter(self, sent: Sequence[Sent]) -> Sequence[Sent]:
        """Leave out the commands that are dead letters: they are sent again from there, by hand."""
        keys: dict[int, list[str]] = {}
        for command, _ in sent:
            place = self._processor.store.place_of(command.aggregate_root_id)
            keys.setdefault(place, []).append(_letter_key(command))
        letters = enumerate(self._dead_letters)
        dead = {key for place, one in letters if place in keys for key in one.known(keys[place])}
        return [one for one in sent if _letter_key(one[0]) not in dead]

    def _handled(self, entries: Sequence[FeedEntry]) -> Iterator[StreamRecord]:
        """Yield the streams and refusals that the process manager has handled, and did not skip."""
        records = [entry.record for entry in entries]
        positions = self._processor.positions(list({one.aggregate_root_id for one in records}))
        keys = [(one.aggregate_root_id, one.command_id) for one in records]
        noted = checkpoints.handled_refusals(self._processor.alias, self._processor.key, keys)
        for record, key in zip(records, keys, strict=True):
            is_reached = record.version is not None and record.version <= positions.get(record.aggregate_root_id, 0)
            if (key in noted) if record.version is None else (is_reached and key not in noted):
                yield record

    def _commands_of(self, record: StreamRecord) -> Sequence[Sent]:
        try:
            return self._processor.commands_of(record)
        except HANDLER_ERRORS as error:  # application code; the commands that it sent before are unknown then
            if is_transient(error):
                raise
            self._log_failure(record, error)
            return ()

    def _log_failure(self, record: StreamRecord, error: BaseException) -> None:
        who, id = self._processor.name, record.aggregate_root_id
        told = "%s looks for lost commands, and fails at %s of %s, which it handled before: %s: %s; commands that "
        told += "followed from it are not looked for"
        where = Failure(record.version, record.command_id, error, datetime.now(UTC)).place
        about = {"subscriber": who, "aggregate_root_id": id}
        logger.warning(told, who, where, id, type(error).__name__, error_text(error), extra=about)

    def _new_goal(self, swept: Position) -> Goal | None:
        """Return None while the queue does not say where it ends."""
        try:
            return Goal(swept, self._transport.end_offsets(self._topic))
        except QueueError as error:
            logger.debug("%s cannot look for lost commands: %s", self._processor.name, error)
            return None

    @property
    def _key(self) -> tuple[str, int]:
        return self._processor.key, self._shard.number

    @property
    def _code(self) -> str:
        return handlers_fingerprint(self._processor.subscriber)

    def _save(self, position: Position) -> None:
        execute(self._processor.alias, _SAVE, (position.generation, position.transaction_id, self._code, *self._key))


def _command_key(command: Command) -> tuple[str, str]:
    return command.id, command.aggregate_root_id


def _letter_key(command: Command) -> str:
    return key_of(command.id, command.aggregate_root_id, b"")
