"""The event store's port: what is stored, and what a driver must do.

An *event stream* is what one command did to one aggregate, one row. A row without a version is a stored refusal: the
command was refused by a ``DomainException`` and must never take effect. A driver promises, whatever happens:

* a pair (aggregate root id, version) is there once. Callers number the streams of an aggregate from the version they
  have seen stored, without a gap; the third promise then keeps versions 1, 2, 3 … in the store;
* a pair (command id, aggregate root id) is there once, so success and refusal exclude each other;
* a stream is stored only if everything sent before it for the same aggregate in the same call is stored too.

A stored row never changes. A *correction* says what the events of a stream are read as from then on, by all methods
that return rows; `EventStore.original` and the rows that `EventStore.append` returns are as they were stored.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from enum import Enum
from functools import partial
from typing import Any, NamedTuple, Protocol

from enode_django.eventstore.positions import Position

__all__ = [
    "Appended",
    "CommandKey",
    "Corrected",
    "Correction",
    "EventStore",
    "FeedEntry",
    "FeedPage",
    "Outcome",
    "Part",
    "Settled",
    "Shard",
    "StreamRecord",
]


class StreamRecord(NamedTuple):
    """One row of the store. ``created_at`` is aware, in UTC; ``events`` and ``metadata`` are opaque to a store."""

    aggregate_root_id: str
    version: int | None
    command_id: str
    aggregate_root_type: str
    command_type: str
    created_at: datetime
    events: bytes
    metadata: bytes

    @property
    def command_key(self) -> CommandKey:
        return (self.command_id, self.aggregate_root_id)


make_record: Callable[[Iterable[Any]], StreamRecord] = partial(tuple.__new__, StreamRecord)
"""A record of its fields, in order: in half the time, since a named tuple's own constructor is a Python function."""

CommandKey = tuple[str, str]
"""(command id, aggregate root id): what makes a command's outcome unique."""


class Outcome(Enum):
    """The outcome of one record of an `EventStore.append`."""

    STORED = "stored"
    """It is durable: written now, or found to be stored already byte for byte (a lost acknowledgement)."""
    REPEATED = "repeated"
    """This command is stored with another outcome; `Appended.stored` is that row."""
    CONFLICT = "conflict"
    """The version is taken by another command."""
    INVALID = "invalid"
    """The database refuses the data itself; `Appended.error` says why. Sending it again is useless."""
    DEPENDENT = "dependent"
    """Not stored, because something sent before it for the same aggregate was not."""


class Appended(NamedTuple):
    outcome: Outcome
    stored: StreamRecord | None = None
    error: str = ""


class Settled(NamedTuple):
    """The rows within a range of positions, without refusals that are pruned by now."""

    heads: Mapping[str, tuple[str, int]]
    """Per aggregate root id its type and its highest version among those rows, whatever is stored elsewhere."""
    refusals: Sequence[StreamRecord]
    """The rows without a version, in no order."""

    @classmethod
    def of(cls, rows: Iterable[StreamRecord]) -> Settled:
        """``events`` and ``metadata`` of the rows with a version do not matter."""
        heads: dict[str, tuple[str, int]] = {}
        refusals = []
        for row in rows:
            if row.version is None:
                refusals.append(row)
            elif row.version > heads.get(row.aggregate_root_id, ("", 0))[1]:
                heads[row.aggregate_root_id] = (row.aggregate_root_type, row.version)
        return cls(heads, refusals)


class Part(NamedTuple):
    """The rows from some position on and below ``until``."""

    until: Position
    settled: Settled


class Correction(NamedTuple):
    """A correction of one stream. ``number`` grows within a shard; the highest one of a stream counts. ``events`` are
    what its events are read as (None: as they were stored). ``corrected_at`` is aware, in UTC."""

    number: int
    aggregate_root_id: str
    version: int
    events: bytes | None
    corrected_by: str
    reason: str
    corrected_at: datetime


class Corrected(NamedTuple):
    """A stream that a correction was made of."""

    number: int
    aggregate_root_id: str
    version: int


class FeedEntry(NamedTuple):
    position: Position
    record: StreamRecord


class FeedPage(NamedTuple):
    """``position`` is where to go on from: that of the last entry, or a later one that nothing lies before."""

    entries: Sequence[FeedEntry]
    position: Position


