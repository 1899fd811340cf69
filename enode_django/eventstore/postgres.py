"""The event store in PostgreSQL. It writes by binary COPY, and by `postgres_slow` when the database refuses that."""

from __future__ import annotations

import threading
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from functools import partial
from itertools import groupby
from operator import itemgetter
from typing import Any

from django.db.backends.base.base import BaseDatabaseWrapper

from enode_django.databases import end_sessions, in_transaction
from enode_django.eventstore import correcting, generations, statements
from enode_django.eventstore.base import (
    Appended,
    CommandKey,
    Corrected,
    Correction,
    FeedPage,
    Outcome,
    Part,
    StreamRecord,
)
from enode_django.eventstore.buckets import BUCKETS, ShardOwnership, bucket_of
from enode_django.eventstore.feed import Feed
from enode_django.eventstore.fetched import FetchedRecords, FetchedStreams
from enode_django.eventstore.known_corrections import statement_of
from enode_django.eventstore.limits import holds
from enode_django.eventstore.lost_streams import LostStreams
from enode_django.eventstore.positions import FIRST, Position, check_limit, sequences_before
from enode_django.eventstore.postgres_copy import copied
from enode_django.eventstore.postgres_slow import SlowAppend
from enode_django.eventstore.postgres_unique_values import PostgresUniqueValues
from enode_django.eventstore.rows import check_vendor, connected, execute, find, records_of, run
from enode_django.eventstore.shard_map import ServerChanged, ShardMap
from enode_django.eventstore.statements import Reading
from enode_django.exceptions import ShardMapOutdated

__all__ = ["PostgresEventStore"]

_STORED = Appended(Outcome.STORED)
_CONFLICT, _DEPENDENT = Appended(Outcome.CONFLICT), Appended(Outcome.DEPENDENT)
_aggregate_root_id = itemgetter(StreamRecord._fields.index("aggregate_root_id"))

_FIRST_CHUNK, _LARGEST_CHUNK = 100, 5_000
_CHUNK_BYTES = 4 * 1024 * 1024
_MEASURED = 100
_NO_LIMIT = 2**63 - 1
_LOOK_AGAIN = 60.0


