"""The plans and reads of the data source, without Spark."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.conf import settings
from django.test import override_settings
from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    InputPartition,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
    Not,
)

from enode_django.eventstore import feed
from enode_django.eventstore.base import StreamRecord
from enode_django.eventstore.positions import BEGINNING, Position
from enode_django.eventstore.postgres import PostgresEventStore
from enode_django.exceptions import ConfigurationError, StoreUnavailable
from enode_django.spark import source
from enode_django.spark.batches import SCHEMA, batch_of, records_of
from enode_django.spark.horizons import horizon_of, positions_of, text_of
from enode_django.spark.options import Options, options_of
from enode_django.spark.source import EventsPartition, EventsReader
from enode_django.testing.event_store_read_contract import history, refusal, stream
from tests.integration.store_sessions import database_alias

pytestmark = pytest.mark.django_db(transaction=True)

MADE = datetime(2026, 3, 1, 12, 30, 15, 123_457, tzinfo=UTC)
MIDDLE = MADE + timedelta(minutes=4)
BOTH_ORDERS = pytest.mark.parametrize("order", ["aggregate", "position"])


@pytest.fixture
def store(transactional_db: None) -> PostgresEventStore:
    return PostgresEventStore()


def histories() -> list[StreamRecord]:
    return [
        record._replace(aggregate_root_type=f"t.{number % 3}", created_at=MADE + timedelta(minutes=number))
        for number in range(9)
        for record in history(f"id{number}", 4)
    ]


def parts(reader: EventsReader) -> list[list[StreamRecord]]:
    return [
        [record for batch in reader.read(partition) for record in records_of(batch)]
        for partition in reader.partitions()
    ]


def read(filters: Sequence[Filter] = (), **options: Any) -> list[StreamRecord]:
    reader = EventsReader(Options(**options))
    assert list(reader.pushFilters(list(filters))) == []
    records = [record for part in parts(reader) for record in part]
    return sorted(records, key=lambda record: (record.aggregate_root_id, record.version or 0))


@BOTH_ORDERS
def test_parts_show_every_row_once(store: PostgresEventStore, order: str) -> None:
    records = []
    for number in range(40):
        some = [*history(f"id{number:02}", 5), refusal(f"id{number:02}", f"refused-{number}")]
        store.append(some)
        records += some
    found = parts(EventsReader(Options(order=order, partitions=4, refusals=True)))
    assert len(found) == (5 if order == "aggregate" else 4)
    assert sorted((r for part in found for r in part), key=lambda r: r.command_id) == sorted(
        records, key=lambda r: r.command_id
    )
    if order == "aggregate":
        for part in found[:-1]:
            assert part == sorted(part, key=lambda record: (record.aggregate_root_id, record.version))


@BOTH_ORDERS
def test_a_read_shows_what_lies_between_two_positions(store: PostgresEventStore, order: str) -> None:
    store.append(history("a", 3))
    after = horizon_of(store)
    middle = [stream("a", 4), *history("b", 3)]
    store.append(middle)
    horizon = horizon_of(store)
    store.append([stream("a", 5), *history("c", 1)])
    assert {record.aggregate_root_id for record in read(horizon=after, order=order)} == {"a"}
    assert read(after=after, horizon=horizon, order=order) == middle
    assert read(after=horizon, horizon=horizon, order=order) == []


@BOTH_ORDERS
def test_position_within_a_transaction_stands_for_the_whole_transaction(store: PostgresEventStore, order: str) -> None:
    records = history("a", 3)
    store.append(records)
    within = {0: store.feed(BEGINNING, limit=9).entries[1].position}
    assert read(after=within, order=order) == records
    assert read(horizon=within, order=order) == []


@BOTH_ORDERS
def test_horizon_can_be_read_at_the_moment_at_which_it_was_taken(store: PostgresEventStore, order: str) -> None:
    records = history("a", 3)
    store.append(records)
    assert read(horizon=horizon_of(store), order=order) == records


@BOTH_ORDERS
def test_what_is_stored_after_planning_is_not_read(store: PostgresEventStore, order: str) -> None:
    store.append(history("a", 3))
    reader = EventsReader(Options(order=order))
    planned = reader.partitions()
    store.append([stream("a", 4), stream("b", 1)])
    batches = [batch for partition in planned for batch in reader.read(partition)]
    assert sum(batch.num_rows for batch in batches) == 3


@BOTH_ORDERS
def test_refusals_come_when_they_are_asked_for(store: PostgresEventStore, order: str) -> None:
    refused = refusal("b", "refused")
    store.append([*history("a", 2), refused])
    assert [record.version for record in read(order=order)] == [1, 2]
    assert read(order=order, refusals=True)[2:] == [refused]


def test_no_refusals_are_read_where_the_version_must_not_be_null(store: PostgresEventStore) -> None:
    store.append([*history("a", 2), refusal("b", "refused")])
    reader = EventsReader(Options(refusals=True))
    assert list(reader.pushFilters([IsNotNull(("version",))])) == []
    assert len(reader.partitions()) == 1


TYPE, ID, CREATED = ("aggregate_root_type",), ("aggregate_root_id",), ("created_at",)


@pytest.mark.parametrize(
    ("filters", "chosen"),
    [
        ([EqualTo(TYPE, "t.1")], lambda r: r.aggregate_root_type == "t.1"),
        ([In(TYPE, ("t.1", None, "t.2"))], lambda r: r.aggregate_root_type in ("t.1", "t.2")),
        ([In(TYPE, ("t.1", "t.2")), In(TYPE, ("t.2", "t.3"))], lambda r: r.aggregate_root_type == "t.2"),
        ([EqualTo(TYPE, "t.1"), EqualTo(TYPE, "t.2")], lambda r: False),
        ([EqualTo(ID, "id3"), EqualTo(TYPE, "t.0")], lambda r: r.aggregate_root_id == "id3"),
        ([EqualTo(ID, "id3"), EqualTo(TYPE, "t.1")], lambda r: False),
        ([In(ID, ("id3", "id8", "none"))], lambda r: r.aggregate_root_id in ("id3", "id8")),
        ([In(ID, ("id3", "id8")), In(ID, ("id4",))], lambda r: False),
        ([In(ID, (None,))], lambda r: False),
        ([EqualTo(CREATED, MIDDLE)], lambda r: r.created_at == MIDDLE),
        ([GreaterThan(CREATED, MIDDLE)], lambda r: r.created_at > MIDDLE),
        ([GreaterThanOrEqual(CREATED, MIDDLE)], lambda r: r.created_at >= MIDDLE),
        ([LessThan(CREATED, MIDDLE)], lambda r: r.created_at < MIDDLE),
        ([LessThanOrEqual(CREATED, MIDDLE), GreaterThan(CREATED, MADE)], lambda r: MADE < r.created_at <= MIDDLE),
        ([GreaterThanOrEqual(CREATED, MIDDLE), GreaterThan(CREATED, MADE)], lambda r: r.created_at >= MIDDLE),
        ([LessThan(CREATED, MADE + timedelta(minutes=8)), LessThan(CREATED, MIDDLE)], lambda r: r.created_at < MIDDLE),
    ],
)
def test_conditions_are_left_to_the_database(store: PostgresEventStore, filters: Sequence[Filter], chosen: Any) -> None:
    records = histories()
    store.append(records)
    assert read(filters) == [record for record in records if chosen(record)]


def test_many_ids_are_read_in_several_parts(store: PostgresEventStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source, "IDS_PER_PARTITION", 2)
    store.append(histories())
    reader = EventsReader(Options())
    assert list(reader.pushFilters([In(ID, ("id7", "id1", "none", "id3", "id5"))])) == []
    assert [[record.aggregate_root_id for record in part[::4]] for part in parts(reader)] == [
        ["id1", "id3"], ["id5", "id7"], [],
    ]  # fmt: skip


@pytest.mark.parametrize(
    "condition",
    [
        EqualTo(("version",), 3),
        EqualTo(("command_id",), "a"),
        EqualNullSafe(TYPE, "t.1"),
        Not(EqualTo(TYPE, "t.1")),
        In(("version",), (1, 2)),
        In(("command_type",), ("a", "b")),
        GreaterThan(ID, "a"),
        EqualTo(CREATED, datetime(2026, 3, 1)),
        GreaterThan(CREATED, datetime.max.replace(tzinfo=UTC)),
    ],
)
def test_other_conditions_are_spark_s(condition: Filter) -> None:
    reader = EventsReader(Options())
    assert list(reader.pushFilters([condition, EqualTo(TYPE, "t.1")])) == [condition]


def test_by_position_all_conditions_but_that_on_the_type_are_spark_s() -> None:
    conditions = [EqualTo(TYPE, "t.1"), IsNotNull(("version",)), EqualTo(("aggregate_root_id",), "id1")]
    assert list(EventsReader(Options(order="position")).pushFilters(conditions)) == conditions[1:]


def test_a_plan_without_parts_reads_nothing() -> None:
    assert list(EventsReader(Options()).read(InputPartition(None))) == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"orders": "position"}, "no option 'orders'; it has after, horizon"),
        ({"order": "id"}, "'order' of enode_events is 'id': it must be 'aggregate' or 'position'"),
        ({"refusals": "1"}, "must be 'true' or 'false'"),
        ({"partitions": "0"}, "must be a whole number above 0"),
        ({"horizon": "now"}, "gives no positions of shards"),
        ({"horizon": "[1]"}, "gives no positions of shards"),
        ({"after": '{"0": "5"}'}, "'5' is not a position"),
    ],
)
def test_options_that_cannot_be_used_are_named(options: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        options_of(options)


@pytest.mark.parametrize(
    ("positions", "message"),
    [
        ({}, "says nothing of shard 0"),
        ({0: Position(0, 2**62)}, "lies ahead of shard 0"),
        ({0: Position(0, 1), 7: Position(0, 1)}, r"has no shards \[7\]; it has \[0\]"),
    ],
)
def test_a_horizon_of_another_store_is_refused(
    store: PostgresEventStore, positions: dict[int, Position], message: str
) -> None:
    with pytest.raises(ConfigurationError, match=message):
        EventsReader(Options(horizon=positions)).partitions()


def test_a_feed_that_ends_below_the_horizon_is_no_end(
    store: PostgresEventStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A replica that lags, say."""
    monkeypatch.setattr("enode_django.eventstore.scanning.TRIES", 0)
    store.append(history("a", 3))
    reader = EventsReader(Options(order="position", partitions=1))
    (planned,) = reader.partitions()
    assert isinstance(planned, source.EventsPartition)
    planned.scan = planned.scan._replace(horizon=Position(0, 2**62))
    with pytest.raises(StoreUnavailable, match="is to be read up to"):
        list(reader.read(planned))


