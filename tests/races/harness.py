"""A worker without threads: a test calls each hand-over between its mailboxes, and so forces the order of the steps."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence

from enode_django.bus.results import CommandResult, CommandStatus
from enode_django.commanding.command_processor import CommandProcessor
from enode_django.commanding.committer import Committed, Committer
from enode_django.commanding.decisions import Decision, Envelope, Finished
from enode_django.commanding.handler_retries import NO_RETRIES, HandlerRetries
from enode_django.commanding.publisher import answer_of
from enode_django.commanding.shared_state_writer import SharedStateWriter
from enode_django.commanding.uniqueness import CLAIM_DEADLINE
from enode_django.concurrency.backoff import Persist, once
from enode_django.domain.declarations import plain_of
from enode_django.domain.handlers import HandlerTable
from enode_django.domain.messages import Command
from enode_django.equeue.offsets import OffsetWindow
from enode_django.eventstore.base import Appended, EventStore, Shard, StreamRecord
from enode_django.eventstore.memory import MemoryEventStore
from enode_django.exceptions import StoreUnavailable
from enode_django.repository.loading import AggregateLoader
from enode_django.repository.states import SharedStates
from enode_django.repository.store import SnapshotStore
from enode_django.serialization.codec import decode_command, encode_command, restore_command
from tests.races.counting import handlers

WRITE_INTERVAL = 1.0
STEPS = 1_000
"""No test needs so many steps until nothing is left. A protocol that never ends fails instead of hanging."""


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class Worker:
    """One command mailbox and one event mailbox, over a store that others may also write to."""

    def __init__(
        self,
        store: EventStore,
        *,
        clock: Clock | None = None,
        max_aggregates: int = 100,
        max_recent: int = 1_000,
        max_bytes: int = 10_000,
        persist: Persist = once,
        snapshots: SnapshotStore | None = None,
        states: SharedStates | None = None,
        retries: HandlerRetries = NO_RETRIES,
        shard: Shard | None = None,
        table: HandlerTable = handlers,
        claim_deadline: float = CLAIM_DEADLINE,
    ) -> None:
        self.clock = clock or Clock()
        clocks = {"clock": self.clock, "work_clock": self.clock}
        self.keeper = SharedStateWriter(states, interval=WRITE_INTERVAL, **clocks) if states is not None else None
        self.processor = CommandProcessor(
            AggregateLoader(store, snapshots, states),
            table,
            persist=persist,
            max_aggregates=max_aggregates,
            max_recent=max_recent,
            max_bytes=max_bytes,
            keeper=self.keeper,
            retries=retries,
            shard=shard,
            claim_deadline=claim_deadline,
            clock=self.clock,
        )
        self.committer = Committer(store, persist=persist, clock=self.clock)
        self.window = self.acquire()
        self.envelopes: deque[Envelope] = deque()
        self.entries: deque[Decision] = deque()
        self.outcomes: deque[Committed] = deque()
        self.finished: list[Finished] = []
        self.handled: list[Decision] = []

    def acquire(self, lease: float = 10.0) -> OffsetWindow:
        """Return a new lease of the queue. Forget its idle aggregates, and begin its offsets at 0."""
        self.window = OffsetWindow("commands", 0, epoch=1, committed=0, deadline=self.clock.now + lease)
        self.processor.forget(0)
        return self.window

    def send(self, *commands: Command, expected_version: int | None = None) -> list[Envelope]:
        offset = self.window.next_offset
        self.window.add(range(offset, offset + len(commands)))
        envelopes = [envelope(command, self.window, offset + n, expected_version) for n, command in enumerate(commands)]
        self.envelopes.extend(envelopes)
        return envelopes

    # -- the steps ------------------------------------------------------------------------------------------------

    def handle(self, count: int | None = None) -> list[Decision]:
        """Handle the postponed commands that are due, and then ``count`` further commands (None: all)."""
        entries = self.processor.handle(self.processor.take_due())
        entries += self.processor.handle(_take(self.envelopes, count))
        self.handled += entries
        self.entries.extend(entries)
        return entries

    def commit(self, count: int | None = None) -> Committed:
        """Commit ``count`` decisions (None: all) as one batch, in the event mailbox."""
        committed = self.committer.commit(_take(self.entries, count))
        self.finished += committed.finished
        self.outcomes.append(committed)
        return committed

    def deliver(self) -> list[Decision]:
        """Give the outcomes of the oldest batch to the command mailbox. Return the commands that it decides again."""
        if not self.outcomes:
            return []
        committed = self.outcomes.popleft()
        self.processor.finish(committed.released)
        entries = self.processor.recover(*committed.recoveries)
        self.handled += entries
        self.entries.extend(entries)
        return entries

    def settle(self) -> None:
        """Take all steps until nothing is left to do."""
        for _ in range(STEPS):
            self.handle()
            if not (self.entries or self.outcomes):
                return
            if self.entries:
                self.commit()
            self.deliver()
        raise AssertionError("the worker does not come to rest")

    def keep(self) -> None:
        """Let the time of the next round come, and encode all that is due for the shared states."""
        self.clock.now += WRITE_INTERVAL
        self.processor.keep()

    def run(self, *commands: Command, expected_version: int | None = None) -> list[CommandResult]:
        """Send, settle, and return the answers to exactly these commands."""
        before = len(self.finished)
        self.send(*commands, expected_version=expected_version)
        self.settle()
        by_id = {one.envelope.id: answer_of(one) for one in self.finished[before:]}
        return [by_id[command.id] for command in commands]

    # -- results --------------------------------------------------------------------------------------------------

    @property
    def answers(self) -> dict[str, CommandResult]:
        """The answer to each command id. Raises `AssertionError` if two answers to one id differ."""
        answers: dict[str, CommandResult] = {}
        for one in self.finished:
            answer = answer_of(one)
            assert answers.setdefault(answer.command_id, answer) == answer, "two answers to one command differ"
        return answers

    def status(self, command: Command) -> CommandStatus:
        return self.answers[command.id].status

    @property
    def in_flight(self) -> int:
        """Commands pinned in the command mailbox's cache."""
        return sum(len(slot.unfinished) for slot in self.processor._cache.slots.values())


