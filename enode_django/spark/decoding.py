"""Batches of event streams with the columns that the archive adds: decoded content and buckets."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import pyarrow as pa

from enode_django.eventstore.buckets import bucket_of
from enode_django.exceptions import MalformedMessage
from enode_django.serialization.json_text import described, event_types
from enode_django.spark.batches import DDL, SCHEMA

ARCHIVE_DDL = f"{DDL}, event_types ARRAY<STRING>, decoded STRING, bucket INT NOT NULL"
ARCHIVE_NAMES = [*SCHEMA.names, "event_types", "decoded", "bucket"]
READ_DDL = ARCHIVE_DDL.replace(" NOT NULL", "")
"""The columns as they are read from files, where all may be null."""


def decoded(batches: Iterable[pa.RecordBatch], *, json: bool) -> Iterator[pa.RecordBatch]:
    """Yield batches with the added columns ``event_types``, ``decoded`` (the row as JSON; null unless ``json``) and
    ``bucket``. The first two are null if the bytes cannot be decoded. For ``mapInArrow``."""
    for batch in batches:
        contents: list[Any] = [batch.column("events").to_pylist(), batch.column("metadata").to_pylist()]
        rows = [_described(events, metadata, json) for events, metadata in zip(*contents, strict=True)]
        types, texts = zip(*rows, strict=True) if rows else ((), ())
        ids: list[Any] = batch.column("aggregate_root_id").to_pylist()
        added = [
            pa.array(types, pa.list_(pa.string())),
            pa.array(texts, pa.string()),
            pa.array(map(bucket_of, ids), pa.int32()),
        ]
        yield pa.RecordBatch.from_arrays([*batch.columns, *added], names=ARCHIVE_NAMES)


def _described(events: bytes, metadata: bytes, json: bool) -> tuple[list[str] | None, str | None]:
    try:
        return described(events, metadata) if json else (event_types(events), None)
    except MalformedMessage:
        return None, None