def test_pages_of_large_rows_are_short(store: PostgresEventStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source, "CHUNK_BYTES", 10_000)
    monkeypatch.setattr(source, "_FIRST_PAGE", 4)
    for number in range(1, 25):
        store.append([stream("a", number, events=bytes(10 if number < 13 else 4_000))])
    reader = EventsReader(Options(order="position", partitions=1))
    (partition,) = reader.partitions()
    sizes = [batch.num_rows for batch in reader.read(partition)]
    assert sizes[:2] == [4, 8]
    assert sizes[3:] == [2, 2, 2, 2, 2, 2][: len(sizes) - 3]
    assert sum(sizes) == 24


def test_batches_and_records_are_the_same() -> None:
    records = [*histories(), refusal("r", "refused")]
    batch = batch_of(3, records)
    assert batch.schema == SCHEMA
    assert batch.column("shard").to_pylist() == [3] * len(records)
    assert list(records_of(batch)) == records
    assert list(records_of(batch.slice(3, 2))) == records[3:5]
    assert list(records_of(batch.slice(0, 0))) == []


def test_horizons_are_read_from_what_was_written(store: PostgresEventStore) -> None:
    horizon = {0: Position(0, 12), 3: Position(7, 5, 9)}
    assert positions_of(text_of(horizon)) == horizon
    before = store.position()
    assert json.loads(text_of(horizon_of(store))).keys() == {"0"}
    assert before <= horizon_of(store)[0] <= store.position()


