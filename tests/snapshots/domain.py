"""Aggregates with and without what snapshots can hold."""

from __future__ import annotations

import dataclasses
import enum
from collections import Counter
from datetime import datetime
from decimal import Decimal
from typing import Any

from enode_django import AggregateRoot, DomainEvent, applies


class Size(enum.Enum):
    SMALL = "s"
    LARGE = "l"


@dataclasses.dataclass(frozen=True)
class Place:
    name: str
    lines: tuple[str, ...] = ()


class Put(DomainEvent):
    """``fails`` lets the applier raise."""

    type_name = "snapshots.Put"
    amount: int
    place: Place | None = None
    size: Size = Size.SMALL
    price: Decimal = Decimal(0)
    at: datetime | None = None
    labels: frozenset[str] = frozenset()
    fails: bool = False


class Shelf(AggregateRoot):
    type_name = "snapshots.Shelf"
    snapshot_every = 10
    total: int = 0
    prices: dict[str, Decimal] = {}
    places: list[Place] = []
    size: Size = Size.SMALL
    last: datetime | None = None
    labels: set[str] = set()
    nested: dict[int, list[tuple[int, str]]] = {}

    @applies
    def _put(self, event: Put) -> None:
        if event.fails:
            raise ValueError("told to fail")
        self.total += event.amount
        self.size, self.last = event.size, event.at
        self.labels |= event.labels
        if event.place is not None:
            self.places.append(event.place)
            self.prices[event.place.name] = event.price
            self.nested.setdefault(event.amount, []).append((event.amount, event.place.name))


class Undeclared(AggregateRoot):
    """Keeps state that no field declares."""

    type_name = "snapshots.Undeclared"
    snapshot_every = 10

    def __init__(self, id: str) -> None:
        super().__init__(id)
        self.rules = ("constant",)
        self.seen: list[int] = []

    @applies
    def _put(self, event: Put) -> None:
        self.seen.append(event.amount)


class Hooked(AggregateRoot):
    """Keeps such state, and says how."""

    type_name = "snapshots.Hooked"
    aliases = ("snapshots.Caught",)
    snapshot_every = 10

    def __init__(self, id: str) -> None:
        super().__init__(id)
        self.counts: Counter[int] = Counter()

    def snapshot(self) -> Any:
        return [[key, count] for key, count in self.counts.items()]

    def restore(self, plain: Any) -> None:
        self.counts = Counter(dict(plain))

    @applies
    def _put(self, event: Put) -> None:
        self.counts[event.amount] += 1


class Misdeclared(AggregateRoot):
    """Its applier keeps what its annotation does not allow."""

    type_name = "snapshots.Misdeclared"
    snapshot_every = 10
    total: str = ""
    counts: dict[str, int] = {}

    @applies
    def _put(self, event: Put) -> None:
        if event.amount == 1:
            self.total = event.amount  # type: ignore[assignment]
        elif event.amount == 2:
            self.counts = Counter({"a": 1})


class Off(AggregateRoot):
    type_name = "snapshots.Off"
    snapshot_every = None
    total: int = 0

    @applies
    def _put(self, event: Put) -> None:
        self.total += event.amount


class Fussy(AggregateRoot):
    """A policy of its own: at prime numbers."""

    type_name = "snapshots.Fussy"
    total: int = 0

    @staticmethod
    def snapshot_every(previous: int, version: int) -> bool:
        if version == 13:
            raise RuntimeError("unlucky")
        return version in (2, 3, 5, 7, 11) and version > previous

    @applies
    def _put(self, event: Put) -> None:
        self.total += event.amount
