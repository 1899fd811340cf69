"""Fetched rows of an aggregate, decoded when they are used."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime
from itertools import chain
from typing import Any, NamedTuple, Protocol, overload, runtime_checkable

import psycopg
from django.db.backends.base.base import BaseDatabaseWrapper
from psycopg.types.datetime import TimestamptzBinaryLoader
from psycopg.types.string import ByteaBinaryLoader

from enode_django.eventstore import statements
from enode_django.eventstore.base import StreamRecord, make_record
from enode_django.eventstore.known_corrections import statement_of

_DECODED_AT_ONCE = 100
_decode_time = TimestamptzBinaryLoader(psycopg.adapters.types["timestamptz"].oid).load
"""Decode a time. Made without a connection, so the result is in UTC for every time zone of the session."""

Row = tuple[Any, ...]
"""The fields of a `StreamRecord`, in order. ``created_at`` may be in another form, which a `TimeOf` reads."""
TimeOf = Callable[[Any], datetime]
"""Returns the time of a row's ``created_at``."""
(AGGREGATE_ROOT_ID, VERSION, COMMAND_ID, AGGREGATE_ROOT_TYPE, _, CREATED_AT, EVENTS, METADATA) = range(
    len(StreamRecord._fields)
)


def itself(time: Any) -> Any:
    """Return the time: the `TimeOf` of records, which are rows, too."""
    return time


def decoded(row: Row, time_of: TimeOf) -> StreamRecord:
    root_id, version, command_id, root_type, command_type, created_at, events, metadata = row
    return make_record((root_id, version, command_id, root_type, command_type, time_of(created_at), events, metadata))


class Fetched(NamedTuple):
    """Successive streams of one aggregate, and the function that reads their times: a replay needs few columns."""

    rows: Sequence[Row]
    time_of: TimeOf


@runtime_checkable
class FetchedInParts(Protocol):
    """Streams of one aggregate by version, available undecoded."""

    def parts(self) -> Iterator[Fetched]: ...


class FetchedRecords(Sequence[StreamRecord]):
    """Streams of one aggregate by version. Equal to a sequence of the same records. Not thread-safe.

    A row is decoded at each access, so that its record is still in the processor's caches when a replay uses it. The
    connection is only used by the constructor.
    """

    def __init__(
        self, connection: BaseDatabaseWrapper, aggregate_root_id: str, after: int, until: int, limit: int
    ) -> None:
        self._cursor = psycopg.Cursor[Row](connection.connection)
        self._cursor.adapters.register_loader("timestamptz", ByteaBinaryLoader)
        parameters = (aggregate_root_id, after, until, limit)
        self._cursor.execute(statement_of(connection, statements.LOAD), parameters, prepare=False, binary=True)

    def __len__(self) -> int:
        return self._cursor.rowcount

    def parts(self) -> Iterator[Fetched]:
        for place in range(0, len(self), _DECODED_AT_ONCE):
            yield Fetched(self._rows(place, _DECODED_AT_ONCE), _decode_time)

    def _rows(self, place: int, count: int) -> list[Row]:
        """Return up to ``count`` rows from ``place`` on, which is at most the last one."""
        self._cursor.scroll(place, "absolute")
        return self._cursor.fetchmany(count)

    def __iter__(self) -> Iterator[StreamRecord]:
        for rows, _ in self.parts():
            yield from map(_decoded, rows)

    def last(self, count: int) -> list[StreamRecord]:
        """Return the last ``count`` rows, or all."""
        return list(map(_decoded, self._rows(max(0, len(self) - count), count))) if len(self) else []

    @overload
    def __getitem__(self, place: int) -> StreamRecord: ...
    @overload
    def __getitem__(self, place: slice) -> Sequence[StreamRecord]: ...
    def __getitem__(self, place: int | slice) -> StreamRecord | Sequence[StreamRecord]:
        if isinstance(place, slice):
            return [self[one] for one in range(*place.indices(len(self)))]
        (row,) = self._rows(range(len(self))[place], 1)
        return _decoded(row)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]


class FetchedStreams(Iterator[StreamRecord]):
    """The streams of chunks, each fetched when the previous one is exhausted. Iterate by record or by `parts`, not by
    both."""

    def __init__(self, chunks: Iterable[FetchedRecords]) -> None:
        self._chunks = chunks
        self._records = chain.from_iterable(chunks)

    def __next__(self) -> StreamRecord:
        return next(self._records)

    def parts(self) -> Iterator[Fetched]:
        return chain.from_iterable(chunk.parts() for chunk in self._chunks)


def _decoded(row: Row) -> StreamRecord:
    return decoded(row, _decode_time)
