"""Counters, and subscribers that follow them. `behaviour` tells handlers when to fail, and records their calls."""

from __future__ import annotations

import dataclasses
from collections import Counter as Tally
from collections.abc import Iterator

from django.db import models

from enode_django import (
    AggregateRoot,
    Command,
    DomainEvent,
    DomainException,
    ModelProjection,
    ProcessManager,
    Projection,
    applies,
    handles,
)
from enode_django.eventing.event_handlers import EventHandler, EventHandlerGroup
from enode_django.models import ReadModel


class Opened(DomainEvent):
    type_name = "following.Opened"
    owner: str


class Added(DomainEvent):
    type_name = "following.Added"
    amount: int


class Noted(DomainEvent):
    """An event that no subscriber handles."""

    type_name = "following.Noted"


class Closed(DomainEvent):
    type_name = "following.Closed"


class TooMuch(DomainException):
    type_name = "following.TooMuch"
    amount: int


class Unrelated(DomainException):
    type_name = "following.Unrelated"


class Thanked(DomainEvent):
    type_name = "following.Thanked"


class Counter(AggregateRoot):
    type_name = "following.Counter"
    total: int = 0

    @applies(Opened, Noted, Closed)
    def _ignore(self, event: DomainEvent) -> None: ...

    @applies
    def _added(self, event: Added) -> None:
        self.total += event.amount


class Guest(AggregateRoot):
    """An aggregate whose events no subscriber handles."""

    type_name = "following.Guest"

    @applies
    def _thanked(self, event: Thanked) -> None: ...


class Congratulate(Command):
    type_name = "following.Congratulate"
    text: str


class Console(Command):
    type_name = "following.Console"
    amount: int


@dataclasses.dataclass
class Behaviour:
    """``failing`` is the number of the next calls that fail, by aggregate root id. ``calls`` are the ids of the handled
    events."""

    failing: Tally[str] = dataclasses.field(default_factory=Tally)
    calls: list[str] = dataclasses.field(default_factory=list)
    error: type[BaseException] = RuntimeError

    def handle(self, event: DomainEvent | DomainException) -> None:
        if self.failing[event.aggregate_root_id] > 0:
            self.failing[event.aggregate_root_id] -= 1
            raise self.error(f"told to fail at {event.id}")
        self.calls.append(event.id)


behaviour = Behaviour()


class CounterRow(ReadModel):
    owner = models.CharField(max_length=10)
    total = models.IntegerField(default=0)
    note = models.CharField(max_length=100, null=True, unique=True)

    class Meta:
        app_label = "following"


class Entry(models.Model):
    aggregate_root_id = models.CharField(max_length=255)
    version = models.BigIntegerField()
    amount = models.IntegerField()

    class Meta:
        app_label = "following"
        ordering = ("aggregate_root_id", "version")


class Opening(ReadModel):
    owner = models.CharField(max_length=10)
    total = models.IntegerField(default=0)

    class Meta:
        app_label = "following"


class CounterRows(ModelProjection[CounterRow]):
    name = "following.rows"

    @handles
    def opened(self, row: CounterRow, event: Opened) -> None:
        row.owner = event.owner
        behaviour.handle(event)

    @handles
    def added(self, row: CounterRow, event: Added) -> None:
        row.total += event.amount
        behaviour.handle(event)

    @handles
    def closed(self, row: CounterRow, event: Closed) -> None:
        self.delete(row)
        behaviour.handle(event)


class Openings(ModelProjection[Opening]):
    """Keeps rows of counters that are opened and not closed."""

    name = "following.openings"

    @handles(creates=True)
    def opened(self, row: Opening, event: Opened) -> None:
        row.owner = event.owner
        behaviour.handle(event)

    @handles
    def added(self, row: Opening, event: Added) -> None:
        row.total += event.amount

    @handles
    def closed(self, row: Opening, event: Closed) -> None:
        self.delete(row)


class Entries(Projection):
    name = "following.entries"
    models = (Entry,)
    aggregate_field = "aggregate_root_id"

    @handles
    def added(self, event: Added) -> None:
        self.insert(Entry(aggregate_root_id=event.aggregate_root_id, version=event.version, amount=event.amount))
        behaviour.handle(event)


class Kindness(ProcessManager):
    name = "following.kindness"
    start = "beginning"

    @handles
    def opened(self, event: Opened) -> Iterator[Command]:
        behaviour.handle(event)
        yield Congratulate(f"guest-{event.owner}", text="first")
        yield Congratulate(f"guest-{event.owner}", text="second")

    @handles
    def refused(self, refusal: TooMuch) -> Iterator[Command]:
        behaviour.handle(refusal)
        yield Console(aggregate_root_id=f"guest-{refusal.aggregate_root_id}", amount=refusal.amount)


def handler_group(start: str = "beginning") -> EventHandlerGroup:
    """Return a new group, which no registry knows."""
    group = EventHandlerGroup("following.handlers")

    def second(event: DomainEvent) -> None:
        behaviour.calls.append("second")

    def first(event: DomainEvent) -> None:
        behaviour.handle(event)

    group.add(EventHandler(Added, "b.second", 20, second, start))
    group.add(EventHandler(Added, "c.first", 10, first, start))
    return group


MODELS = (CounterRow, Entry, Opening)
