"""Snapshots of a sharded event store: each lies in the database of the streams that it was made from."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping, Sequence

from enode_django.repository.store import Snapshot, SnapshotStore, SnapshotVersion


class ShardedSnapshotStore:
    """The snapshots of several shards. ``place_of`` returns the index of an aggregate's shard."""

    def __init__(self, shards: Sequence[SnapshotStore], place_of: Callable[[str], int]) -> None:
        self._shards = shards
        self._place_of = place_of

    def load(self, aggregate_root_ids: Iterable[str]) -> Mapping[str, Snapshot]:
        parts = self._ids_by_shard(aggregate_root_ids)
        return {id: found for shard, ids in parts for id, found in shard.load(ids).items()}

    def versions(self, aggregate_root_ids: Iterable[str]) -> Mapping[str, SnapshotVersion]:
        parts = self._ids_by_shard(aggregate_root_ids)
        return {id: found for shard, ids in parts for id, found in shard.versions(ids).items()}

    def save(self, snapshots: Sequence[Snapshot]) -> int:
        known = {snapshot.aggregate_root_id: snapshot for snapshot in snapshots}
        return sum(shard.save([known[id] for id in ids]) for shard, ids in self._ids_by_shard(known))

    def discard(self, snapshot: Snapshot) -> bool:
        return self._shards[self._place_of(snapshot.aggregate_root_id)].discard(snapshot)

    def discard_from(self, aggregate_root_id: str, version: int) -> bool:
        return self._shards[self._place_of(aggregate_root_id)].discard_from(aggregate_root_id, version)

    def sample(self, count: int, aggregate_root_types: Sequence[str] = ()) -> Sequence[Snapshot]:
        """Return a sample as the port says. Shards with few snapshots are overrepresented."""
        samples = [one for shard in self._shards for one in shard.sample(count, aggregate_root_types)]
        return random.sample(samples, min(count, len(samples)))

    def _ids_by_shard(self, aggregate_root_ids: Iterable[str]) -> Iterable[tuple[SnapshotStore, list[str]]]:
        places: dict[int, list[str]] = {}
        for id in aggregate_root_ids:
            places.setdefault(self._place_of(id), []).append(id)
        return [(self._shards[place], ids) for place, ids in places.items()]
