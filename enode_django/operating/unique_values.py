"""Make the table of unique values agree with the event store."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from enode_django.commanding.uniqueness import Found, Uniqueness
from enode_django.conf import conf
from enode_django.domain.aggregate import AggregateRoot
from enode_django.eventstore.base import EventStore, parts_of
from enode_django.eventstore.positions import BEGINNING
from enode_django.eventstore.unique_values import UniqueKey
from enode_django.exceptions import DefinitionError, error_text
from enode_django.repository.loading import AggregateLoader
from enode_django.repository.unique_keys import keys_of, values_of
from enode_django.runtime import make_snapshots
from enode_django.serialization.registry import types


class Duplicate(NamedTuple):
    """A value that two aggregates have: the ``holder``, and another one, whose value is not claimed."""

    name: str
    holder: str
    other: str


class Freed(NamedTuple):
    """A value that its owner no longer had."""

    name: str
    aggregate_root_id: str


Finding = Duplicate | Freed


class UniqueRebuild:
    """Compares the unique values with the stored states of all aggregates, while workers go on. Blocks on the
    databases, and raises `StoreUnavailable`; a run that was interrupted is begun again. ``aggregates`` counts the
    checked aggregates."""

    def __init__(self, store: EventStore) -> None:
        self._store = store
        self._loader = AggregateLoader(store, make_snapshots(store), only_reads=True)
        self._uniqueness = Uniqueness(self._loader, conf().COMMANDS.CLAIM_DEADLINE)
        self.aggregates = 0

    def run(self) -> Iterator[Finding]:
        """Free values that no aggregate has, and claim those that one has. Yield the freed values, and those that two
        aggregates have."""
        for row in self._uniqueness.values.rows():
            if self._uniqueness.settle(row) is Found.FREE:
                yield Freed(row.key.name, row.aggregate_root_id)
        for id in self._aggregates():
            self.aggregates += 1
            yield from self._claim(id)

    def _aggregates(self) -> Iterator[str]:
        for shard in self._store.shards:
            position = shard.position()
            for part in parts_of(shard, BEGINNING, position):
                heads = {id: head for id, (kind, head) in part.settled.heads.items() if _is_unique(kind)}
                newest = shard.heads_before(heads, position) if heads else {}
                yield from (id for id, head in heads.items() if newest.get(id) == head)  # once, in its last part

    def _claim(self, id: str) -> Sequence[Duplicate]:
        """Claim what an aggregate holds. Return the values that belong to others. If the aggregate or such a value
        changes meanwhile, begin again."""
        while True:
            version, keys = self._held(id)
            rows = self._uniqueness.values.adopt(id, version, keys) if keys else []
            foreign = [row for row in rows if row.aggregate_root_id != id]
            are_held = all(self._uniqueness.settle(row) is Found.HELD for row in foreign)
            if self._store.heads([id]).get(id, 0) == version:
                if are_held:
                    return [Duplicate(row.key.name, row.aggregate_root_id, id) for row in foreign]
                continue
            for row in rows:
                if row.aggregate_root_id == id:
                    self._uniqueness.settle(row)

    def _held(self, id: str) -> tuple[int, Sequence[UniqueKey]]:
        """Return the stored version of an aggregate, and the values that it holds then. Raises `DefinitionError`, which
        names it, if its values cannot be normalised."""
        aggregate = self._loader.load(id)
        if aggregate is None:
            return 0, []
        try:
            return aggregate.version, [*keys_of(type(aggregate), values_of(aggregate))]
        except Exception as error:  # normalize is application code, and met no stored values so far
            raise DefinitionError(f"{id!r} cannot be looked into: {error_text(error)}") from error


def _is_unique(type_name: str) -> bool:
    cls = types.find(AggregateRoot, type_name)
    return cls is not None and bool(cls._enode_unique)
