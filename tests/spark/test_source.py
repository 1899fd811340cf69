"""The event store as a DataFrame, read by Spark's own processes."""

from __future__ import annotations

import os
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pyarrow as pa
import pytest
from django.conf import settings
from django.test import override_settings
from pyspark import TaskContext
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.functions import spark_partition_id

from enode_django.eventstore.base import StreamRecord
from enode_django.eventstore.postgres import PostgresEventStore
from enode_django.exceptions import ConfigurationError
from enode_django.spark.batches import SCHEMA, records_of
from enode_django.spark.session import spark_session
from enode_django.spark.source import events
from enode_django.testing.event_store_read_contract import history, refusal, stream

pytestmark = pytest.mark.django_db(transaction=True)

MADE = datetime(2026, 3, 1, 12, 30, 15, 123_457, tzinfo=UTC)


@pytest.fixture
def store(transactional_db: None) -> PostgresEventStore:
    return PostgresEventStore()


def histories() -> list[StreamRecord]:
    return [
        record._replace(aggregate_root_type=f"t.{number % 3}", created_at=MADE + timedelta(minutes=number))
        for number in range(9)
        for record in history(f"id{number}", 4)
    ]


def record_of(row: Row) -> StreamRecord:
    values = row.asDict()
    made = values["created_at"].astimezone(UTC)
    return StreamRecord(
        *[values[name] for name in StreamRecord._fields[:5]], made, bytes(values["events"]), bytes(values["metadata"])
    )


def collected(frame: DataFrame) -> list[StreamRecord]:
    return sorted(map(record_of, frame.collect()), key=lambda record: (record.aggregate_root_id, record.version or 0))


def plan_of(frame: DataFrame) -> str:
    return str(frame._jdf.queryExecution().executedPlan().toString())


def test_the_rows_are_those_of_the_store(spark: SparkSession, store: PostgresEventStore) -> None:
    records = histories()
    store.append([*records, refusal("id1", "refused")])
    frame = events(spark)
    assert frame.columns == SCHEMA.names
    assert {row.shard for row in frame.collect()} == {0}
    assert collected(frame) == records


def test_a_partition_has_its_aggregates_whole_and_in_order(spark: SparkSession, store: PostgresEventStore) -> None:
    store.append([record for number in range(60) for record in history(f"id{number:02}", 5)])
    rows = events(spark, partitions=4).withColumn("place", spark_partition_id()).collect()
    places: dict[int, list[tuple[str, int]]] = {}
    for row in rows:
        places.setdefault(row.place, []).append((row.aggregate_root_id, row.version))
    assert len(places) == 4
    assert all(place == sorted(place) for place in places.values())
    assert sorted(key for place in places.values() for key in place) == [
        (f"id{number:02}", version) for number in range(60) for version in range(1, 6)
    ]
    assert len({(row.place, row.aggregate_root_id) for row in rows}) == 60


def test_a_frame_shows_the_same_rows_whatever_is_stored_later(spark: SparkSession, store: PostgresEventStore) -> None:
    store.append(history("a", 3))
    frame = events(spark)
    store.append([stream("a", 4)])
    assert frame.count() == 3
    assert spark.read.format("enode_events").load().count() == 4


def test_conditions_on_type_id_time_and_version_are_left_to_the_database(
    spark: SparkSession, store: PostgresEventStore
) -> None:
    records = histories()
    store.append([*records, refusal("id4", "refused")])
    frame = events(spark, types=["t.0", "t.1"], refusals=True).where(
        "aggregate_root_id IN ('id1', 'id3', 'id4', 'id5', 'id7', 'none') AND version IS NOT NULL "
        f"AND created_at > '{records[4].created_at}' AND created_at <= '{records[28].created_at}'"
    )
    assert "Filter (" not in plan_of(frame)
    assert {record.aggregate_root_id for record in collected(frame)} == {"id3", "id4", "id7"}
    others = events(spark, types=["t.1"]).where("version > 2 AND aggregate_root_id <> 'id4'")
    assert "Filter (" in plan_of(others)
    assert {(r.aggregate_root_id, r.version) for r in collected(others)} == {
        ("id1", 3), ("id1", 4), ("id7", 3), ("id7", 4),
    }  # fmt: skip


