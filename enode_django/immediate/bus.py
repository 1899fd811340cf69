"""The bus that handles a command in the sending thread, and lets subscribers follow before it returns."""

from __future__ import annotations

import dataclasses
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from itertools import repeat
from math import inf
from typing import Protocol

from asgiref.sync import sync_to_async
from django.db import connections, transaction

from enode_django.bus.addresses import crash_handler_in
from enode_django.bus.command_bus import CrashHandler, WritesCommands, nobody
from enode_django.bus.interception import handlers_in_use
from enode_django.bus.results import CommandResult, decode_result, encode_result, failure, stored_result
from enode_django.bus.waiting import AwaitedSubscribers
from enode_django.commanding.command_processor import CommandProcessor
from enode_django.commanding.committer import Committer
from enode_django.commanding.decisions import Decision, Envelope, Finished
from enode_django.commanding.publisher import announce, is_announced
from enode_django.concurrency.backoff import once
from enode_django.conf import conf
from enode_django.domain.handlers import Handlers
from enode_django.domain.messages import Command
from enode_django.domain.metadata import EMPTY, Metadata, ambient_metadata, current_metadata
from enode_django.eventstore.base import EventStore, StreamRecord
from enode_django.eventstore.sqlstates import DATABASE_ERRORS, UNDEFINED_TABLE, message, sqlstate
from enode_django.exceptions import CommandTimeout, ConfigurationError, EnodeError, StoreFailing, error_text
from enode_django.immediate.attempts import Attempts, cut
from enode_django.immediate.patience import aliases_of, patience
from enode_django.outbox import rows
from enode_django.outbox.relay import Relay
from enode_django.outbox.rows import Row
from enode_django.repository.loading import AggregateLoader
from enode_django.runtime import make_retries, make_snapshots
from enode_django.scheduling import rows as scheduling
from enode_django.scheduling.due import Changes
from enode_django.serialization.codec import (
    decode_command,
    encode_command,
    encode_metadata,
    restore_command,
    sent_with,
)
from enode_django.serialization.sent_commands import SentCommand, may_have_sent

logger = logging.getLogger("enode_django.outbox")


class Subscribers(Protocol):
    """The subscribers' part of a bus. The sending thread calls all methods; they block."""

    def begin(self) -> None:
        """Begin new subscribers. Called before a command, so that one that starts at *now* gets its events."""

    def follow(self, record: StreamRecord) -> None:
        """Let every subscriber handle a newly stored stream or refusal."""

    def keep_up(self) -> None:
        """Do due work for a short time. Called after a command and everything that followed from it."""

    def catch_up(self) -> None:
        """Compare the store with the checkpoints, and retry all parked aggregates that are due."""

    def progress(self, record: StreamRecord, keys: Sequence[str]) -> tuple[list[str], list[str]]:
        """Return the names of the subscribers with these keys that have parked the aggregate, and of those that have
        not reached the stream."""


class _Turn(threading.local):
    """The state of the calling thread: whether it is inside a command handler or a subscriber, the commands to handle
    next, the calls that let subscribers follow, and the outboxes that it relays."""

    def __init__(self) -> None:
        self.is_handling = False
        self.is_following = False
        self.commands: deque[Envelope] = deque()
        self.following: deque[Callable[[], None]] = deque()
        self.relaying: set[str] = set()


