"""One event store over several databases. An aggregate's bucket decides which database has it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import TypeVar

from enode_django.eventstore.base import Appended, CommandKey, Correction, Shard, StreamRecord
from enode_django.eventstore.positions import FIRST
from enode_django.eventstore.shard_map import ShardMap
from enode_django.exceptions import StoreUnavailable

Item = TypeVar("Item")
Key = TypeVar("Key")
Value = TypeVar("Value")


class ShardedEventStore:
    """An event store of several shards, given in the order of ``shard_map``'s databases.

    A call for one aggregate asks its shard; a call for several asks each of their shards, one after the other.
    """

    def __init__(self, shards: Sequence[Shard], shard_map: ShardMap) -> None:
        self._shards = shards
        self._map = shard_map

    @property
    def shards(self) -> Sequence[Shard]:
        return self._shards

    def place_of(self, aggregate_root_id: str) -> int:
        return self._map.place_of(aggregate_root_id)

    def generation_of(self, aggregate_root_id: str) -> int:
        try:
            place = self.place_of(aggregate_root_id)
        except StoreUnavailable:  # the map must be read again, but the databases are away
            return FIRST.generation
        return self._shards[place].generation_of(aggregate_root_id)

    def append(self, records: Sequence[StreamRecord], *, doubtful: bool = False) -> Sequence[Appended]:
        """Append as `EventStore.append` does. If a shard is unavailable, rows may be stored in others already; a
        repeated call finds them."""
        places = self._by_place(range(len(records)), lambda number: records[number].aggregate_root_id)
        if len(places) == 1:
            ((place, _),) = places.items()
            return self._shards[place].append(records, doubtful=doubtful)
        appended: dict[int, Appended] = {}
        for place, numbers in places.items():
            results = self._shards[place].append([records[number] for number in numbers], doubtful=doubtful)
            appended.update(zip(numbers, results, strict=True))
        return [appended[number] for number in range(len(records))]

    def load(self, aggregate_root_id: str, *, after: int = 0, until: int | None = None) -> Iterator[StreamRecord]:
        return self._shards[self.place_of(aggregate_root_id)].load(aggregate_root_id, after=after, until=until)

    def load_many(self, aggregate_root_ids: Iterable[str]) -> Mapping[str, Sequence[StreamRecord]]:
        return self._merged(aggregate_root_ids, _itself, lambda shard, ids: shard.load_many(ids))

    def load_ranges(
        self, ranges: Mapping[str, tuple[int, int]], *, limit: int = 1_000
    ) -> Mapping[str, Sequence[StreamRecord]]:
        return self._merged(
            ranges, _itself, lambda shard, ids: shard.load_ranges({id: ranges[id] for id in ids}, limit=limit)
        )

    def find(self, keys: Iterable[CommandKey]) -> Mapping[CommandKey, StreamRecord]:
        return self._merged(keys, lambda key: key[1], lambda shard, keys: shard.find(keys))

    def heads(self, aggregate_root_ids: Iterable[str]) -> Mapping[str, int]:
        return self._merged(aggregate_root_ids, _itself, lambda shard, ids: shard.heads(ids))

    def correct(
        self, aggregate_root_id: str, version: int, events: bytes | None, *, by: str, reason: str, last: int
    ) -> Correction:
        shard = self._shards[self.place_of(aggregate_root_id)]
        return shard.correct(aggregate_root_id, version, events, by=by, reason=reason, last=last)

    def corrections(self, aggregate_root_id: str) -> Sequence[Correction]:
        return self._shards[self.place_of(aggregate_root_id)].corrections(aggregate_root_id)

    def original(self, aggregate_root_id: str, version: int) -> StreamRecord | None:
        return self._shards[self.place_of(aggregate_root_id)].original(aggregate_root_id, version)

    def end_sessions(self, owner: str) -> int:
        return sum(shard.end_sessions(owner) for shard in self._shards)

    def prune_refusals(self, before: datetime, *, limit: int = 10_000) -> int:
        return sum(shard.prune_refusals(before, limit=limit) for shard in self._shards)

    def _merged(
        self,
        items: Iterable[Item],
        id_of: Callable[[Item], str],
        ask: Callable[[Shard, Collection[Item]], Mapping[Key, Value]],
    ) -> Mapping[Key, Value]:
        merged: dict[Key, Value] = {}
        for place, some in self._by_place(items, id_of).items():
            merged.update(ask(self._shards[place], some))
        return merged

    def _by_place(self, items: Iterable[Item], id_of: Callable[[Item], str]) -> dict[int, list[Item]]:
        place_of = self._map.place_of
        places: dict[int, list[Item]] = {}
        for item in items:
            places.setdefault(place_of(id_of(item)), []).append(item)
        return places


def _itself(id: str) -> str:
    return id
