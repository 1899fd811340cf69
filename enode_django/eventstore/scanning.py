"""Scans of a Postgres shard in the order of aggregates, for jobs over whole stores.

Each chunk is read by its own query, which continues after the last row of the previous chunk. So neither a long scan
nor a slow reader holds a database snapshot, and a lost connection costs one chunk. Rows below a position that the shard
has reached never change, so all chunks below one horizon show the same state of the store.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import chain, islice
from operator import itemgetter
from typing import Any, NamedTuple, TypeVar

from django.db import connections
from psycopg.abc import Loader
from psycopg.types.numeric import Int8BinaryLoader

from enode_django.concurrency import stopping
from enode_django.concurrency.backoff import delays
from enode_django.databases import in_transaction
from enode_django.eventstore import generations, statements
from enode_django.eventstore.base import StreamRecord
from enode_django.eventstore.known_corrections import statement_of
from enode_django.eventstore.limits import holds
from enode_django.eventstore.positions import Begun, Position, sequences_before
from enode_django.eventstore.rows import by_index, connected, execute_long, records_of
from enode_django.eventstore.sqlstates import is_unprepared
from enode_django.eventstore.statements import Reading
from enode_django.exceptions import StoreUnavailable

Value = TypeVar("Value")
logger = logging.getLogger("enode_django.eventstore")

AT_ONCE = 5_000
CHUNK_BYTES = 4 * 1024 * 1024
"""A chunk ends with the row that reaches it. Chunks of more than `AT_ONCE` rows have more, in proportion."""
RAW_AT_ONCE = 20_000
"""The rows of a chunk for whoever reads millions: each query costs as much as reading some hundred rows."""
TRIES = 15
"""Retries after a failure, with growing pauses: 50 seconds in all."""
RAW_TIMES_BEGIN = datetime(2000, 1, 1, tzinfo=UTC)
"""The moment from which PostgreSQL counts its microseconds."""
_MICROSECOND = timedelta(microseconds=1)
_RAW_TIMES: dict[str, type[Loader]] = {"timestamptz": Int8BinaryLoader}
_CREATED_AT, _EVENTS, _METADATA = map(StreamRecord._fields.index, ("created_at", "events", "metadata"))
_events = itemgetter(_EVENTS)

Row = tuple[Any, ...]
"""The columns of a `StreamRecord`, with ``created_at`` in the session's time zone."""
Condition = tuple[str, tuple[object, ...]]
"""An SQL condition and its parameters."""


class Scan(NamedTuple):
    """A selection of rows of one shard. A row must fulfil all conditions.

    Its aggregate root id is in ``low <= id < high``, in the order of bytes. Its position p is in
    ``after <= p < horizon``, whose sequences are ignored. It has one of the ``types`` and one of the ``ids`` (empty:
    any), and was created at a time t with ``created_from <= t < created_before`` (aware).

    With ``refusals`` only stored refusals are read, otherwise only event streams. Without ``contents``, events and
    metadata are not read and are empty.
    """

    alias: str
    low: str = ""
    high: str | None = None
    horizon: Position | None = None
    after: Position | None = None
    types: Sequence[str] = ()
    created_from: datetime | None = None
    created_before: datetime | None = None
    ids: Sequence[str] = ()
    refusals: bool = False
    contents: bool = True


def scan(wanted: Scan, *, at_once: int = AT_ONCE, raw_times: bool = False) -> Iterator[Sequence[Row]]:
    """Yield rows in non-empty chunks of at most ``at_once`` rows and about `CHUNK_BYTES`: streams by (aggregate root
    id, version), refusals in no particular order.

    With ``raw_times`` the column ``created_at`` holds microseconds since `RAW_TIMES_BEGIN`, which costs a third less.
    Queries the database when iterated, in the thread that iterates. Raises as `persistently` does.
    """
    reader = _Reader(wanted, at_once, raw_times)
    if wanted.refusals:
        return reader.refusals()
    return reader.streams_of_ids() if wanted.ids else reader.streams((wanted.low, 0))


def scan_records(wanted: Scan) -> Iterator[StreamRecord]:
    """Yield records one by one, otherwise as `scan` does."""
    return chain.from_iterable(map(records_of, scan(wanted)))


def scan_raw(wanted: Scan) -> Iterator[Row]:
    """Yield rows with raw times one by one, in chunks of `RAW_AT_ONCE`, otherwise as `scan` does. `raw_time` reads
    their times."""
    return chain.from_iterable(scan(wanted, at_once=RAW_AT_ONCE, raw_times=True))


def raw_time(raw: int) -> datetime:
    """Return the time of a raw time."""
    return RAW_TIMES_BEGIN + _MICROSECOND * raw  # to make a timedelta of the number would cost a half more