class ImmediateCommandBus(WritesCommands):
    """A command bus that handles each command in the calling thread, and in the caller's transaction if there is one.
    Thread-safe: as between processes, the store refuses streams that were decided on an old state.

    A command sent by a command handler is handled after the current one. A command sent by a subscriber is handled at
    once, so that it is durable before the subscriber's checkpoint moves; its events are followed when the subscriber is
    done. Aggregates are not kept in memory between commands, so a rollback undoes everything.

    Scheduled commands that are due are handled after a later command, or by `catch_up`: no process waits for them.
    """

    joins_transactions = True

    def __init__(self, store: EventStore, make_following: Callable[[ImmediateCommandBus], Subscribers]) -> None:
        self.store = store
        self._turn = _Turn()
        self._following = make_following(self)

    def send(self, commands: Sequence[Command], expected_versions: Sequence[int | None] = ()) -> None:
        metadata = current_metadata()
        pairs = zip(commands, expected_versions or repeat(None), strict=False)
        self._take([_envelope(command, metadata, version) for command, version in pairs])

    def forward(self, commands: Sequence[tuple[Command, Metadata]], crash_handler: CrashHandler = nobody) -> None:
        self._take(
            [_envelope(command, metadata, crash_handler=crash_handler(command)) for command, metadata in commands]
        )

    def write_to_outbox(
        self,
        alias: str,
        commands: Sequence[tuple[Command, Metadata]],
        crash_handler: CrashHandler = nobody,
        expected_versions: Sequence[int | None] = (),
    ) -> None:
        """Write commands as `CommandBus.write_to_outbox` says. They are handled after the commit by the thread that
        wrote them; the commands left by a killed process are handled after a later command, or by `catch_up`."""
        super().write_to_outbox(alias, commands, crash_handler, expected_versions)
        if commands and rows.runs_hooks(alias):
            transaction.on_commit(lambda: self.relay(alias), using=alias, robust=True)

    def change_deadlines(self, alias: str, changes: Changes) -> None:
        """Write deadlines in the transaction that is open in the database. Raises `ConfigurationError` without one."""
        scheduling.change(alias, changes)

    def relay(self, alias: str, seconds: float = inf) -> None:
        """Handle the commands that wait in the outbox of a database, for about that many seconds at most. With such a
        limit they are left to another caller who is at work on them, since one of them may take longer. Each is
        handled in one transaction with the deletion of its row; inside a command handler, after that. They wait for the
        end of a transaction that is open in another database of the store: a rollback would undo them alone. Commands
        that relayed commands write are left to the call that relays: a chain of them must not fill the stack."""
        beside = [one for one in aliases_of(self.store) if one != alias and connections[one].in_atomic_block]
        if self._turn.is_handling:
            self._turn.following.append(partial(self._relay_later, alias))
        elif beside:
            transaction.on_commit(lambda: self.relay(alias), using=beside[0], robust=True)
        elif alias not in self._turn.relaying:
            self._relay(alias, seconds)

    def _relay_later(self, alias: str) -> None:
        """Relay after a command, which is stored: its sender must learn that, and its subscribers must follow."""
        try:
            self.relay(alias)
        except Exception as error:
            told = "the outbox of %s cannot go on: %s; it is tried again after a later command"
            logger.error(told, alias, error, exc_info=error)

    def _relay(self, alias: str, seconds: float) -> None:
        self._turn.relaying.add(alias)
        try:
            handling, waits = _Handling(self), seconds == inf
            # The handlers run in the relay's transaction, and may take long.
            Relay(alias, handling, schedule=scheduling, at_once=1, waits=waits, ends_standstill=False).run(seconds)
        finally:
            self._turn.relaying.remove(alias)

    def relay_left(self, alias: str, seconds: float) -> None:
        """Do as `relay` if the database has an outbox, and no transaction is open whose rollback would not undo the
        writes of the commands."""
        is_open = connections[alias].in_atomic_block and [alias] != aliases_of(self.store)
        if not is_open and rows.has_table(alias):
            self.relay(alias, seconds)

    def deliver(self, bodies: Sequence[bytes]) -> None:
        """Handle encoded commands."""
        self._take([_delivered(body) for body in bodies])

    def execute(
        self,
        command: Command,
        timeout: float,
        awaited: AwaitedSubscribers | None = None,
        expected_version: int | None = None,
    ) -> CommandResult:
        """Execute a command. ``timeout`` has no effect. Raises `CommandTimeout` if an ``awaited`` subscriber could not
        be run, for example because its database is unavailable."""
        first, *_ = self._take([_envelope(command, current_metadata(), expected_version)])
        result = result_of(first)
        keys = sorted(awaited(result.event_types)) if awaited is not None and result.event_types else ()
        if not keys or first.record is None:
            return result
        parked, missing = self._following.progress(first.record, keys)
        if missing:
            raise _not_handled(command, result, missing)
        return dataclasses.replace(result, parked=tuple(parked)) if parked else result

    async def aexecute(
        self,
        command: Command,
        timeout: float,
        awaited: AwaitedSubscribers | None = None,
        expected_version: int | None = None,
    ) -> CommandResult:
        """Execute a command in the thread of Django's synchronous code, whose connections the request closes."""
        return await sync_to_async(self.execute, thread_sensitive=True)(command, timeout, awaited, expected_version)

    def catch_up(self) -> None:
        """Let subscribers handle all events that were left unhandled."""
        self._following.begin()
        self.run_following(self._following.catch_up)

    def close(self) -> None:
        """Do nothing: the bus holds no connections."""

    def run_following(self, call: Callable[[], None]) -> None:
        """Call a function that lets subscribers follow: now or, inside a subscriber, when that subscriber is done. Like
        in a worker, they do not find the sender's metadata."""
        turn = self._turn
        turn.following.append(call)
        if turn.is_following:
            return
        turn.is_following = True
        try:
            with ambient_metadata(EMPTY):
                while turn.following:
                    turn.following.popleft()()
        finally:
            turn.is_following = False
            turn.following.clear()

    def _take(self, envelopes: Sequence[Envelope]) -> list[Finished]:
        """Handle commands, which have their metadata by now. Like in a worker, handlers do not find the sender's."""
        try:
            with ambient_metadata(EMPTY):
                return self._take_all(envelopes)
        except (StoreFailing, *DATABASE_ERRORS) as error:
            if sqlstate(error) != UNDEFINED_TABLE:
                raise
            raise ConfigurationError(f"{message(error)}; run manage.py migrate") from error

    def _take_all(self, envelopes: Sequence[Envelope]) -> list[Finished]:
        """Handle commands in order, each with everything that follows from it, and then the commands that their
        handlers sent. Return the outcomes. Inside a handler, queue the commands and return an empty list."""
        turn = self._turn
        if turn.is_handling:
            turn.commands.extend(envelopes)
            return []
        outer, turn.commands = turn.commands, deque(envelopes)
        finished: list[Finished] = []
        try:
            while turn.commands:
                self._following.begin()
                decided = self._decide(turn, turn.commands.popleft())
                finished += decided
                self._announce(decided)
                self.run_following(partial(self._follow, decided))
        finally:
            turn.commands = outer
        if not turn.is_following:
            self._following.keep_up()
        return finished

    def _announce(self, decided: Sequence[Finished]) -> None:
        """Send the signals of outcomes when they are durable, and not at all if they are rolled back."""
        aliases = aliases_of(self.store) if is_announced() else ()
        is_open = [alias for alias in aliases if connections[alias].in_atomic_block]
        if is_open:
            transaction.on_commit(partial(announce, decided), using=is_open[0])
        else:
            announce(decided)

    def _follow(self, decided: Sequence[Finished]) -> None:
        for one in decided:
            if one.record is not None:
                self._following.follow(one.record)

    def _decide(self, turn: _Turn, envelope: Envelope) -> list[Finished]:
        """Return the outcomes of a command and of those that handlers sent by their contexts. All are durable, or part
        of the caller's transaction. Raises `StoreUnavailable`; then none is stored."""
        return self._persist(partial(self._handle_with_sent, turn, envelope))

    def _persist(self, call: Callable[[], list[Finished]], /) -> list[Finished]:
        return patience(self.store)(call)

    def _handle_with_sent(self, turn: _Turn, envelope: Envelope) -> list[Finished]:
        decided: list[Finished] = []
        sent, known = deque([envelope]), len(turn.commands)
        try:
            with Together(self.store) as together:
                while sent:
                    decided.append(one := self._handle_alone(turn, sent.popleft(), together))
                    if one.record is not None:
                        sent.extend(_delivered(body) for _, body in self._sent_with(one.record))
        except BaseException:
            cut(turn.commands, known)
            raise
        return decided

    def _handle_alone(self, turn: _Turn, envelope: Envelope, together: Together) -> Finished:
        turn.is_handling = True
        try:
            return self._handle(envelope, together)
        finally:
            turn.is_handling = False

    def _sent_with(self, record: StreamRecord) -> Sequence[SentCommand]:
        """Return the commands that a handler sent by its context; they are handled in the same transaction."""
        return sent_with(record.events)

    def _handlers(self) -> Handlers:
        return handlers_in_use()

    def _handle(self, envelope: Envelope, together: Together) -> Finished:
        current = conf()
        processor = CommandProcessor(
            AggregateLoader(self.store, make_snapshots(self.store)),
            Attempts(self._handlers(), self._turn.commands, aliases_of(self.store)),
            persist=once,
            max_aggregates=1,
            max_recent=2,
            max_bytes=current.COMMANDS.EVENTS_MAX_BYTES,
            retries=make_retries(current, waits=False),
            claim_deadline=current.COMMANDS.CLAIM_DEADLINE,
        )
        committer = Committer(self.store, persist=once, clock=time.monotonic)
        finished: list[Finished] = []
        due: Sequence[Envelope] = [envelope]
        while due:
            entries: Sequence[Decision] = processor.handle(due)
            while entries:
                if any(entry.record is not None and may_have_sent(entry.record.events) for entry in entries):
                    together.begin()
                committed = committer.commit(entries)
                finished.extend(committed.finished)
                processor.finish(committed.released)
                entries = processor.recover(*committed.recoveries)
            due = processor.take_due()  # another attempt, at once
        return finished[0]


