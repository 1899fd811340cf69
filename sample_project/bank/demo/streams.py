"""The demo's rows in all databases of the event store."""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence

from django.db.models import QuerySet

from enode_django.conf import conf
from enode_django.eventstore.base import StreamRecord
from enode_django.models import EventStream
from sample_project.bank.demo.workload import Workload

PORTION = 2_000


def streams() -> Sequence[QuerySet[EventStream]]:
    """Return the streams of each shard."""
    return [EventStream.objects.using(alias) for alias in conf().EVENT_STORE.DATABASES]


def stored_records(workload: Workload) -> Iterator[StreamRecord]:
    """Yield every row of the run by account and version, an account's refusals last. Rows of one account in two shards
    are merged."""
    return heapq.merge(*(_records(workload, rows) for rows in streams()), key=_place)


def _records(workload: Workload, rows: QuerySet[EventStream]) -> Iterator[StreamRecord]:
    mine = rows.filter(aggregate_root_id__startswith=f"{workload.run}-").order_by("aggregate_root_id", "version")
    for row in mine.values_list(*StreamRecord._fields).iterator(chunk_size=PORTION):
        yield StreamRecord(*row)


def _place(record: StreamRecord) -> tuple[str, bool, int]:
    """Return a sort key for PostgreSQL's order, in which NULL comes last."""
    return record.aggregate_root_id, record.version is None, record.version or 0
