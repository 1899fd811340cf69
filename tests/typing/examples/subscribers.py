"""Methods of subscribers, and event handlers, name their events in an annotation, in the decorator, or in both."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from enode_django import (
    Command,
    CommandCrashed,
    DomainEvent,
    DomainException,
    ModelProjection,
    ProcessManager,
    Projection,
    ends,
    event_handler,
    handles,
    handles_crash,
    starts,
)
from enode_django.models import ReadModel


class Opened(DomainEvent):
    owner: str


class Renamed(DomainEvent):
    owner: str


class Closed(DomainEvent):
    pass


class Frozen(DomainEvent):
    pass


class Thawed(DomainEvent):
    pass


class Moved(DomainEvent):
    pass


class Refused(DomainException):
    pass


class Row(ReadModel):
    owner: str


class Rows(ModelProjection[Row]):
    @handles(creates=True)
    def opened(self, row: Row, event: Opened) -> None:
        row.owner = event.owner

    @handles
    def renamed(self, row: Row, event: Renamed) -> None:
        row.owner = event.owner

    @handles(Closed)
    def closed(self, row: Row, event: Closed) -> None:
        self.delete(row)

    @handles(Frozen, Thawed, creates=False)
    def cooled(self, row: Row, event: Frozen | Thawed) -> None: ...

    @handles(Frozen)  # error
    def wrong(self, row: Row, event: Thawed) -> None: ...

    @handles(Frozen, Thawed)  # error
    def less(self, row: Row, event: Frozen) -> None: ...

    @handles(Opened, creates="yes")  # error
    def yes(self, row: Row, event: Opened) -> None: ...


class Ledger(Projection):
    @handles
    def opened(self, event: Opened | Renamed) -> None: ...

    @handles(Closed)
    def closed(self, event: DomainEvent) -> None: ...

    @handles(Opened, Renamed, Closed, Frozen, Thawed)
    def five(self, event: Opened | Renamed | Closed | Frozen | Thawed) -> None: ...

    @handles(Opened, Renamed, Closed, Frozen, Thawed, Moved)
    def six(self, event: DomainEvent) -> None: ...

    @handles(Opened, Renamed, Closed, Frozen, Thawed)  # error
    def four(self, event: Opened | Renamed | Closed | Frozen) -> None: ...

    @handles(int)  # error
    def number(self, event: int) -> None: ...


class Manager(ProcessManager):
    @handles
    def opened(self, event: Opened) -> Iterator[Command]:
        yield from ()

    @handles(Refused, Closed)
    def refused(self, refusal: Refused | Closed) -> Iterator[Command]:
        yield from ()

    @handles(Refused)  # error
    def wrong(self, refusal: Opened) -> Iterator[Command]:
        yield from ()


class Thaw(Command):
    why: str


@dataclasses.dataclass
class Rent:
    months: int = 0


class Rents(ProcessManager, key="owner"):
    state = Rent

    @starts
    def opened(self, rent: Rent, event: Opened) -> None: ...

    @handles(Moved, key=lambda event: event.id)
    def moved(self, rent: Rent, event: Moved) -> Iterator[Command]:
        rent.months += 1
        yield from ()

    @ends(key=lambda refusal: None, when=lambda rent: rent.months == 12)
    def refused(self, rent: Rent, refusal: Refused | Closed) -> None: ...

    @starts(Closed, Frozen, Thawed)
    def three(self, rent: Rent, event: Closed | Frozen | Thawed) -> None: ...

    @ends(Closed, Frozen, Thawed, Renamed, key=lambda event: event.id, when=lambda rent: rent.months > 1)
    def four(self, rent: Rent, event: DomainEvent) -> None: ...

    @handles(join=True)
    def both(self, rent: Rent, event: Opened | Moved) -> None: ...

    @ends(Closed, Thawed, join=True)
    def last(self, rent: Rent, event: Closed | Thawed) -> None: ...

    @ends
    @handles_crash(Thaw)
    def failed(self, rent: Rent, failure: Refused | CommandCrashed) -> Iterator[Command]:
        yield Thaw(failure.aggregate_root_id, why=failure.message)

    @handles_crash(Thaw)
    def crashed(self, rent: Rent, crash: CommandCrashed) -> Iterator[Command]:
        yield Thaw(crash.aggregate_root_id, why=crash.command.why)  # error
        assert isinstance(crash.command, Thaw)
        yield Thaw(crash.aggregate_root_id, why=crash.command.why)

    @ends(Closed, join=True)  # error
    def alone(self, rent: Rent, event: Closed) -> None: ...

    @starts(Frozen)  # error
    def thawed(self, rent: Rent, event: Thawed) -> None: ...

    @ends(Thawed, key=lambda event: event.version)  # error
    def number(self, rent: Rent, event: Thawed) -> None: ...

    @ends(Frozen, key=lambda event: event.nothing)  # error
    def frozen(self, rent: Rent, event: Frozen) -> None: ...


@event_handler
def mail(event: Opened | Refused) -> None: ...


@event_handler(Opened)
def both(event: Opened) -> None: ...


@event_handler(priority=1, group="mails")
def joined(event: Opened) -> None: ...


@event_handler(Opened, Closed, name="mails.many")
def many(event: Opened | Closed) -> None: ...


@event_handler(Opened, Closed)  # error
def less(event: Opened) -> None: ...


@event_handler(Opened)  # error
def wrong(event: Closed) -> None: ...


@event_handler(Opened, prioriti=1)  # error
def misspelled(event: Opened) -> None: ...


def use(event: Opened) -> None:
    mail(event)
    both(event)
    many(event)
    Ledger().opened(event)
    Ledger().five(event)
    Ledger().opened(Frozen())  # error
    mail(Frozen())  # error


class Numbered(ProcessManager, key=5):  # error
    state = Rent
