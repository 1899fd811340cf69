"""A worker from the queue to the answers, every hand-over a call, over a store that may be away."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

from enode_django.commanding.command_processor import CommandProcessor
from enode_django.commanding.committer import Committed, Committer
from enode_django.commanding.decisions import Decision, Envelope, Finished
from enode_django.commanding.intake import Intake
from enode_django.commanding.mailbox_router import MailboxRouter
from enode_django.commanding.publisher import EventPublisher
from enode_django.commanding.remembered_answers import RememberedAnswers
from enode_django.equeue.consumer.queue_consumer import QueueConsumer
from enode_django.equeue.producer import Producer
from enode_django.equeue.transports.memory import MemoryTransport
from enode_django.eventstore.base import Appended, CommandKey, StreamRecord
from enode_django.eventstore.memory import MemoryEventStore
from enode_django.exceptions import StoreUnavailable
from enode_django.repository.loading import AggregateLoader
from tests.races.counting import handlers
from tests.races.whole_worker import COMMANDS, GROUP

LEASE = 60.0
STEPS = 2_000
"""More steps than any run needs to come to rest."""
REMEMBERED = 1_000

Value = TypeVar("Value")


class UnsteadyStore(MemoryEventStore):
    """Is away at the next calls: once for each of ``faults``.

    A fault says whether the call takes effect before its acknowledgement is lost, and what happens meanwhile.
    """

    def __init__(self) -> None:
        super().__init__()
        self.faults: deque[tuple[bool, Callable[[], object]]] = deque()

    def _meet_fault(self, call: Callable[[], Value]) -> Value:
        if not self.faults:
            return call()
        takes_effect, meanwhile = self.faults.popleft()
        if takes_effect:
            call()
        meanwhile()
        raise StoreUnavailable("the connection was lost")

    @contextmanager
    def reached(self) -> Iterator[None]:
        """Others reach the store at any time."""
        faults, self.faults = self.faults, deque()
        yield
        self.faults = faults

    def append(self, records: Sequence[StreamRecord], *, doubtful: bool = False) -> Sequence[Appended]:
        append = super().append
        return self._meet_fault(lambda: append(records, doubtful=doubtful))

    def find(self, keys: Iterable[CommandKey]) -> Mapping[CommandKey, StreamRecord]:
        find = super().find
        return self._meet_fault(lambda: find(keys))

    def heads(self, aggregate_root_ids: Iterable[str]) -> Mapping[str, int]:
        heads = super().heads
        return self._meet_fault(lambda: heads(aggregate_root_ids))

    def load(self, aggregate_root_id: str, *, after: int = 0, until: int | None = None) -> Iterator[StreamRecord]:
        load = super().load
        return self._meet_fault(lambda: load(aggregate_root_id, after=after, until=until))


def persist(call: Callable[[], Value], /) -> Value:
    """Try again until the store is back."""
    for _ in range(STEPS):
        try:
            return call()
        except StoreUnavailable:
            continue
    raise AssertionError("the store does not come back")


class SteppedWorker:
    """One puller, one command mailbox, one event mailbox and one publisher, on queue 0."""

    def __init__(
        self,
        transport: MemoryTransport,
        store: MemoryEventStore,
        owner: str,
        *,
        clock: Callable[[], float],
        max_aggregates: int = 10,
    ) -> None:
        self.owner = owner
        self.consumer = QueueConsumer(
            transport,
            group=GROUP,
            topic=COMMANDS,
            owner=owner,
            lease=LEASE,
            keep_receipts=REMEMBERED,
            clock=clock,
        )
        remembered = RememberedAnswers(REMEMBERED, self.consumer.receipts)
        self.intake = Intake(MailboxRouter(1, 1), remembered, delays=())
        self.processor = CommandProcessor(
            AggregateLoader(store),
            handlers,
            persist=persist,
            max_aggregates=max_aggregates,
            max_recent=1_000,
            max_bytes=10_000,
        )
        self.committer = Committer(store, persist=persist, clock=clock)
        self.publisher = EventPublisher(
            transport,
            Producer(transport, queues=1),
            remembered,
            event_topic="events",
            command_topic=COMMANDS,
            persist=persist,
            commit=self.consumer.commit,
        )
        self.commands: deque[list[Envelope] | int] = deque()  # a number is a queue that was acquired
        self.entries: deque[Decision] = deque()
        self.outcomes: deque[Committed] = deque()
        self.finished: deque[Finished] = deque()
        self.consumer.assign([0])

    def acquire(self) -> bool:
        acquired = self.consumer.acquire_missing()
        self.commands.extend(one.window.queue for one in acquired)
        return bool(acquired)

    def pull(self, limit: int) -> None:
        for window, offsets, bodies in self.consumer.pull(limit, 0):
            received = self.intake.receive(window, offsets, bodies)
            self.finished += received.finished
            if received.commands:
                self.commands.append(received.commands)

    def handle(self) -> None:
        """The command mailbox takes one item."""
        if not self.commands:
            return
        item = self.commands.popleft()
        if isinstance(item, int):
            self.processor.forget(item)
            return
        stored, left = self.processor.take_stored(item)
        self.entries += [*stored, *self.processor.handle(left)]

    def commit(self, count: int) -> None:
        """The event mailbox takes ``count`` entries as one batch."""
        if self.entries:
            committed = self.committer.commit(_take(self.entries, count))
            self.finished += committed.finished
            self.outcomes.append(committed)

    def deliver(self) -> None:
        """The command mailbox hears what became of the oldest batch."""
        if self.outcomes:
            committed = self.outcomes.popleft()
            self.processor.finish(committed.released)
            for recovery in committed.recoveries:
                self.entries += self.processor.recover(recovery)

    def publish(self, count: int) -> None:
        self.publisher.publish(_take(self.finished, count))

    def keep(self) -> None:
        """Do the work of the timer: renew the leases, and commit."""
        self.consumer.renew()
        self.consumer.commit()

    def settle(self) -> None:
        """Work off everything, until nothing moves."""
        for _ in range(STEPS):
            self.pull(100)
            if not (self.commands or self.entries or self.outcomes or self.finished):
                return
            self.handle()
            self.commit(100)
            self.deliver()
            self.publish(100)
        raise AssertionError("the worker does not come to rest")

    @property
    def in_flight(self) -> int:
        """Commands pinned in the command mailbox's cache."""
        return sum(len(slot.unfinished) for slot in self.processor._cache.slots.values())


def _take(waiting: deque[Any], count: int) -> list[Any]:
    return [waiting.popleft() for _ in range(min(count, len(waiting)))]