def test_large_transactions_are_read_in_parts(store: PostgresEventStore) -> None:
    records = [*history("a", 10), refusal("a", "refused"), *history("m", 1_000)]
    store.append(records)
    later = [*history("y", 300), *history("z", 10)]
    for some in (later[:300], later[300:]):
        store.append(some)
    found = parts(EventsReader(Options(order="position", partitions=6, refusals=True)))
    assert len(found) == 6
    assert max(map(len, found)) < 400
    assert [record for part in found for record in part] == [*records, *later]


def test_refusals_are_read_in_parts(store: PostgresEventStore) -> None:
    refusals = [refusal("a", f"c{n}")._replace(created_at=MADE + timedelta(minutes=n)) for n in range(30)]
    store.append(refusals)
    store.append(history("b", 3))
    found = parts(EventsReader(Options(partitions=4, refusals=True)))
    assert [len(part) for part in found] == [3, 7, 8, 7, 8]
    assert [record for part in found[1:] for record in part] == refusals


@BOTH_ORDERS
def test_only_the_columns_that_are_wanted_are_made(store: PostgresEventStore, order: str) -> None:
    store.append([*histories(), refusal("id1", "refused")])
    reader = EventsReader(Options(order=order, refusals=True), ["command_type", "shard"])
    assert list(reader.pushFilters([In(("aggregate_root_type",), ("t.1",))])) == []
    batches = [batch for partition in reader.partitions() for batch in reader.read(partition)]
    assert {tuple(batch.schema.names) for batch in batches} == {("command_type", "shard")}
    assert sum(batch.num_rows for batch in batches) == 12
    contents = [partition.scan.contents for partition in reader.partitions() if isinstance(partition, EventsPartition)]
    assert not any(contents)


