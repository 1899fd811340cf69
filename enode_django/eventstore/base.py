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
"""Make a record from its fields, in order. Takes half the time of `StreamRecord`, whose constructor is a Python
function."""

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
    """The result of one record of an `EventStore.append`. ``stored`` is the row of an earlier command with the same ids
    (`Outcome.REPEATED`), ``error`` says why the record cannot be stored (`Outcome.INVALID`)."""

    outcome: Outcome
    stored: StreamRecord | None = None
    error: str = ""


class Settled(NamedTuple):
    """The rows within a range of positions, without refusals that are pruned by now."""

    heads: Mapping[str, tuple[str, int]]
    """The type and the highest version of each aggregate among these rows, by aggregate root id."""
    refusals: Sequence[StreamRecord]
    """The rows without a version, in no particular order."""

    @classmethod
    def of(cls, rows: Iterable[StreamRecord]) -> Settled:
        """Make one of rows. ``events`` and ``metadata`` of rows with a version are ignored."""
        heads: dict[str, tuple[str, int]] = {}
        refusals = []
        for row in rows:
            if row.version is None:
                refusals.append(row)
            elif row.version > heads.get(row.aggregate_root_id, ("", 0))[1]:
                heads[row.aggregate_root_id] = (row.aggregate_root_type, row.version)
        return cls(heads, refusals)


class Part(NamedTuple):
    """The rows from a position up to, and without, ``until``."""

    until: Position
    settled: Settled


class Correction(NamedTuple):
    """A correction of one stream.

    ``number`` grows within a shard; the correction with a stream's highest number applies. ``events`` replaces the
    stored events when the stream is read (None: they are read as stored). ``corrected_at`` is aware, in UTC.
    """

    number: int
    aggregate_root_id: str
    version: int
    events: bytes | None
    corrected_by: str
    reason: str
    corrected_at: datetime


class Corrected(NamedTuple):
    """A stream that was corrected; ``number`` is that of the correction."""

    number: int
    aggregate_root_id: str
    version: int


class FeedEntry(NamedTuple):
    """A settled row, with its position."""

    position: Position
    record: StreamRecord


class FeedPage(NamedTuple):
    """A page of the feed. The next page begins after ``position``: that of the last entry, or a later one with no rows
    in between."""

    entries: Sequence[FeedEntry]
    position: Position


class EventStore(Protocol):
    """A store of event streams. All methods block and are thread-safe; a call uses one connection to each shard.

    Each raises `StoreUnavailable` (retriable) when the database does not answer. The outcome of an append is then
    unknown: the caller sends the same records again with ``doubtful=True``.
    """

    @property
    def shards(self) -> Sequence[Shard]:
        """The databases that make up the store, each a store of its own aggregates. A store in one database returns
        itself."""

    def place_of(self, aggregate_root_id: str) -> int:
        """Return the index in `shards` of the shard that has the aggregate."""

    def generation_of(self, aggregate_root_id: str) -> int:
        """Return the generation of the aggregate's shard that this thread's last `append` to it has seen: the rows that
        it stored belong to this generation or a later one. Does not ask the database."""

    def append(self, records: Sequence[StreamRecord], *, doubtful: bool = False) -> Sequence[Appended]:
        """Store records. Return one `Appended` per record, in order.

        Records of one aggregate must come in the order they arose. ``doubtful`` says that some of these records may
        be stored already, or that a lost session may still be writing them. Inside a transaction of the caller, STORED
        is durable when that commits.
        """

    def load(self, aggregate_root_id: str, *, after: int = 0, until: int | None = None) -> Iterator[StreamRecord]:
        """Yield the streams of an aggregate with after < version <= until, by version, without refusals."""

    def load_many(self, aggregate_root_ids: Iterable[str]) -> Mapping[str, Sequence[StreamRecord]]:
        """Return all streams of several aggregates by aggregate root id, each by version. An id without streams is left
        out."""

    def load_ranges(
        self, ranges: Mapping[str, tuple[int, int]], *, limit: int = 1_000
    ) -> Mapping[str, Sequence[StreamRecord]]:
        """Return a range of streams for each of several aggregates, in one query.

        ``ranges`` maps an aggregate root id to (after, until): its first ``limit`` streams with
        after < version <= until are returned, by version. An id without such streams is left out.
        """

    def find(self, keys: Iterable[CommandKey]) -> Mapping[CommandKey, StreamRecord]:
        """Return the rows of these commands, refusals included. A command without a row is left out."""

    def heads(self, aggregate_root_ids: Iterable[str]) -> Mapping[str, int]:
        """Return the newest stored version of each aggregate. An id without streams is left out."""

    def correct(
        self, aggregate_root_id: str, version: int, events: bytes | None, *, by: str, reason: str, last: int
    ) -> Correction:
        """Correct the events of a stored stream; ``events=None`` restores the original. ``last`` is the number of the
        newest correction of the stream that the caller knows (0: none).

        Raises `CorrectionOutdated` if a newer one exists, and `AggregateNotFound` if the stream does not. Inside a
        transaction of the caller, the correction applies when that commits, and other corrections wait until then.
        """

    def corrections(self, aggregate_root_id: str) -> Sequence[Correction]:
        """Return all corrections of streams of an aggregate, by number."""

    def original(self, aggregate_root_id: str, version: int) -> StreamRecord | None:
        """Return a stream as it was stored; None if there is no such version."""

    def end_sessions(self, owner: str) -> int:
        """End the database sessions of the worker named ``owner`` that are not idle. Return their number."""

    def prune_refusals(self, before: datetime, *, limit: int = 10_000) -> int:
        """Delete up to ``limit`` refusals made before this time. Return the number deleted."""


