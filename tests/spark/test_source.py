"""The event store as a DataFrame, read by Spark's own processes."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pyarrow as pa
import pytest
from pyspark import TaskContext
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.functions import spark_partition_id

from enode_django.eventstore.base import StreamRecord
from enode_django.eventstore.positions import Position
from enode_django.eventstore.postgres import PostgresEventStore
from enode_django.spark.batches import SCHEMA, records_of
from enode_django.spark.horizons import horizon_of, text_of
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


@pytest.mark.parametrize("order", ["aggregate", "position"])
def test_a_read_shows_what_lies_between_two_positions(
    spark: SparkSession, store: PostgresEventStore, order: str
) -> None:
    store.append(history("a", 3))
    after = horizon_of(store)
    middle = [*history("b", 3), stream("a", 4)]
    store.append(middle)
    horizon = horizon_of(store)
    store.append([stream("a", 5), *history("c", 1)])
    assert {r.aggregate_root_id for r in collected(events(spark, horizon=after, order=order))} == {"a"}
    assert collected(events(spark, after=after, horizon=horizon, order=order)) == sorted(middle)
    assert collected(events(spark, after=horizon, horizon=horizon, order=order)) == []


def test_a_frame_shows_the_same_rows_whatever_is_stored_later(spark: SparkSession, store: PostgresEventStore) -> None:
    store.append(history("a", 3))
    frame = events(spark)
    store.append([stream("a", 4)])
    assert frame.count() == 3
    assert spark.read.format("enode_events").load().count() == 4


@pytest.mark.parametrize("order", ["aggregate", "position"])
def test_refusals_come_when_they_are_asked_for(spark: SparkSession, store: PostgresEventStore, order: str) -> None:
    refused = refusal("b", "refused")
    store.append([*history("a", 2), refused])
    assert [r.version for r in collected(events(spark, order=order))] == [1, 2]
    frame = events(spark, order=order, refusals=True)
    assert collected(frame)[2:] == [refused]
    assert collected(frame.where("version IS NOT NULL")) == collected(events(spark))
    assert collected(frame.where("version IS NULL")) == [refused]


@pytest.mark.parametrize(
    ("condition", "chosen"),
    [
        ("aggregate_root_type = 't.1'", lambda r: r.aggregate_root_type == "t.1"),
        ("aggregate_root_type IN ('t.1', 't.2', NULL)", lambda r: r.aggregate_root_type in ("t.1", "t.2")),
        ("aggregate_root_id = 'id3' AND aggregate_root_type = 't.0'", lambda r: r.aggregate_root_id == "id3"),
        ("aggregate_root_id = 'id3' AND aggregate_root_type = 't.1'", lambda r: False),
        ("aggregate_root_id IN ('id3', 'id8', 'none')", lambda r: r.aggregate_root_id in ("id3", "id8")),
        ("created_at = '{time}'", lambda r: r.aggregate_root_id == "id4"),
        ("created_at > '{time}'", lambda r: r.aggregate_root_id > "id4"),
        ("created_at >= '{time}'", lambda r: r.aggregate_root_id >= "id4"),
        ("created_at < '{time}'", lambda r: r.aggregate_root_id < "id4"),
        ("created_at <= '{time}' AND version IS NOT NULL", lambda r: r.aggregate_root_id <= "id4"),
    ],
)
def test_conditions_on_type_id_and_time_are_left_to_the_database(
    spark: SparkSession, store: PostgresEventStore, condition: str, chosen: Any
) -> None:
    records = histories()
    store.append(records)
    time = (MADE + timedelta(minutes=4)).isoformat()
    frame = events(spark).where(condition.format(time=time))
    assert "Filter (" not in plan_of(frame)
    assert collected(frame) == [record for record in records if chosen(record)]


def test_other_conditions_are_spark_s(spark: SparkSession, store: PostgresEventStore) -> None:
    records = histories()
    store.append(records)
    frame = events(spark, types=["t.1"]).where("version > 2 AND aggregate_root_id <> 'id4'")
    assert "Filter (" in plan_of(frame)
    assert {(r.aggregate_root_id, r.version) for r in collected(frame)} == {
        ("id1", 3), ("id1", 4), ("id7", 3), ("id7", 4),
    }  # fmt: skip
    by_position = events(spark, types=["t.1"], order="position")
    assert collected(by_position) == [r for r in records if r.aggregate_root_type == "t.1"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"orders": "position"}, "no option 'orders'; it has after, horizon"),
        ({"order": "id"}, "'order' of enode_events is 'id': it must be 'aggregate' or 'position'"),
        ({"refusals": "1"}, "must be 'true' or 'false'"),
        ({"partitions": "0"}, "must be a whole number above 0"),
        ({"horizon": "now"}, "gives no positions of shards"),
        ({"after": '{"0": "5"}'}, "'5' is no position"),
    ],
)
def test_options_that_cannot_be_used_are_named(
    spark: SparkSession, store: PostgresEventStore, options: dict[str, str], message: str
) -> None:
    with pytest.raises(PySparkException, match=message):
        spark.read.format("enode_events").options(**options).load()


@pytest.mark.parametrize(
    ("positions", "message"),
    [
        ({}, "says nothing of shard 0"),
        ({0: Position(0, 2**62)}, "lies ahead of shard 0"),
        ({0: Position(0, 1), 7: Position(0, 1)}, r"has no shards \[7\]; it has \[0\]"),
    ],
)
def test_a_horizon_of_another_store_is_refused(
    spark: SparkSession, store: PostgresEventStore, positions: dict[int, Position], message: str
) -> None:
    with pytest.raises(PySparkException, match=message):
        spark.read.format("enode_events").option("horizon", text_of(positions)).load().count()


def test_jobs_get_the_records_back(spark: SparkSession, store: PostgresEventStore) -> None:
    records = [*histories(), refusal("id1", "refused")]
    store.append(records)

    def shown(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield pa.RecordBatch.from_pydict({"text": [repr(record) for record in records_of(batch)]})

    frame = events(spark, refusals=True).mapInArrow(shown, "text string")
    assert {row.text for row in frame.collect()} == {repr(record) for record in records}


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


def test_no_password_is_in_a_plan_a_log_or_the_event_log(
    spark: SparkSession, store: PostgresEventStore, spark_output: Path
) -> None:
    password = unquote(urlsplit(os.environ["DATABASE_URL"]).password or "")
    if not password:
        pytest.skip("the database has no password")
    store.append(histories())
    frame = events(spark, types=["t.1"], refusals=True)
    assert frame.count() == 12
    with pytest.raises(PySparkException) as caught:
        frame.mapInArrow(lambda batches: 1 / 0, "version long").collect()  # type: ignore[arg-type, return-value]
    plans = [plan_of(frame), str(frame._jdf.queryExecution().toString()), str(caught.value)]
    logs = [path.read_text(errors="replace") for path in [*spark_output.rglob("*")] if path.is_file()]
    assert any("SparkListenerSQLExecutionStart" in log for log in logs), "the event log is there"
    assert any("DAGScheduler" in log for log in logs), "so is what the processes print"
    host = str(urlsplit(os.environ["DATABASE_URL"]).port)
    for text in [*plans, *logs]:
        assert password not in text
        assert f":{host}/" not in text


def test_horizons_are_read_from_what_was_written(store: PostgresEventStore) -> None:
    assert json.loads(text_of(horizon_of(store))) == {"0": str(store.position())}
