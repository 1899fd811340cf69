"""An event store in memory, for tests and for applications without durability. It fulfils the port's whole contract."""

from __future__ import annotations

import threading
import time
from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from itertools import islice

from enode_django.eventstore.base import (
    Appended,
    CommandKey,
    Corrected,
    Correction,
    FeedEntry,
    FeedPage,
    Outcome,
    Part,
    Settled,
    StreamRecord,
)
from enode_django.eventstore.correcting import check_exists, check_newest
from enode_django.eventstore.limits import unstorable
from enode_django.eventstore.positions import Position, check_limit
from enode_django.eventstore.unique_values import MemoryUniqueValues

__all__ = ["MemoryEventStore"]

_STORED = Appended(Outcome.STORED)
_DEPENDENT = Appended(Outcome.DEPENDENT)


class MemoryEventStore:
    """An event store in memory. Methods are thread-safe and atomic; `load_many` and `load_ranges` per aggregate.

    For example::

        store = MemoryEventStore()
        with inline(store):
            execute_command(OpenAccount("ada", owner="Ada"))
        assert store.heads(["ada"]) == {"ada": 1}
    """

    def __init__(self) -> None:
        self.unique_values = MemoryUniqueValues()
        self._lock = threading.Lock()
        self._commands: dict[CommandKey, StreamRecord] = {}
        self._streams: dict[str, dict[int, StreamRecord]] = {}
        self._corrections: list[Correction] = []
        self._corrected: dict[CommandKey, StreamRecord] = {}
        self._positions: dict[CommandKey, Position] = {}
        self._journal: list[Position] = []
        self._keys: list[CommandKey | None] = []  # of the rows in the journal; None for a pruned refusal
        # Each store begins a generation, because positions of an earlier process's store may be stored elsewhere.
        self._position = Position(int(time.time()), 1)
        self._generation = self._position.generation  # the first one; an append may belong to a later one

    @property
    def name(self) -> str:
        return "memory"

    @property
    def number(self) -> int:
        return 0

    @property
    def shards(self) -> Sequence[MemoryEventStore]:
        return (self,)

    def place_of(self, aggregate_root_id: str) -> int:
        return 0

    def generation_of(self, aggregate_root_id: str) -> int:
        return self._generation

    def append(self, records: Sequence[StreamRecord], *, doubtful: bool = False) -> Sequence[Appended]:
        refused: set[str] = set()
        results = []
        with self._lock:
            for record in records:
                appended = _DEPENDENT if record.aggregate_root_id in refused else self._append(record)
                if appended is not _STORED:
                    refused.add(record.aggregate_root_id)
                results.append(appended)
            self._position = self._position._replace(transaction_id=self._position.transaction_id + 1)
        return results

    def _append(self, record: StreamRecord) -> Appended:
        if error := unstorable(record):
            return Appended(Outcome.INVALID, error=error)
        stored = self._commands.get(record.command_key)
        if stored is not None:
            return _STORED if stored == record else Appended(Outcome.REPEATED, stored)
        if record.version is not None:
            streams = self._streams.setdefault(record.aggregate_root_id, {})
            if record.version in streams:
                return Appended(Outcome.CONFLICT)
            streams[record.version] = record
        self._commands[record.command_key] = record
        self._journal.append(self._position._replace(sequence=len(self._journal) + 1))
        self._positions[record.command_key] = self._journal[-1]
        self._keys.append(record.command_key)
        return _STORED

    def load(self, aggregate_root_id: str, *, after: int = 0, until: int | None = None) -> Iterator[StreamRecord]:
        for record in self._load(aggregate_root_id):
            version = record.version or 0
            if version > after and (until is None or version <= until):
                yield record

    def _load(self, aggregate_root_id: str) -> Sequence[StreamRecord]:
        with self._lock:
            streams = self._streams.get(aggregate_root_id, {})
            return [self._as_read(streams[version]) for version in sorted(streams)]

    def load_many(self, aggregate_root_ids: Iterable[str]) -> Mapping[str, Sequence[StreamRecord]]:
        loaded = {root_id: self._load(root_id) for root_id in aggregate_root_ids}
        return {root_id: records for root_id, records in loaded.items() if records}

    def load_ranges(
        self, ranges: Mapping[str, tuple[int, int]], *, limit: int = 1_000
    ) -> Mapping[str, Sequence[StreamRecord]]:
        loaded = {
            root_id: list(islice(self.load(root_id, after=after, until=until), limit))
            for root_id, (after, until) in ranges.items()
        }
        return {root_id: records for root_id, records in loaded.items() if records}

    def find(self, keys: Iterable[CommandKey]) -> Mapping[CommandKey, StreamRecord]:
        with self._lock:
            return {key: self._as_read(self._commands[key]) for key in keys if key in self._commands}

    def _as_read(self, record: StreamRecord) -> StreamRecord:
        return self._corrected.get(record.command_key, record) if self._corrected else record

    def heads(self, aggregate_root_ids: Iterable[str]) -> Mapping[str, int]:
        with self._lock:
            return {
                root_id: max(self._streams[root_id]) for root_id in aggregate_root_ids if self._streams.get(root_id)
            }

    def heads_before(self, aggregate_root_ids: Iterable[str], position: Position) -> Mapping[str, int]:
        heads: dict[str, int] = {}
        with self._lock:
            for root_id in aggregate_root_ids:
                for version, record in self._streams.get(root_id, {}).items():
                    if self._positions[record.command_key] < position.transaction:
                        heads[root_id] = max(version, heads.get(root_id, version))
        return heads

    def stored_before(self, keys: Iterable[CommandKey], position: Position) -> Collection[CommandKey]:
        with self._lock:
            known = {key: self._positions.get(key) for key in keys}
        return [key for key, at in known.items() if at is not None and at < position.transaction]

    def position(self) -> Position:
        with self._lock:
            return self._position

    def feed(self, after: Position, *, limit: int) -> FeedPage:
        check_limit(limit)
        with self._lock:
            begin = bisect_right(self._journal, after)
            entries = list(islice(self._entries(begin, len(self._journal)), limit))
            position = entries[-1].position if len(entries) == limit else max(after, self._position)
        return FeedPage(entries, position)

    def settled(self, after: Position, before: Position, *, limit: int) -> Part:
        with self._lock:
            begin, end = (bisect_left(self._journal, position.transaction) for position in (after, before))
            if end - begin > limit:
                before = self._journal[begin + limit].transaction
                if before == self._journal[begin].transaction:
                    before = before._replace(transaction_id=before.transaction_id + 1)
                end = bisect_left(self._journal, before)
            return Part(before, Settled.of(record for _, record in self._entries(begin, end)))

    def _entries(self, begin: int, end: int) -> Iterator[FeedEntry]:
        for place in range(begin, end):
            key = self._keys[place]
            if key is not None:
                yield FeedEntry(self._journal[place], self._as_read(self._commands[key]))

    def begin_generation(self, last: int) -> None:
        with self._lock:
            if self._position.generation == last:
                self._position = Position(max(last + 1, int(time.time())), 1)

    def correct(
        self, aggregate_root_id: str, version: int, events: bytes | None, *, by: str, reason: str, last: int
    ) -> Correction:
        with self._lock:
            made = [one.number for one in self._corrections if one[1:3] == (aggregate_root_id, version)]
            check_newest(aggregate_root_id, version, made[-1] if made else 0, last)
            record = self._streams.get(aggregate_root_id, {}).get(version)
            check_exists(record is not None, aggregate_root_id, version)
            assert record is not None
            number, now = len(self._corrections) + 1, datetime.now(UTC)
            self._corrections.append(Correction(number, aggregate_root_id, version, events, by, reason, now))
            self._corrected[record.command_key] = record if events is None else record._replace(events=events)
            return self._corrections[-1]

    def corrections(self, aggregate_root_id: str) -> Sequence[Correction]:
        with self._lock:
            return [one for one in self._corrections if one.aggregate_root_id == aggregate_root_id]

    def original(self, aggregate_root_id: str, version: int) -> StreamRecord | None:
        with self._lock:
            return self._streams.get(aggregate_root_id, {}).get(version)

    def corrected_since(self, number: int) -> Sequence[Corrected]:
        with self._lock:
            return [Corrected(*one[:3]) for one in self._corrections[number:]]

    def end_sessions(self, owner: str) -> int:
        """Return 0: there are no sessions."""
        return 0

    def prune_refusals(self, before: datetime, *, limit: int = 10_000) -> int:
        with self._lock:
            refusals = [row for row in self._commands.values() if row.version is None and row.created_at < before]
            refusals.sort(key=lambda refusal: refusal.created_at)
            for refusal in refusals[:limit]:
                del self._commands[refusal.command_key]
                self._keys[self._positions.pop(refusal.command_key).sequence - 1] = None
            return len(refusals[:limit])