class EventStore(Protocol):
    """All methods block. They may be called from any thread; one call's records are written by one connection to each
    shard.

    Each raises `StoreUnavailable` (retriable) when the database cannot be asked; nothing is then known about the
    outcome of an append, and the caller sends the same records again with ``doubtful=True``.
    """

    @property
    def shards(self) -> Sequence[Shard]:
        """The databases that make up the store, each a store of the aggregates in it; itself, if there is one."""

    def place_of(self, aggregate_root_id: str) -> int:
        """Which of the `shards` has the aggregate."""

    def generation_of(self, aggregate_root_id: str) -> int:
        """Return a generation that what this thread has stored with its last `append` of streams of the aggregate
        belongs to, or came after. Asks nothing."""

    def append(self, records: Sequence[StreamRecord], *, doubtful: bool = False) -> Sequence[Appended]:
        """Store records; returns one `Appended` per record, in order.

        Records of one aggregate must come in the order they arose. ``doubtful`` says that some of these records may
        be stored already, or be on their way to the disk in a session that was lost. Inside a transaction of the
        caller, STORED is durable when that commits.
        """

    def load(self, aggregate_root_id: str, *, after: int = 0, until: int | None = None) -> Iterator[StreamRecord]:
        """The streams of an aggregate with after < version <= until, by version; refusals are left out."""

    def load_many(self, aggregate_root_ids: Iterable[str]) -> Mapping[str, Sequence[StreamRecord]]:
        """All streams of several aggregates, each by version; an id without any is left out."""

    def load_ranges(
        self, ranges: Mapping[str, tuple[int, int]], *, limit: int = 1_000
    ) -> Mapping[str, Sequence[StreamRecord]]:
        """Parts of several histories, in one query. ``ranges`` holds (after, until) per aggregate root id: its streams
        with after < version <= until, by version, the first ``limit`` of each aggregate; an id without any is left out.
        """

    def find(self, keys: Iterable[CommandKey]) -> Mapping[CommandKey, StreamRecord]:
        """The rows (refusals too) of these commands; a command without a row is left out."""

    def heads(self, aggregate_root_ids: Iterable[str]) -> Mapping[str, int]:
        """The newest stored version per aggregate; an id without any is left out."""

    def correct(
        self, aggregate_root_id: str, version: int, events: bytes | None, *, by: str, reason: str, last: int
    ) -> Correction:
        """Correct the events of a stored stream; None lets the original count again. ``last`` is the number of the
        newest correction of it that the caller knows (0: none).

        Raises `CorrectionOutdated` if there is a newer one, and `AggregateNotFound` if there is no such stream. Inside
        a transaction of the caller it counts when that commits, and other corrections wait until then.
        """

    def corrections(self, aggregate_root_id: str) -> Sequence[Correction]:
        """Return all corrections of streams of an aggregate, by number."""

    def original(self, aggregate_root_id: str, version: int) -> StreamRecord | None:
        """Return a stream as it was stored; None if there is no such version."""

    def end_sessions(self, owner: str) -> int:
        """End the database sessions that a worker named ``owner`` holds; returns how many there were."""

    def prune_refusals(self, before: datetime, *, limit: int = 10_000) -> int:
        """Delete up to ``limit`` refusals made before this time; returns how many were deleted."""


def by_place(store: EventStore, aggregate_root_ids: Iterable[str]) -> Mapping[int, Sequence[str]]:
    """The ids of each shard, by its place."""
    places: dict[int, list[str]] = {}
    for id in aggregate_root_ids:
        places.setdefault(store.place_of(id), []).append(id)
    return places


class Shard(EventStore, Protocol):
    """One of the databases: it has positions, which order what is stored in it, and in it alone."""

    @property
    def name(self) -> str:
        """Return a name for people: the database's alias, for example."""

    @property
    def number(self) -> int:
        """Return the number that tells the shard from its siblings, for ever."""

    def corrected_since(self, number: int) -> Sequence[Corrected]:
        """Return the streams that corrections with higher numbers were made of, by number. Whoever has seen a number
        has seen all lower ones."""

    def heads_before(self, aggregate_root_ids: Iterable[str], position: Position) -> Mapping[str, int]:
        """Per aggregate the highest version stored below this position, whose sequence does not matter; an id without
        any is left out."""

    def stored_before(self, keys: Iterable[CommandKey], position: Position) -> Collection[CommandKey]:
        """Return those of the commands that were stored below this position on their aggregate, as a stream or a
        refusal."""

    def position(self) -> Position:
        """Return the position that the shard has reached: every row stored at a position below it is settled, and no
        other will appear.

        Every row has a position, not below what this method gave before the row was sent. A row that is stored, but
        may still vanish, has none below it: what the caller's own open transaction stored, for example. It never goes
        back, and comes to lie above a row soon after that is durable; other open transactions hold it back. Its
        sequence is 0. Rows that one call stored share a transaction id.
        """

    def feed(self, after: Position, *, limit: int) -> FeedPage:
        """The settled rows above a position, refusals too, in the order of their positions, at most ``limit``.

        Fewer than ``limit`` are all that is settled by now. Who goes on from each page's position sees every row once,
        whatever writers do meanwhile, and in the same order as everybody else; pruned refusals are left out. A version
        comes after the one before it, unless it was stored in a transaction that had written something before the
        other one was committed. A position ahead of the shard, such as a lagging replica is given, is returned with
        no rows. Costs no more than a few times ``limit`` rows do. Raises `ValueError` for a limit below 1.
        """

    def settled(self, after: Position, before: Position, *, limit: int) -> Part:
        """Return the rows at positions p with after <= p < before, or a first part of them that ends between two
        transactions; the sequences of ``after`` and ``before`` do not matter.

        A part has at most ``limit`` rows, unless they are of one transaction. If ``before`` is at most what
        `position` gave, the same range has the same rows for ever (except for pruned refusals), and ranges laid end
        to end show every row once.
        """

    def begin_generation(self, last: int) -> None:
        """Begin a new generation of positions, if ``last`` is the newest one: what is stored from now on comes after
        every position given so far. For a shard that was set back in a way that it cannot notice itself."""


PART_ROWS = 10_000
"""Rows of a part, at most."""


def parts_of(shard: Shard, after: Position, before: Position, *, limit: int = PART_ROWS) -> Iterator[Part]:
    """Yield the streams that were stored at positions from ``after`` on and below ``before``, in parts of up to
    ``limit`` rows. Blocks on the shard with each part."""
    while after < before:
        part = shard.settled(after, before, limit=limit)
        yield part
        after = part.until
