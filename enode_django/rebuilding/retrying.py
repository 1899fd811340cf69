"""Retries of aggregates that were parked during a replay.

Aggregates are replayed one after the other, not in the order of the store. So a unique value may be taken: one
aggregate renamed itself from x to y, another one took x afterwards, and was replayed first. Such aggregates are taken
back together with the holders of the values, and replayed in the order of the store.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from operator import itemgetter
from typing import Any

from django.db import models, transaction

from enode_django.concurrency.backoff import once
from enode_django.databases import execute
from enode_django.eventing.checkpoints import CHECKPOINT, PARKED
from enode_django.eventing.pending import Failure, PendingAggregate
from enode_django.eventstore import statements
from enode_django.eventstore.base import EventStore
from enode_django.eventstore.postgres import PostgresEventStore
from enode_django.eventstore.sqlstates import UNIQUE_VIOLATION, is_conflict_of_rows, sqlstate
from enode_django.rebuilding.comparing import Generation
from enode_django.rebuilding.definitions import quoted
from enode_django.rebuilding.meanings import Place, escaped, is_attributed, meaning
from enode_django.rebuilding.replaying import Replayer, Todo, replayer
from enode_django.rebuilding.shadow import Shadow
from enode_django.rebuilding.target import Target

MOST = 1_000
"""The most parked aggregates that are retried. If there are more, the order of the replay is not the reason."""
MOST_STREAMS = 20_000
"""The most streams of these aggregates in a shard, for the same reason."""
ROUNDS = 10

_PARKED = f"SELECT aggregate_root_id, version FROM {{}}.{PARKED} WHERE attempts > 0"
_UNPARK = f"DELETE FROM {PARKED} WHERE aggregate_root_id = ANY(%s)"
_FORGET = f"DELETE FROM {CHECKPOINT} WHERE subscriber = %s AND generation = %s AND aggregate_root_id = ANY(%s)"
_STREAMS = f"""
    SELECT sequence, created_at, aggregate_root_id, aggregate_root_type, version FROM {statements.TABLE}
    WHERE aggregate_root_id = ANY(%s) AND version IS NOT NULL ORDER BY sequence LIMIT %s
"""
_KEY = """
    SELECT t.relname::text,
           ARRAY(SELECT pg_get_indexdef(i.indexrelid, n, true) FROM generate_series(1, i.indnkeyatts) AS n)
    FROM pg_index AS i JOIN pg_class AS c ON c.oid = i.indexrelid JOIN pg_class AS t ON t.oid = i.indrelid
    WHERE c.relname = %s AND c.relnamespace = (SELECT oid FROM pg_namespace WHERE nspname = %s)
