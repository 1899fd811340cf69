"""A subscription on the real database, without a queue: tests decide which messages arrive, in which order."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime

from django.db import OperationalError

from enode_django import Command, DomainEvent, DomainException, Metadata
from enode_django.bus.messages import encode_published
from enode_django.bus.notices import Notice
from enode_django.concurrency.backoff import Persist, once
from enode_django.equeue.consumer.queue_consumer import PulledMessages
from enode_django.equeue.offsets import OffsetWindow
from enode_django.eventing import checkpoints, parking
from enode_django.eventing.event_subscription import EventSubscription
from enode_django.eventing.in_flight import InFlight
from enode_django.eventing.retry_decisions import RetryPolicy
from enode_django.eventing.runner import Runner
from enode_django.eventing.subscribers import Subscriber
from enode_django.eventstore.base import StreamRecord
from enode_django.eventstore.postgres import PostgresEventStore
from enode_django.ids import new_id
from enode_django.repository.loading import events_of
from enode_django.runtime import make_processor
from enode_django.serialization.codec import encode_refusal, encode_stream
from enode_django.serialization.registry import types
from tests.following.domain import Added, Counter, CounterRow, Entry

PASSING = (OperationalError, ConnectionError, TimeoutError)


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Harness:
    """``sent`` are the commands that process managers sent, ``notices`` the notices for waiting senders, each with its
    address."""

    def __init__(self) -> None:
        self.store = PostgresEventStore()
        self.clock = Clock()
        self.window = OffsetWindow("events", 0, epoch=1, committed=0, deadline=1e9)
        self.sent: list[Command] = []
        self.metadata: list[Metadata] = []
        self.notices: list[tuple[str, Notice]] = []

    def subscription(
        self,
        subscriber: Subscriber,
        *,
        attempts: int = 3,
        persist: Persist = once,
        in_flight: InFlight | None = None,
        hand_over: Callable[[], None] = lambda: None,
    ) -> EventSubscription:
        runner = Runner(make_processor(subscriber, self.store, self._send), persist, in_flight, singles_out=True)
        return EventSubscription(
            runner,
            policy=RetryPolicy.of(subscriber.retry, attempts, 1.0, unknown_delays=(), passing=PASSING),
            notify=self.notices.extend,
            hand_over=hand_over,
            clock=self.clock,
        )

    def _send(self, commands: Sequence[tuple[Command, Metadata]]) -> None:
        self.sent.extend(command for command, _ in commands)
        self.metadata.extend(metadata for _, metadata in commands)

    # -- the store ------------------------------------------------------------------------------------------------

    def stored(self, id: str, *streams: DomainEvent | Sequence[DomainEvent], after: int = 0) -> list[StreamRecord]:
        """Store each argument as a stream of this aggregate, from version ``after`` + 1 on. Return the records."""
        records = [
            stream_of(id, version, [stream] if isinstance(stream, DomainEvent) else stream)
            for version, stream in enumerate(streams, after + 1)
        ]
        self.store.append(records)
        return records

    def refused(self, id: str, refusal: DomainException, *, kind: str = "following.Counter") -> StreamRecord:
        record = StreamRecord(
            id, None, new_id(), kind, "following.Ask", datetime.now(UTC), encode_refusal(refusal), b""
        )
        self.store.append([record])
        return record

    # -- messages -------------------------------------------------------------------------------------------------

    def pulled(self, records: Iterable[StreamRecord], reply_to: str = "", generation: int = 0) -> PulledMessages:
        bodies = [encode_published(record, reply_to, generation) for record in records]
        offsets = list(range(self.window.next_offset, self.window.next_offset + len(bodies)))
        self.window.add(offsets)
        return PulledMessages(self.window, offsets, bodies)

    def deliver(self, subscription: EventSubscription, records: Iterable[StreamRecord], reply_to: str = "") -> None:
        subscription.handle([self.pulled(records, reply_to)])

    # -- results --------------------------------------------------------------------------------------------------

    @staticmethod
    def checkpoint(subscriber: str, id: str) -> int | None:
        return checkpoints.read("default", subscriber, [id]).get(id)

    @staticmethod
    def parked(subscriber: str, id: str = "") -> list[parking.Parked]:
        return parking.list_parked("default", subscriber, id)

    @staticmethod
    def rows() -> dict[str, tuple[str, int, int]]:
        return {row.pk: (row.owner, row.total, row.version) for row in CounterRow.objects.all()}

    @staticmethod
    def amounts(records: Iterable[StreamRecord]) -> list[tuple[int, int]]:
        """Return the versions and amounts of the events `Added`."""
        events = [event for record in records for event in events_of(record)]
        return [(event.version, event.amount) for event in events if isinstance(event, Added)]

    @staticmethod
    def entries(id: str) -> list[tuple[int, int]]:
        return [(entry.version, entry.amount) for entry in Entry.objects.filter(aggregate_root_id=id)]


def stream_of(id: str, version: int, events: Sequence[DomainEvent], kind: type = Counter) -> StreamRecord:
    name = types.name_of(kind)
    return StreamRecord(id, version, new_id(), name, "following.Do", datetime.now(UTC), encode_stream(events), b"")


def shuffled(records: Sequence[StreamRecord], seed: int) -> list[StreamRecord]:
    """Return every record twice, in a random order."""
    twice = [*records, *records]
    random.Random(seed).shuffle(twice)
    return twice
