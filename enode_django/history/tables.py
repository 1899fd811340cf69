"""The event store's tables, asked in ways that its port does not know. Each question is answered by an index."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
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
_COMMAND_ROWS = 100


class Found(NamedTuple):
    aggregate_root_id: str
    command_id: str
    metadata: bytes


def streams(alias: str) -> QuerySet[EventStream]:
    return EventStream.objects.using(alias)


def aliases() -> Sequence[str]:
    """The databases of the event store, in the order of its shards."""
    return conf().event_databases


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
    """One, unless the command was sent to several aggregates; no more than 100."""
    rows = streams(alias) if holds(command_id) else streams(alias).none()
    return rows.filter(command_id=command_id).order_by("aggregate_root_id")[:_COMMAND_ROWS]


def last_sequence(alias: str) -> int:
    """0 for an empty table."""
    return streams(alias).order_by("-sequence").values_list("sequence", flat=True).first() or 0


def sequence_at(alias: str, time: datetime) -> int:
    """The sequence from which on rows were made at that time or later, by halving the primary key: sequences and times
    grow together, as far as the clocks of the workers agree. One above the last, if none was."""
    rows = streams(alias)
    low, high = 1, last_sequence(alias) + 1
    while low < high:
        middle = (low + high) // 2
        found = rows.filter(sequence__gte=middle).order_by("sequence").values_list("sequence", "created_at").first()
        if found is not None and found[1] < time:
            low = found[0] + 1
        else:
            high = middle
    return low


def naming(alias: str, text: str, after: int, until: int) -> Iterator[Found]:
    """The rows with after < sequence <= until that have the text in their metadata. All of them are looked at."""
    with connections[alias].cursor() as cursor:
        cursor.execute(_NAMING, (after, until, text.encode()))
        for root, command, metadata in cursor.fetchall():
            yield Found(root, command, bytes(metadata))
