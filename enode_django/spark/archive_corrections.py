"""Corrections of what lies in an archive: its files have the events as they were read when they were written."""

from __future__ import annotations

from collections.abc import Iterator

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import broadcast, coalesce

from enode_django.eventstore.base import EventStore

_COLUMNS = "aggregate_root_id STRING, version BIGINT, corrected BINARY"
_KEY = ["aggregate_root_id", "version"]


def with_corrections(spark: SparkSession, archived: DataFrame, store: EventStore) -> DataFrame:
    """Return archived streams with the events that they are read with now. Asks the store for those that were ever
    corrected; raises `StoreUnavailable`."""
    rows = list(_corrected(store))
    if not rows:
        return archived
    corrected = broadcast(spark.createDataFrame(rows, _COLUMNS))
    joined = archived.join(corrected, _KEY, "left")
    return joined.withColumn("events", coalesce("corrected", "events")).select(*archived.columns)


def _corrected(store: EventStore) -> Iterator[tuple[str, int, bytes]]:
    """Also what was corrected and is now as it was stored: the archive may have it as it was in between."""
    for shard in store.shards:
        for id, version in sorted({(one.aggregate_root_id, one.version) for one in shard.corrected_since(0)}):
            for record in shard.load(id, after=version - 1, until=version):
                yield id, version, record.events