class PostgresEventStore:
    """The event store, or one shard of it, in one database of ``DATABASES``, over the calling thread's connection.

    Inside an atomic block a call uses a savepoint, and its rows are durable when the block commits; outside, when the
    call returns. A broken connection is closed and the next call opens a new one, except inside an atomic block, where
    it is left to the block's owner.

    For example::

        store = PostgresEventStore("default")
        with inline(store):
            execute_command(OpenAccount("ada", owner="Ada"))
        assert store.heads(["ada"]) == {"ada": 1}
    """

    def __init__(self, alias: str = "default", shard_map: ShardMap | None = None) -> None:
        """Raise `ConfigurationError` if the database is not PostgreSQL."""
        check_vendor(alias)
        self.alias = alias
        self._map = ShardMap([alias]) if shard_map is None else shard_map
        self._feed = Feed()
        self._session = threading.local()
        self._lost = LostStreams()
        self.unique_values = PostgresUniqueValues(alias)

    @property
    def name(self) -> str:
        return self.alias

    @property
    def number(self) -> int:
        return self._map.claim_of(self.alias).number

    @property
    def shards(self) -> Sequence[PostgresEventStore]:
        return (self,)

    def place_of(self, aggregate_root_id: str) -> int:
        return 0

    def generation_of(self, aggregate_root_id: str) -> int:
        return getattr(self._session, "generation", FIRST.generation)

    def append(self, records: Sequence[StreamRecord], *, doubtful: bool = False) -> Sequence[Appended]:
        """Append as `EventStore.append` does. Raises `ShardMapOutdated` if the shard's buckets changed during the call,
        or do not cover all records."""
        if not records:
            return []
        claim = self._map.claim_of(self.alias)
        _check_owned(records, claim)
        try:
            return self._append(records, claim, doubtful)
        except ShardMapOutdated:
            self._map.forget(self.alias)
            again = self._map.claim_of(self.alias)
            if again.buckets != claim.buckets:
                raise
            return self._append(records, again, doubtful)

    def _append(self, records: Sequence[StreamRecord], claim: ShardOwnership, doubtful: bool) -> Sequence[Appended]:
        with connected(self.alias) as connection:
            try:
                return self._append_here(connection, records, claim, doubtful)
            except ServerChanged:  # some records may be stored already
                self._session.known = None
                return self._append_here(connection, records, claim, doubtful=True)

    def _append_here(
        self, connection: BaseDatabaseWrapper, records: Sequence[StreamRecord], claim: ShardOwnership, doubtful: bool
    ) -> Sequence[Appended]:
        self._look_where_we_are(connection)
        behind = self._lost.behind(connection, records, self._session.generation)
        stored = partial(_stored, connection, claim=claim, server=self._session.server, doubtful=doubtful)
        if not behind:
            return stored(records)
        following = [record for record in records if record.aggregate_root_id not in behind]
        return _with_conflicts(records, stored(following) if following else (), behind)

    def load(self, aggregate_root_id: str, *, after: int = 0, until: int | None = None) -> FetchedStreams:
        """Return the streams, read in chunks by one query each, so that neither a long history nor a slow reader costs
        memory or locks. Queries the database when iterated, in the thread that iterates."""
        return FetchedStreams(self._chunks(aggregate_root_id, after, _NO_LIMIT if until is None else until))

    def _chunks(self, aggregate_root_id: str, after: int, until: int) -> Iterator[FetchedRecords]:
        limit = _FIRST_CHUNK
        while holds(aggregate_root_id):
            chunk = self._fetch(aggregate_root_id, after, until, limit)
            yield chunk
            if len(chunk) < limit:
                return
            newest = chunk.last(_MEASURED)
            after = newest[-1].version or 0
            limit = _next_limit(newest)

    def _fetch(self, aggregate_root_id: str, after: int, until: int, limit: int) -> FetchedRecords:
        with connected(self.alias) as connection:
            self._lost.note_reading(connection)
            return FetchedRecords(connection, aggregate_root_id, after, until, limit)

    def load_many(self, aggregate_root_ids: Iterable[str]) -> Mapping[str, Sequence[StreamRecord]]:
        root_ids = {*filter(holds, aggregate_root_ids)}
        if len(root_ids) == 1:  # its history may be long: this query reads it in index order and sorts nothing
            (root_id,) = root_ids
            streams = self._fetch(root_id, 0, _NO_LIMIT, _NO_LIMIT)
            return {root_id: streams} if streams else {}
        return _by_aggregate(self._read(statements.LOAD_MANY, (list(root_ids),)))

    def load_ranges(
        self, ranges: Mapping[str, tuple[int, int]], *, limit: int = 1_000
    ) -> Mapping[str, Sequence[StreamRecord]]:
        wanted = [(root_id, after, until) for root_id, (after, until) in ranges.items() if holds(root_id)]
        if not wanted:
            return {}
        root_ids, afters, untils = map(list, zip(*wanted, strict=True))
        return _by_aggregate(self._read(statements.LOAD_RANGES, (root_ids, afters, untils, limit)))

    def find(self, keys: Iterable[CommandKey]) -> Mapping[CommandKey, StreamRecord]:
        with connected(self.alias) as connection:
            return find(connection, keys, statement_of(connection, statements.FIND))

    def heads(self, aggregate_root_ids: Iterable[str]) -> Mapping[str, int]:
        with connected(self.alias) as connection:
            return dict(execute(connection, statements.HEADS, (list(filter(holds, aggregate_root_ids)),)))

    def heads_before(self, aggregate_root_ids: Iterable[str], position: Position) -> Mapping[str, int]:
        root_ids = list(filter(holds, aggregate_root_ids))
        with connected(self.alias) as connection:
            below, until = sequences_before(generations.state(connection).generations, position)
            parameters = (root_ids, below, until, position.transaction_id)
            return dict(execute(connection, statements.HEADS_BEFORE, parameters))

    def stored_before(self, keys: Iterable[CommandKey], position: Position) -> Collection[CommandKey]:
        known = [key for key in keys if all(map(holds, key))]
        commands, root_ids = [command for command, _ in known], [root_id for _, root_id in known]
        with connected(self.alias) as connection:
            below, until = sequences_before(generations.state(connection).generations, position)
            parameters = (commands, root_ids, below, until, position.transaction_id)
            return execute(connection, statements.STORED_BEFORE, parameters)

    def position(self) -> Position:
        """Return the position of the oldest transaction that is open on the server. A row's position has the id of its
        transaction."""
        with connected(self.alias) as connection:
            return generations.state(connection).position

    def feed(self, after: Position, *, limit: int) -> FeedPage:
        check_limit(limit)
        with connected(self.alias) as connection:
            return self._feed.page(connection, generations.state(connection), after, limit)

    def settled(self, after: Position, before: Position, *, limit: int) -> Part:
        with connected(self.alias) as connection:
            return self._feed.settled(connection, generations.state(connection), after, before, limit)

    def begin_generation(self, last: int) -> None:
        with connected(self.alias) as connection:
            generations.begin_generation(connection, last)

    def correct(
        self, aggregate_root_id: str, version: int, events: bytes | None, *, by: str, reason: str, last: int
    ) -> Correction:
        with connected(self.alias) as connection:
            return correcting.correct(connection, aggregate_root_id, version, events, by, reason, last)

    def corrections(self, aggregate_root_id: str) -> Sequence[Correction]:
        with connected(self.alias) as connection:
            return correcting.corrections(connection, aggregate_root_id)

    def original(self, aggregate_root_id: str, version: int) -> StreamRecord | None:
        with connected(self.alias) as connection:
            return correcting.original(connection, aggregate_root_id, version)

    def corrected_since(self, number: int) -> Sequence[Corrected]:
        with connected(self.alias) as connection:
            return correcting.corrected_since(connection, number)

    def end_sessions(self, owner: str) -> int:
        """End sessions as `EventStore.end_sessions` does. ``owner`` is their ``application_name``. Blocks up to 5
        seconds for each session to end."""
        with connected(self.alias):
            return end_sessions(self.alias, owner)

    def prune_refusals(self, before: datetime, *, limit: int = 10_000) -> int:
        with connected(self.alias) as connection:
            return run(connection, statements.PRUNE_REFUSALS, (before, limit))

    def _look_where_we_are(self, connection: BaseDatabaseWrapper) -> None:
        """Read the generation before a session's first write: rows stored in a restored database must be of a new one.

        A restore ends all sessions, unless a pooler keeps them: then `owning` finds another server. A generation that
        was begun by hand is found after `_LOOK_AGAIN` seconds. Inside a caller's transaction the check is not
        remembered, because its effect may be rolled back.
        """
        session, now = self._session, time.monotonic()
        if getattr(session, "known", None) is not connection.connection or now >= session.look_again:
            state = generations.state(connection)
            session.generation, session.server = state.position.generation, state.server
            session.look_again = now + _LOOK_AGAIN
            if not in_transaction(connection):
                session.known = connection.connection

    def _read(self, reading: Reading, parameters: Sequence[object]) -> list[tuple[Any, ...]]:
        with connected(self.alias) as connection:
            self._lost.note_reading(connection)
            return execute(connection, statement_of(connection, reading), parameters)