def test_by_position_the_rows_are_the_same(spark: SparkSession, store: PostgresEventStore) -> None:
    records = histories()
    store.append([*records, refusal("id9", "refused")])
    frame = events(spark, types=["t.1"], order="position", refusals=True)
    assert collected(frame) == [record for record in records if record.aggregate_root_type == "t.1"]


def test_only_named_columns_are_sent_to_spark(spark: SparkSession, store: PostgresEventStore) -> None:
    store.append([*histories(), refusal("id1", "refused")])
    frame = events(spark, types=["t.1"], columns=["command_type"])
    assert frame.columns == ["command_type"]
    assert "events#" not in plan_of(frame)
    assert "Filter (" not in plan_of(frame)
    ((name, count),) = frame.groupBy("command_type").count().collect()
    assert (name, count) == (histories()[0].command_type, 12)
    with pytest.raises(ConfigurationError, match="no columns"):
        events(spark, columns=["payload"])
    with pytest.raises(PySparkException, match="no columns"):
        spark.read.format("enode_events").schema("version STRING").load().collect()


def test_no_more_tasks_read_at_once_than_the_settings_allow(spark: SparkSession, store: PostgresEventStore) -> None:
    store.append(histories())
    with override_settings(ENODE={**settings.ENODE, "SPARK": {"DATABASE_TASKS": 2}}):
        frame = events(spark, types=["t.1", "t.2"], partitions=5)
    rows = frame.withColumn("place", spark_partition_id()).collect()
    assert {row.place for row in rows} == {0, 1}
    assert "Filter (" not in plan_of(frame)
    assert len(rows) == 24
    assert len({(row.place, row.aggregate_root_id) for row in rows}) == 6


def test_who_loads_with_options_that_cannot_be_used_hears_of_it(spark: SparkSession) -> None:
    with pytest.raises(PySparkException, match="no option 'orders'; it has after, horizon"):
        spark.read.format("enode_events").options(orders="position").load()


def test_jobs_get_the_records_back(spark: SparkSession, store: PostgresEventStore) -> None:
    records = [*histories(), refusal("id1", "refused")]
    store.append(records)

    def shown(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield pa.RecordBatch.from_pydict({"text": [repr(record) for record in records_of(batch)]})

    frame = events(spark, refusals=True).mapInArrow(shown, "text string")
    assert {row.text for row in frame.collect()} == {repr(record) for record in records}


def test_jobs_get_large_rows_in_small_batches(spark: SparkSession, store: PostgresEventStore) -> None:
    for number in range(1, 13):
        store.append([stream("a", number, events=bytes(3_000_000))])

    def sizes(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield pa.RecordBatch.from_pydict({"size": [batch.nbytes]})

    found = [row.size for row in events(spark, partitions=1).mapInArrow(sizes, "size long").collect()]
    assert sum(found) > 36_000_000
    assert max(found) < 24_000_000


def test_a_task_that_fails_is_tried_again(spark: SparkSession, store: PostgresEventStore) -> None:
    store.append(history("a", 3))

    def fails_once(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            context = TaskContext.get()
            if context is not None and context.attemptNumber() == 0:
                raise RuntimeError("the first attempt")
            yield batch.select(["version"])

    assert [row.version for row in events(spark).mapInArrow(fails_once, "version long").collect()] == [1, 2, 3]


def test_a_session_that_is_there_is_used_and_left_alone(spark: SparkSession) -> None:
    with spark_session("local[1]") as session:
        assert session.sparkContext is spark.sparkContext
    assert spark.range(3).count() == 3


def test_no_password_is_in_a_plan_or_a_log(spark: SparkSession, store: PostgresEventStore, spark_output: Path) -> None:
    """`test_cluster` looks at the event log, too."""
    password = unquote(urlsplit(os.environ["DATABASE_URL"]).password or "")
    if not password:
        pytest.skip("the database has no password")
    store.append(histories())
    frame = events(spark, types=["t.1"], partitions=1)
    assert frame.count() == 12
    with pytest.raises(PySparkException) as caught:
        frame.mapInArrow(lambda batches: 1 / 0, "version long").collect()  # type: ignore[arg-type, return-value]
    plans = [plan_of(frame), str(frame._jdf.queryExecution().toString()), str(caught.value)]
    logs = {path.name: path.read_text(errors="replace") for path in spark_output.rglob("*") if path.is_file()}
    assert "ZeroDivisionError" in logs["stderr"], "what the processes print is there"
    for text in [*plans, *logs.values()]:
        assert password not in text
