"""Queries of the event store's tables that its port does not offer. Each uses an index."""

from __future__ import annotations

import random
from collections.abc import Collection, Iterator, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, NamedTuple

from django.db import connections

from enode_django.conf import conf
from enode_django.eventstore.base import EventStore, StreamRecord
from enode_django.eventstore.limits import holds
from enode_django.eventstore.statements import TABLE
from enode_django.models import EventStream

if TYPE_CHECKING:
    from django.db.models import QuerySet

_NAMING = f"""
    SELECT aggregate_root_id, command_id, metadata FROM {TABLE}
    WHERE sequence > %s AND sequence <= %s AND position(%s::bytea IN metadata) > 0 ORDER BY sequence
"""

# A binary search by the primary key in one statement, of some twenty steps.
_HALVING = f"""
    WITH RECURSIVE halving (low, high) AS (
        SELECT 1::bigint, (SELECT coalesce(max(sequence), 0) + 1 FROM {TABLE})
        UNION ALL
        SELECT CASE WHEN found.created_at < %s THEN found.sequence + 1 ELSE part.low END,
               CASE WHEN found.created_at < %s THEN part.high ELSE part.middle END
        FROM (SELECT low, high, (low + high) / 2 AS middle FROM halving WHERE low < high) AS part
        LEFT JOIN LATERAL (
            SELECT sequence, created_at FROM {TABLE} WHERE sequence >= part.middle ORDER BY sequence LIMIT 1
        ) AS found ON true
    )
    SELECT low FROM halving WHERE low >= high
"""
_COMMAND_ROWS = 100
_NEIGHBOURS = 100
"""Rows that are looked at from a random one on, for an aggregate that was not found before."""


class Found(NamedTuple):
    aggregate_root_id: str
    command_id: str
    metadata: bytes


def streams(alias: str) -> QuerySet[EventStream]:
    return EventStream.objects.using(alias)


def aliases() -> Sequence[str]:
    """Return the databases of the event store, in the order of its shards."""
    return conf().EVENT_STORE.DATABASES


def alias_of(store: EventStore, aggregate_root_id: str) -> str:
    return aliases()[store.place_of(aggregate_root_id)]


def record_of(row: EventStream) -> StreamRecord:
    return StreamRecord(
        row.aggregate_root_id,
        row.version,
        row.command_id,
        row.aggregate_root_type,
        row.command_type,
        row.created_at,
        bytes(row.events),
        bytes(row.metadata),
    )


def rows_of_command(alias: str, command_id: str) -> QuerySet[EventStream]:
    """Return the rows of a command, at most 100: one, unless it was sent to several aggregates."""
    rows = streams(alias) if holds(command_id) else streams(alias).none()
    return rows.filter(command_id=command_id).order_by("aggregate_root_id")[:_COMMAND_ROWS]


def last_sequence(alias: str) -> int:
    """Return the highest sequence; 0 for an empty table."""
    return streams(alias).order_by("-sequence").values_list("sequence", flat=True).first() or 0


def sequence_at(alias: str, time: datetime) -> int:
    """Return the sequence of the first row made at ``time`` or later; one above the last if there is none. Sequences
    and times have the same order only as far as the workers' clocks agree."""
    with connections[alias].cursor() as cursor:
        cursor.execute(_HALVING, (time, time))
        ((sequence,),) = cursor.fetchall()
        return int(sequence)


def random_aggregates(alias: str, count: int, type_names: Collection[str] = ()) -> Iterator[tuple[str, str]]:
    """Yield the ids and types of up to ``count`` aggregates, each found near a random row. Makes ``count`` queries."""
    last, found = last_sequence(alias), set[str]()
    for _ in range(count if last else 0):
        start = random.randint(1, last)  # noqa: S311 - a sample of rows
        rows = streams(alias).filter(sequence__gte=start, version__isnull=False)
        near = rows.order_by("sequence").values_list("aggregate_root_id", "aggregate_root_type")[:_NEIGHBOURS]
        for id, name in near:
            if id not in found and (not type_names or name in type_names):
                found.add(id)
                yield id, name
                break


def naming(alias: str, text: str, after: int, until: int) -> Iterator[Found]:
    """Yield the rows with after < sequence <= until whose metadata contain ``text``. Reads all rows of the range."""
    with connections[alias].cursor() as cursor:
        cursor.execute(_NAMING, (after, until, text.encode()))
        for root, command, metadata in cursor.fetchall():
            yield Found(root, command, bytes(metadata))
