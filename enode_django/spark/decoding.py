"""Batches of the source with what their bytes say, as the archive keeps them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import pyarrow as pa

from enode_django.exceptions import MalformedMessage
from enode_django.serialization.json_text import described
from enode_django.spark.batches import DDL

ARCHIVE_DDL = f"{DDL}, event_types ARRAY<STRING>, decoded STRING, day DATE"
READ_DDL = ARCHIVE_DDL.replace(" NOT NULL", "")
"""The same as files have it."""


def decoded(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Add ``event_types`` and ``decoded``, as `described` has them (null for bytes that are no message of ours), and
    the ``day``, in UTC. For ``mapInArrow``."""
    for batch in batches:
        columns: list[Any] = [batch.column("events").to_pylist(), batch.column("metadata").to_pylist()]
        described_rows = [_described(events, metadata) for events, metadata in zip(*columns, strict=True)]
        types, texts = zip(*described_rows, strict=True) if described_rows else ((), ())
        yield pa.RecordBatch.from_arrays(
            [*batch.columns, pa.array(types, pa.list_(pa.string())), pa.array(texts, pa.string()), _days(batch)],
            names=[*batch.schema.names, "event_types", "decoded", "day"],
        )


def _described(events: bytes, metadata: bytes) -> tuple[list[str] | None, str | None]:
    try:
        return described(events, metadata)
    except MalformedMessage:
        return None, None


def _days(batch: pa.RecordBatch) -> pa.Array[Any]:
    """Whatever time zone the session has: the numbers are those of UTC."""
    days: pa.Array[Any] = batch.column("created_at").cast(pa.int64()).cast(pa.timestamp("us")).cast(pa.date32())
    return days