class _Reader:
    def __init__(self, wanted: Scan, at_once: int, raw_times: bool) -> None:
        self._wanted = wanted
        self._at_once = at_once
        self._chunk_bytes = max(CHUNK_BYTES, CHUNK_BYTES * at_once // AT_ONCE)
        self._most_bytes = self._chunk_bytes // at_once
        self._loaders = _RAW_TIMES if raw_times else {}
        self._small_streams = statements.SCAN_SMALL_STREAMS if wanted.contents else statements.SCAN_KEYS

    def streams(self, after: tuple[object, object], *conditions: Condition) -> Iterator[list[Row]]:
        """Yield chunks of streams. A query for small rows comes first, and its chunk ends before the first large row;
        large rows are then read by a query that counts bytes, until rows are small again."""
        is_measured = False
        while True:
            statement = statements.SCAN_STREAMS if is_measured else self._small_streams
            found = self._persistently_read(statement, after, conditions, is_measured)
            rows = found if is_measured else _until_large(found)
            if rows:
                yield rows
                after = rows[-1][:2]
            is_cut = _bytes(rows) >= self._chunk_bytes if is_measured else len(rows) < len(found)
            if len(found) < self._at_once and not is_cut:
                return
            is_measured = is_cut or (is_measured and 2 * _bytes(rows) > len(rows) * self._most_bytes)

    def streams_of_ids(self) -> Iterator[list[Row]]:
        """Yield chunks of the usual size, gathered from one index probe for each id."""
        gathered: list[Row] = []
        for id in sorted(filter(self._is_within, set(self._wanted.ids))):
            for chunk in self.streams((id, 0), ("aggregate_root_id = %s", (id,))):
                if gathered and self._are_too_many(gathered, chunk):
                    yield gathered
                    gathered = []
                gathered += chunk
        if gathered:
            yield gathered

    def _are_too_many(self, some: list[Row], more: list[Row]) -> bool:
        return len(some) + len(more) > self._at_once or _bytes(some) >= self._chunk_bytes

    def refusals(self) -> Iterator[list[Row]]:
        conditions: list[Condition] = [("aggregate_root_id >= %s", (self._wanted.low,))]
        if self._wanted.ids:
            conditions.append(("aggregate_root_id = ANY(%s)", (list(filter(holds, self._wanted.ids)),)))
        begin = self._wanted.created_from or datetime.min.replace(tzinfo=UTC)
        after: tuple[object, object] = (begin, 0)
        contents = self._wanted.contents
        statement = statements.SCAN_REFUSALS if contents else statements.SCAN_REFUSAL_KEYS
        while rows := self._persistently_read(statement, after, conditions, is_measured=contents):
            yield [row[:-1] for row in rows]
            after = self._place_of_refusal(rows[-1])

    def _place_of_refusal(self, row: Row) -> tuple[object, object]:
        made = row[_CREATED_AT]
        return (raw_time(made) if self._loaders else made), row[-1]

    def _is_within(self, id: str) -> bool:
        return holds(id) and id >= self._wanted.low and (self._wanted.high is None or id < self._wanted.high)

    def _persistently_read(
        self, reading: Reading, after: tuple[object, object], conditions: Sequence[Condition], is_measured: bool
    ) -> list[Row]:
        return persistently(self._wanted.alias, partial(self._read, reading, after, conditions, is_measured))

    def _read(
        self, reading: Reading, after: tuple[object, object], conditions: Sequence[Condition], is_measured: bool
    ) -> list[Row]:
        with connected(self._wanted.alias) as connection:
            state = generations.state(connection)
            if self._wanted.horizon is not None:
                check_settled(self._wanted.alias, state.position, self._wanted.horizon)
            texts, values = zip(*conditions, *_conditions(self._wanted, state.generations), strict=True)
            limits = (self._at_once, self._chunk_bytes) if is_measured else (self._at_once,)
            parameters = (*after, *chain.from_iterable(values), *limits)
            query = statement_of(connection, reading).replace("{conditions}", " AND ".join(texts))
            with by_index(connection, in_order=True):
                return execute_long(
                    connection, query.replace("{most_bytes}", str(self._most_bytes)), parameters, self._loaders
                )


def _until_large(rows: list[Row]) -> list[Row]:
    contents = list(map(_events, rows))
    return rows[: contents.index(None)] if None in contents else rows


def persistently(alias: str, read: Callable[[], Value]) -> Value:
    """Call ``read``, up to `TRIES` more times while the database is unavailable, with growing pauses. Blocks.

    Raises `StoreUnavailable` after that. Raises it at once inside an atomic block, which a lost connection has ended,
    and if a table, a column or a privilege is missing: somebody has to do something first. Raises what `stopping`
    raises to end the surrounding work.
    """
    for delay in islice(delays(0.1, 5.0), TRIES):
        stopping.check()
        try:
            return read()
        except StoreUnavailable as error:
            if in_transaction(connections[alias]) or is_unprepared(error):
                raise
            logger.warning("%s; reading on in %.1f s", error, delay)
            stopping.pause(delay)
    return read()


def check_settled(alias: str, reached: Position, horizon: Position) -> None:
    """Raise `StoreUnavailable` unless all rows below ``horizon`` are settled: each query may go to another replica."""
    if reached < horizon.transaction:
        raise StoreUnavailable(
            f"the event store in database {alias!r} has come to {reached} and is to be read up to {horizon}: a replica "
            "that lags, or another database"
        )


def _conditions(wanted: Scan, known: list[Begun]) -> Iterator[Condition]:
    yield "true", ()
    if wanted.high is not None:
        yield "aggregate_root_id < %s", (wanted.high,)
    if wanted.horizon is not None:
        yield statements.BELOW, _below(known, wanted.horizon)
    if wanted.after is not None:
        yield f"NOT {statements.BELOW}", _below(known, wanted.after)
    if wanted.types:
        yield "aggregate_root_type = ANY(%s)", (list(filter(holds, wanted.types)),)
    if wanted.created_from is not None:
        yield "created_at >= %s", (wanted.created_from,)
    if wanted.created_before is not None:
        yield "created_at < %s", (wanted.created_before,)


def _below(known: list[Begun], position: Position) -> tuple[int, int, int]:
    return (*sequences_before(known, position), position.transaction_id)


def _bytes(rows: Sequence[Row]) -> int:
    """Return the size of the rows as the statements count it."""
    return sum(len(row[_EVENTS]) + len(row[_METADATA]) for row in rows)
