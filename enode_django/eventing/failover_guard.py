"""Decide whether events may be handled: not if a failover may have erased them, or earlier events that were handled."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from enode_django.eventing import failovers
from enode_django.eventing.failovers import Known
from enode_django.eventing.pending import STORED, PendingAggregate
from enode_django.eventstore.base import Corrected, EventStore, Shard


class StoreMovedOn(Exception):
    """Ends a batch before anything of it is handled. Before the batch is begun again, a newer ``generation`` of the
    shard must be noted, or the aggregates ``ids`` compared with it; or neither."""

    def __init__(self, shard: Shard | None = None, generation: int | None = None, ids: Sequence[str] = ()) -> None:
        super().__init__(f"a generation of the event store has begun: {generation}")
        self.shard = shard
        self.generation = generation
        self.ids = ids


class Heeded:
    """The generations and corrections of a ``store`` that the processor of a ``subscriber`` (its key) knows. All
    methods are called by the processor's thread."""

    def __init__(self, alias: str, subscriber: str, store: EventStore) -> None:
        self._alias = alias
        self._subscriber = subscriber
        self._store = store
        self._known: Mapping[int, Known] = {}
        self._corrected: dict[str, set[int]] = {}

    def note_corrected(self, streams: Iterable[Corrected]) -> None:
        """Note that these streams are read from the store from now on: messages have their originals."""
        for one in streams:
            self._corrected.setdefault(one.aggregate_root_id, set()).add(one.version)

    def heed(self, known: Mapping[int, Known], works: Iterable[PendingAggregate]) -> None:
        """Forget streams at hand that were corrected, or written before the newest known generation: they are read from
        the store instead. Raises `StoreMovedOn`.

        ``known`` was read (`failovers.known`) when the aggregates were locked: noting a generation, and comparing the
        aggregates with it, then happens either before that or after the batch.
        """
        self._known = known
        places: dict[int, list[PendingAggregate]] = {}
        for work in works:
            places.setdefault(self._store.place_of(work.aggregate_root_id), []).append(work)
            for version in self._corrected.get(work.aggregate_root_id, ()):
                work.streams.pop(version, None)
        for place, some in places.items():
            shard = self._store.shards[place]
            of_shard = known.get(shard.number)
            if of_shard is not None:
                self._heed(shard, of_shard, some)

    def _heed(self, shard: Shard, known: Known, works: Sequence[PendingAggregate]) -> None:
        newest = max((one.generation for one in works if one.streams and one.generation != STORED), default=0)
        if newest > known.generation:
            raise StoreMovedOn(shard, newest)
        if not known.is_healed:
            ids = [work.aggregate_root_id for work in works]
            compared = failovers.checked(self._alias, self._subscriber, ids, known.generation - 1)
            if missing := [id for id in ids if id not in compared]:
                raise StoreMovedOn(shard, ids=missing)
        for work in works:
            if work.generation < known.generation:
                work.raise_to(known.generation)

    def check_read(self, ids: Iterable[str]) -> None:
        """Raise `StoreMovedOn` if a generation has begun that was not known at `heed`: the streams of these aggregates,
        which were read from the store since, may be of that generation. Blocks on the shards."""
        for place in {self._store.place_of(id) for id in ids}:
            shard = self._store.shards[place]
            known = self._known.get(shard.number)
            if known is not None and (newest := shard.position().generation) > known.generation:
                raise StoreMovedOn(shard, newest)

    def confirm(self, generations: Mapping[int, int]) -> None:
        """Raise `StoreMovedOn` if a generation was noted since `heed`. Else none is noted until the transaction ends,
        in which ``generations`` were read (`failovers.generations_cursor`)."""
        if generations != {shard: one.generation for shard, one in self._known.items()}:
            raise StoreMovedOn