"""


def retry_parked(
    target: Target, store: EventStore, shadow: Shadow, until: Mapping[str, int] | None = None
) -> Sequence[str]:
    """Retry the parked aggregates of the shadow, unless there are more than `MOST`. Return those that are still parked.

    Aggregates in ``until`` are brought up to that version, others up to their heads. Blocks. Raises as `Replayer` does.
    """
    parked = _parked(shadow)
    if not parked or len(parked) > MOST:
        return list(parked)
    with replayer(shadow) as replaying, replayer(shadow, once) as inside:
        retry = _Retry(target, store, shadow, inside, until or {})
        replaying.persisted(lambda: retry.run(parked))
    return list(_parked(shadow))


def _parked(shadow: Shadow) -> dict[str, int]:
    """Return the parked aggregates with the version that failed."""
    return dict(execute(shadow.alias, _PARKED.format(quoted(shadow.schema)), None).fetchall())


class _Retry:
    """A retry. ``_conflicts`` are the aggregates parked because a unique value was taken, and those that hold it."""

    def __init__(
        self, target: Target, store: EventStore, shadow: Shadow, replaying: Replayer, until: Mapping[str, int]
    ) -> None:
        self._until = until
        self._target = target
        self._store = store
        self._shadow = shadow
        self._replaying = replaying
        self._conflicts: set[str] = set()
        replaying.runner.on_parked = self._note

    def run(self, parked: Mapping[str, int]) -> None:
        self._conflicts = set()
        with transaction.atomic(using=self._shadow.alias):
            self._go_on(parked)
        if all(is_attributed(self._target, model) for model in self._target.written):
            self._in_order()

    def _go_on(self, parked: Mapping[str, int]) -> None:
        """Continue each aggregate from its version, in the order of the streams that failed."""
        todo = self._streams([*parked])
        at = {(one.aggregate_root_id, one.until): place for place, one in enumerate(todo)}
        heads = {one.aggregate_root_id: one for one in todo}
        with self._shadow.opened():
            execute(self._shadow.alias, _UNPARK, ([*heads],))
        for id in sorted(heads, key=lambda id: at.get((id, parked[id]), 0)):
            self._replaying.catch_up([heads[id]])

    def _in_order(self) -> None:
        involved: set[str] = set()
        for _ in range(ROUNDS):
            if self._conflicts <= involved:
                return
            involved |= self._conflicts
            todo = self._streams(involved)
            if {one.aggregate_root_id for one in todo} != involved:
                return
            self._conflicts = set()
            with transaction.atomic(using=self._shadow.alias):
                take_back(self._target, self._shadow, [*involved])
                for _, streams in groupby(todo, key=itemgetter(0)):
                    self._replaying.catch_up([[*streams][-1]])
                if not self._conflicts <= involved:
                    transaction.set_rollback(True, using=self._shadow.alias)

    def _streams(self, ids: set[str] | Sequence[str]) -> list[Todo]:
        """Return the streams of these aggregates in the order of the store, those of several shards by time; none if a
        shard has more than `MOST_STREAMS`: a part of them would end below the heads."""
        shards = [shard for shard in self._store.shards if isinstance(shard, PostgresEventStore)]
        found = [execute(shard.alias, _STREAMS, ([*ids], MOST_STREAMS + 1)).fetchall() for shard in shards]
        if any(len(streams) > MOST_STREAMS for streams in found):
            return []
        merged = heapq.merge(*found, key=itemgetter(1))
        return [
            Todo(id, type_name, version)
            for _, _, id, type_name, version in merged
            if version <= self._until.get(id, version)
        ]

    # -- holders of a unique value --------------------------------------------------------------------------------

    def _note(self, work: PendingAggregate, failure: Failure) -> None:
        holders = set(self._holders(failure.error))
        if holders:
            self._conflicts |= {work.aggregate_root_id, *holders}

    def _holders(self, error: BaseException) -> Iterator[str]:
        cause: Any = error.__cause__ or error
        if not is_conflict_of_rows(error) or not getattr(cause, "diag", None):
            return
        found = execute(self._shadow.alias, _KEY, (cause.diag.constraint_name, self._shadow.schema)).fetchone()
        detail = cause.diag.message_detail or ""
        if found is None:
            return
        place = Generation.of(self._shadow).place
        held_values = _held_values(detail, f"({', '.join(found[1])})=(", is_unique=sqlstate(error) == UNIQUE_VIOLATION)
        for model in self._target.written:
            rows = meaning(self._target, model, place)
            if held_values is not None and model._meta.db_table == found[0] and rows.whose is not None:
                # Apart from the joins: their tables may have columns of the same names.
                told = ", ".join(f"CASE WHEN {one} IS NULL THEN 'null' ELSE concat({one}) END" for one in found[1])
                held = f"SELECT ctid FROM {place(found[0])} WHERE concat_ws(', ', {escaped(told)}) = %s"
                query = f"SELECT DISTINCT {rows.whose} FROM {rows.tables} WHERE row.ctid IN ({held})"
                for (id,) in execute(self._shadow.alias, query, (held_values,)).fetchall():
                    yield id


def _held_values(detail: str, key: str, *, is_unique: bool) -> str | None:
    """Return the holder's values in the detail of an error; None if it does not tell them. A value may contain ``key``.
    An exclusion constraint names the values of both rows, the holder's last.

    >>> _held_values("Key (a)=(x (a)=(y) already exists.", "(a)=(", is_unique=True)
    'x (a)=(y'
    >>> _held_values("Key (a)=([1,3)) conflicts with existing key (a)=([2,4)).", "(a)=(", is_unique=False)
    '[2,4)'
    """
    parts = detail.split(key)
    rest = parts[1:] if is_unique else parts[len(parts) // 2 + 1 :]
    return key.join(rest).rpartition(")")[0] if rest else None


def take_back(target: Target, shadow: Shadow, ids: Sequence[str]) -> None:
    """Delete the rows, parked events and checkpoints of these aggregates from the shadow. All models of the projection
    must be attributed, see `is_attributed`."""
    deletes = [_delete(target, model, Generation.of(shadow).place) for model in target.written]
    steps = ", ".join(f"deleted_{number} AS ({delete})" for number, delete in enumerate(deletes))
    with shadow.opened():
        # One statement: rows that say whose others are must not be gone before these.
        execute(shadow.alias, f"WITH {steps} SELECT", [ids] * len(deletes))
        execute(shadow.alias, _UNPARK, (ids,))
        execute(shadow.alias, _FORGET, (shadow.subscriber, shadow.generation, ids))


def _delete(target: Target, model: type[models.Model], place: Place) -> str:
    rows = meaning(target, model, place)
    chosen = f"SELECT row.ctid FROM {rows.tables} WHERE {rows.whose} = ANY(%s)"
    return f"DELETE FROM {place(model._meta.db_table)} WHERE ctid = ANY(ARRAY({chosen}))"