def envelope(
    command: Command, window: OffsetWindow | None = None, offset: int = 0, expected_version: int | None = None
) -> Envelope:
    """Return the envelope of a command after encoding and decoding it. Its sender waits for the answer."""
    wire = decode_command(encode_command(command, b"", "inbox", expected_version))
    return Envelope(
        wire.id,
        wire.aggregate_root_id,
        wire.type_name,
        restore_command(wire),
        reply_to=wire.reply_to,
        window=window,
        offset=offset,
        expected_version=wire.expected_version,
    )


def _take(waiting: deque, count: int | None) -> list:  # type: ignore[type-arg]
    return [waiting.popleft() for _ in range(len(waiting) if count is None else min(count, len(waiting)))]


class LosesAcknowledgements(MemoryEventStore):
    """Stores records, and then raises `StoreUnavailable`, for the next ``times`` appends."""

    def __init__(self, times: int = 1) -> None:
        super().__init__()
        self.times = times
        self.doubtful: list[bool] = []

    def append(self, records: Sequence[StreamRecord], *, doubtful: bool = False) -> Sequence[Appended]:
        self.doubtful.append(doubtful)
        appended = super().append(records, doubtful=doubtful)
        if self.times:
            self.times -= 1
            raise StoreUnavailable("the connection was lost after the commit")
        return appended


def versions(store: EventStore, id: str) -> list[int | None]:
    return [record.version for record in store.load(id)]


def commands_stored(store: EventStore, id: str) -> list[str]:
    return [record.command_id for record in store.load(id)]


def assert_history_is_whole(store: EventStore, id: str) -> None:
    """Assert that the versions are 1, 2, 3 …, that each command is there once, and that every event follows from the
    state before it."""
    records = list(store.load(id))
    assert [record.version for record in records] == list(range(1, len(records) + 1))
    assert len({record.command_id for record in records}) == len(records)
    counter = AggregateLoader(store).load(id)
    total = 0
    for event in (event for record in records for event in _events(record)):
        fields = plain_of(event)
        total += int(fields.get("amount", 0))
        assert fields.get("total", total) == total, "an event rests on a state that was never stored"
    assert getattr(counter, "total", 0) == total


def _events(record: StreamRecord) -> Sequence:  # type: ignore[type-arg]
    from enode_django.repository.loading import events_of

    return events_of(record)


def assert_answers_are_final(store: EventStore, answers: Mapping[str, CommandResult]) -> None:
    """Assert that SUCCESS is stored under the version of the answer, and that FAILED and NOTHING_CHANGED have no
    stream."""
    for answer in answers.values():
        key = (answer.command_id, answer.aggregate_root_id)
        stored = store.find([key]).get(key)
        if answer.status is CommandStatus.SUCCESS:
            assert stored is not None
            assert stored.version == answer.version
        else:
            assert stored is None or stored.version is None
