"""Event streams as Arrow record batches, and back."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from enode_django.eventstore.base import StreamRecord, make_record
from enode_django.eventstore.scanning import RAW_TIMES_BEGIN

_COLUMNS: list[pa.Field[Any]] = [
    pa.field("shard", pa.int32(), nullable=False),
    pa.field("aggregate_root_type", pa.string(), nullable=False),
    pa.field("aggregate_root_id", pa.string(), nullable=False),
    pa.field("version", pa.int64()),
    pa.field("command_id", pa.string(), nullable=False),
    pa.field("command_type", pa.string(), nullable=False),
    pa.field("created_at", pa.timestamp("us", tz="UTC"), nullable=False),
    pa.field("events", pa.binary(), nullable=False),
    pa.field("metadata", pa.binary(), nullable=False),
]
SCHEMA = pa.schema(_COLUMNS)
"""``shard`` is the number of the shard, ``version`` is null for a stored refusal, ``created_at`` is in UTC; ``events``
and ``metadata`` are the stored bytes."""
DDL = (
    "shard INT NOT NULL, aggregate_root_type STRING NOT NULL, aggregate_root_id STRING NOT NULL, version BIGINT, "
    "command_id STRING NOT NULL, command_type STRING NOT NULL, created_at TIMESTAMP NOT NULL, "
    "events BINARY NOT NULL, metadata BINARY NOT NULL"
)
"""The same for Spark."""

_FIELDS = SCHEMA.names[1:]
_PLACES = [StreamRecord._fields.index(name) for name in _FIELDS]
_RAW_BEGIN = pa.scalar(int(RAW_TIMES_BEGIN.timestamp()) * 1_000_000, pa.int64())
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def batch_of(shard: int, rows: Sequence[Sequence[Any]]) -> pa.RecordBatch:
    """Make a batch of one row or more, each with the fields of a `StreamRecord`. ``created_at`` are aware datetimes, or
    the raw times of a scan."""
    columns = list(zip(*rows, strict=True))
    arrays = [_array(columns[place], SCHEMA.field(name)) for place, name in zip(_PLACES, _FIELDS, strict=True)]
    return pa.RecordBatch.from_arrays([pa.repeat(pa.scalar(shard, pa.int32()), len(rows)), *arrays], schema=SCHEMA)


def _array(column: Sequence[Any], field: pa.Field[Any]) -> Any:
    if field.name == "created_at" and isinstance(column[0], int):
        return pc.add(pa.array(column, pa.int64()), _RAW_BEGIN).cast(field.type)
    return pa.array(column, field.type)


def records_of(batch: pa.RecordBatch) -> Iterator[StreamRecord]:
    """The streams of a batch that has at least these columns, in its order; ``created_at`` is in UTC."""
    columns = [_values(batch.column(batch.schema.get_field_index(name)), name) for name in StreamRecord._fields]
    return map(make_record, zip(*columns, strict=True))


def _values(array: pa.Array[Any], name: str) -> list[Any]:
    """By way of numpy, in a fraction of the time that ``to_pylist`` takes."""
    if name == "created_at":
        times = array.cast(pa.int64()).to_numpy().astype("timedelta64[us]").tolist()
        return list(map(_EPOCH.__add__, times))
    return array.to_pylist() if array.null_count else array.to_numpy(zero_copy_only=False).tolist()
