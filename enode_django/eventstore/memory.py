"""The event store in memory: for tests, and for whoever needs no durability. It keeps the whole contract."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from itertools import islice

from enode_django.eventstore.base import Appended, CommandKey, Outcome, Settled, StreamRecord
from enode_django.eventstore.limits import unstorable

_STORED = Appended(Outcome.STORED)
_DEPENDENT = Appended(Outcome.DEPENDENT)


class MemoryEventStore:
    """All methods may be called from any thread; each is atomic."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._commands: dict[CommandKey, StreamRecord] = {}
        self._streams: dict[str, dict[int, StreamRecord]] = {}
        self._positions: dict[CommandKey, int] = {}
        self._journal: list[StreamRecord | None] = []  # each row at its position; None where a refusal was pruned

    def append(self, records: Sequence[StreamRecord], *, doubtful: bool = False) -> Sequence[Appended]:
        refused: set[str] = set()
        results = []
        with self._lock:
            for record in records:
                appended = _DEPENDENT if record.aggregate_root_id in refused else self._append(record)
                if appended is not _STORED:
                    refused.add(record.aggregate_root_id)
                results.append(appended)
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
        self._positions[record.command_key] = len(self._journal)
        self._journal.append(record)
        return _STORED

    def load(self, aggregate_root_id: str, *, after: int = 0, until: int | None = None) -> Iterator[StreamRecord]:
        for record in self._load(aggregate_root_id):
            version = record.version or 0
            if version > after and (until is None or version <= until):
                yield record

    def _load(self, aggregate_root_id: str) -> Sequence[StreamRecord]:
        with self._lock:
            streams = self._streams.get(aggregate_root_id, {})
            return [streams[version] for version in sorted(streams)]

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
            return {key: self._commands[key] for key in keys if key in self._commands}

    def heads(self, aggregate_root_ids: Iterable[str]) -> Mapping[str, int]:
        with self._lock:
            return {
                root_id: max(self._streams[root_id]) for root_id in aggregate_root_ids if self._streams.get(root_id)
            }

    def heads_before(self, aggregate_root_ids: Iterable[str], position: int) -> Mapping[str, int]:
        heads: dict[str, int] = {}
        with self._lock:
            for root_id in aggregate_root_ids:
                for version, record in self._streams.get(root_id, {}).items():
                    if self._positions[record.command_key] < position:
                        heads[root_id] = max(version, heads.get(root_id, version))
        return heads

    def position(self) -> int:
        with self._lock:
            return len(self._journal)

    def settled(self, after: int, before: int, *, limit: int) -> Settled | None:
        with self._lock:
            rows = [row for row in self._journal[max(after, 0) : max(before, 0)] if row is not None]
        return Settled.of(rows) if len(rows) <= limit else None

    def end_sessions(self, owner: str) -> int:
        """There are no sessions: what a call has not written when it returns is never written."""
        return 0

    def prune_refusals(self, before: datetime, *, limit: int = 10_000) -> int:
        with self._lock:
            refusals = [row for row in self._commands.values() if row.version is None and row.created_at < before]
            refusals.sort(key=lambda refusal: refusal.created_at)
            for refusal in refusals[:limit]:
                del self._commands[refusal.command_key]
                self._journal[self._positions.pop(refusal.command_key)] = None
            return len(refusals[:limit])