class _Handling:
    """A sender of the outbox's relay that handles the commands."""

    def __init__(self, bus: ImmediateCommandBus) -> None:
        self._bus = bus

    def refusal(self, row: Row) -> str:
        try:
            _delivered(row.body)
        except EnodeError as error:
            return f"{type(error).__name__}: {error_text(error)}"
        return ""

    def send(self, waiting: Sequence[Row]) -> None:
        self._bus.deliver([row.body for row in waiting])


class Together(ExitStack):
    """A transaction for a command and the commands that its handler sends by its context. They are stored together."""

    def __init__(self, store: EventStore) -> None:
        super().__init__()
        self._aliases = aliases_of(store)

    def begin(self) -> None:
        """Begin the transaction. Safe to call twice. The first database, which has the unique values, commits first: a
        claim must not be lost if the process ends before the others have committed."""
        aliases, self._aliases = self._aliases, ()
        for alias in reversed(aliases):
            self.enter_context(transaction.atomic(using=alias))


def result_of(one: Finished) -> CommandResult:
    """Return the outcome as a worker would answer it: encoded and decoded."""
    result = stored_result(one.record) if one.record is not None else one.result
    if result is None:
        result = failure(one.envelope.id, one.envelope.aggregate_root_id, EnodeError("no outcome"))
    return decode_result(encode_result(result))


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
        crash_handler=crash_handler or crash_handler_in(wire.reply_to),
        expected_version=wire.expected_version,
    )


def _not_handled(command: Command, executed: CommandResult, missing: Sequence[str]) -> CommandTimeout:
    return CommandTimeout(
        f"{type(command).__qualname__} {command.id!r} was executed as version {executed.version} of "
        f"{executed.aggregate_root_id!r}, but not handled by {', '.join(missing)}, which cannot be run now (the log "
        "says why); it will be, after a later command",
        executed=executed,
        missing=tuple(missing),
    )
