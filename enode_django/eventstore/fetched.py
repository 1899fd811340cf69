"""Rows that are here, still as the database sent them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, overload

import psycopg
from django.db.backends.base.base import BaseDatabaseWrapper

from enode_django.eventstore import statements
from enode_django.eventstore.base import StreamRecord
from enode_django.eventstore.rows import records_of

_DECODED_AT_ONCE = 100


class FetchedRecords(Sequence[StreamRecord]):
    """Streams of one aggregate in the order of their versions, each decoded when it is looked at, and again whenever it
    is: what is made of a row should not have left the processor's caches when a replay comes to it. Equal to a
    sequence of the same records. Used by one thread at a time; the connection is not needed any more."""

    def __init__(
        self, connection: BaseDatabaseWrapper, aggregate_root_id: str, after: int, until: int, limit: int
    ) -> None:
        self._root_id = aggregate_root_id
        self._cursor = psycopg.Cursor[tuple[Any, ...]](connection.connection)
        parameters = (aggregate_root_id, after, until, limit)
        self._cursor.execute(statements.LOAD, parameters, prepare=False, binary=True)

    def __len__(self) -> int:
        return self._cursor.rowcount

    def __iter__(self) -> Iterator[StreamRecord]:
        for place in range(0, len(self), _DECODED_AT_ONCE):
            yield from self.part(place, _DECODED_AT_ONCE)

    def part(self, place: int, count: int) -> list[StreamRecord]:
        """Up to ``count`` records from ``place`` on, which is not behind the last one."""
        self._cursor.scroll(place, "absolute")
        return records_of((self._root_id, *row) for row in self._cursor.fetchmany(count))

    def last(self, count: int) -> list[StreamRecord]:
        """Up to ``count``; none of none."""
        return self.part(max(0, len(self) - count), count) if len(self) else []

    @overload
    def __getitem__(self, place: int) -> StreamRecord: ...
    @overload
    def __getitem__(self, place: slice) -> Sequence[StreamRecord]: ...
    def __getitem__(self, place: int | slice) -> StreamRecord | Sequence[StreamRecord]:
        if isinstance(place, slice):
            return [self[one] for one in range(*place.indices(len(self)))]
        (record,) = self.part(range(len(self))[place], 1)
        return record

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]
