"""The demo's rows of the event store, in whichever of its databases they are."""

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
    """Those of each shard."""
    return [EventStream.objects.using(alias) for alias in conf().EVENT_STORE.DATABASES]


def stored_records(workload: Workload) -> Iterator[StreamRecord]:
    """Every row of the run, by account and version; an account's refusals come last. One that has rows in two shards
    comes once, with all of them."""
    return heapq.merge(*(_records(workload, rows) for rows in streams()), key=_place)


def _records(workload: Workload, rows: QuerySet[EventStream]) -> Iterator[StreamRecord]:
    mine = rows.filter(aggregate_root_id__startswith=f"{workload.run}-").order_by("aggregate_root_id", "version")
    for row in mine.values_list(*StreamRecord._fields).iterator(chunk_size=PORTION):
        yield StreamRecord(*row)


def _place(record: StreamRecord) -> tuple[str, bool, int]:
    """As PostgreSQL sorts: NULL comes last."""
    return record.aggregate_root_id, record.version is None, record.version or 0