def by_place(store: EventStore, aggregate_root_ids: Iterable[str]) -> Mapping[int, Sequence[str]]:
    """Return the ids of each shard, by the shard's index."""
    places: dict[int, list[str]] = {}
    for id in aggregate_root_ids:
        places.setdefault(store.place_of(id), []).append(id)
    return places


class Shard(EventStore, Protocol):
    """One database of the event store. Its positions order the rows of this database only."""

    @property
    def name(self) -> str:
        """A name for people: the database's alias, for example."""

    @property
    def number(self) -> int:
        """The number of the shard among its siblings. It never changes."""

    def corrected_since(self, number: int) -> Sequence[Corrected]:
        """Return the streams of all corrections with higher numbers, by number. When a number is visible, all lower
        ones are."""

    def heads_before(self, aggregate_root_ids: Iterable[str], position: Position) -> Mapping[str, int]:
        """Return the highest version of each aggregate stored below a position, whose sequence is ignored. An id
        without such a version is left out."""

    def stored_before(self, keys: Iterable[CommandKey], position: Position) -> Collection[CommandKey]:
        """Return those of the commands that have a row, a stream or a refusal, below a position, whose sequence is
        ignored."""

    def position(self) -> Position:
        """Return the position that the shard has reached: every row stored below it is settled, and no other row will
        appear there.

        No row gets a position below one that was returned before the row was sent. A row that may still be rolled
        back, such as one that the caller's open transaction stored, is not below it. The position never decreases, and
        passes a row soon after the row is durable; other open transactions delay it. Its sequence is 0. Rows that one
        call stored share a transaction id, unless the database refused the batch and it was stored in parts.
        """

    def feed(self, after: Position, *, limit: int) -> FeedPage:
        """Return at most ``limit`` settled rows above a position, refusals included, in the order of their positions.

        A page with fewer than ``limit`` rows holds all that are settled. A reader that continues from each page's
        position sees every row once, in the same order as every other reader, regardless of concurrent writers; pruned
        refusals are left out. The versions of an aggregate come in order, unless the transaction of the later version
        had written something before the earlier one was committed. For a position ahead of the shard, as a lagging
        replica may get, the page is empty and has this position. Costs at most as much as a few times ``limit`` rows.
        Raises `ValueError` for a limit below 1.
        """

    def settled(self, after: Position, before: Position, *, limit: int) -> Part:
        """Return the rows at positions p with after <= p < before, or a first part of them that ends between two
        transactions. The sequences of ``after`` and ``before`` are ignored.

        A part has at most ``limit`` rows, unless they are of one transaction. If ``before`` is at most a result of
        `position`, the same range always has the same rows (except for pruned refusals), and adjacent ranges return
        every row once.
        """

    def begin_generation(self, last: int) -> None:
        """Begin a new generation of positions, if ``last`` is the newest one: rows stored from now on come after every
        position returned so far. For a shard that was restored in a way that it cannot detect itself."""


PART_ROWS = 10_000
"""The most rows of a part."""


def parts_of(shard: Shard, after: Position, before: Position, *, limit: int = PART_ROWS) -> Iterator[Part]:
    """Yield the rows at positions p with after <= p < before, in parts of up to ``limit`` rows. Each part is one
    blocking call to the shard."""
    while after < before:
        part = shard.settled(after, before, limit=limit)
        yield part
        after = part.until