def _stored(
    connection: BaseDatabaseWrapper,
    records: Sequence[StreamRecord],
    claim: ShardOwnership,
    server: str,
    doubtful: bool,
) -> Sequence[Appended]:
    if not doubtful and copied(connection, records, claim, server):
        return [_STORED] * len(records)
    return SlowAppend(connection, records, claim, server).run()


def _with_conflicts(records: Sequence[StreamRecord], appended: Iterable[Appended], behind: set[str]) -> list[Appended]:
    """Return the results of all records: ``appended`` has those of the aggregates that are not ``behind``."""
    others, begun = iter(appended), set[str]()
    results = []
    for id in map(_aggregate_root_id, records):
        results.append(next(others) if id not in behind else _DEPENDENT if id in begun else _CONFLICT)
        begun.add(id)
    return results


def _check_owned(records: Sequence[StreamRecord], claim: ShardOwnership) -> None:
    """Raise `ShardMapOutdated` if a record's bucket is not in ``claim``: another thread may have reread the map since
    the records were assigned to this shard."""
    if len(claim.buckets) == BUCKETS:
        return
    for record in records:
        if bucket_of(record.aggregate_root_id) not in claim.buckets:
            raise ShardMapOutdated(f"shard {claim.number} does not own the bucket of {record.aggregate_root_id!r}")


def _next_limit(chunk: Sequence[StreamRecord]) -> int:
    """Return the number of streams for the next query: a query costs as much as a few hundred small rows, and large
    rows cost memory."""
    average = sum(len(record.events) for record in chunk) // len(chunk)
    return max(1, min(_LARGEST_CHUNK, _CHUNK_BYTES // (average + 1)))


def _by_aggregate(rows: Iterable[tuple[Any, ...]]) -> dict[str, list[StreamRecord]]:
    """Group rows that are sorted by aggregate."""
    return {root_id: list(streams) for root_id, streams in groupby(records_of(rows), _aggregate_root_id)}