def test_a_partition_remembers_how_densely_its_rows_lie(
    store: PostgresEventStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the feed would halve its window again for each page."""
    for number in range(12):
        store.append(history(f"id{number}", 1_000))
    looks = list[int]()
    original = feed._sorted

    def counted(*arguments: Any, **options: Any) -> Any:
        looks.append(1)
        return original(*arguments, **options)

    monkeypatch.setattr(feed, "_sorted", counted)
    monkeypatch.setattr(source, "_LARGEST_PAGE", 100)
    (found,) = parts(EventsReader(Options(order="position", partitions=1)))
    assert len(found) == 12_000
    assert len(looks) < 100


def test_rows_are_read_from_the_replica_that_the_settings_name(store: PostgresEventStore) -> None:
    store.append(histories())
    readonly = {"OPTIONS": {"options": "-c default_transaction_read_only=on", "application_name": "the replica"}}
    spark = {"SPARK": {"REPLICAS": {"default": "replica"}}}
    with database_alias("replica", **readonly), override_settings(ENODE={**settings.ENODE, **spark}):
        reader = EventsReader(Options(partitions=2))
        planned = reader.partitions()
        assert {partition.scan.alias for partition in planned if isinstance(partition, EventsPartition)} == {"replica"}
        rows = sum(batch.num_rows for partition in planned for batch in reader.read(partition))
    assert rows == len(histories())
