"""Corrections of archived streams: the files have the events as they were read at the time of the export."""

from __future__ import annotations

from collections.abc import Iterator

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import broadcast, coalesce

from enode_django.eventstore.base import EventStore

_COLUMNS = "aggregate_root_id STRING, version BIGINT, corrected BINARY"
_KEY = ["aggregate_root_id", "version"]


def with_corrections(spark: SparkSession, archived: DataFrame, store: EventStore) -> DataFrame:
    """Return archived streams with their current events. Reads all streams that were ever corrected from the store.
    Raises `StoreUnavailable`."""
    rows = list(_corrected(store))
    if not rows:
        return archived
    corrected = broadcast(spark.createDataFrame(rows, _COLUMNS))
    joined = archived.join(corrected, _KEY, "left")
    return joined.withColumn("events", coalesce("corrected", "events")).select(*archived.columns)


def _corrected(store: EventStore) -> Iterator[tuple[str, int, bytes]]:
    """Yield all streams that were ever corrected, even if the original was restored: the archive may have an earlier
    correction."""
    for shard in store.shards:
        for id, version in sorted({(one.aggregate_root_id, one.version) for one in shard.corrected_since(0)}):
            for record in shard.load(id, after=version - 1, until=version):
                yield id, version, record.events
