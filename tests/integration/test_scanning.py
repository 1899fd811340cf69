"""Reading a shard in the order of aggregates."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any

import pytest
from django.db import connection, transaction

from enode_django.concurrency import stopping
from enode_django.eventstore import dividing, scanning, statements
from enode_django.eventstore.base import StreamRecord
from enode_django.eventstore.dividing import bounds, position_bounds, refusal_bounds
from enode_django.eventstore.fetched import decoded
from enode_django.eventstore.positions import BEGINNING, Position
from enode_django.eventstore.postgres import PostgresEventStore
from enode_django.eventstore.rows import execute, record_of
from enode_django.eventstore.scanning import RAW_TIMES_BEGIN, Scan, raw_time, scan, scan_raw, scan_records
from enode_django.exceptions import StoreFailing, StoreUnavailable
from enode_django.testing.event_store_read_contract import history, refusal, stream
from tests.integration.postgres_proxy import PostgresProxy
from tests.integration.store_sessions import bare_session, database_alias, insert
from tests.integration.test_postgres_store_faults import client_sends

pytestmark = pytest.mark.django_db(transaction=True)

EVERYTHING = Scan("default")
MADE = datetime(2026, 3, 1, 12, tzinfo=UTC)


@pytest.fixture
def store(transactional_db: None) -> PostgresEventStore:
    return PostgresEventStore()


@pytest.fixture
def proxy(transactional_db: None) -> Iterator[PostgresProxy]:
    settings = connection.settings_dict
    with (
        PostgresProxy(settings["HOST"] or "127.0.0.1", int(settings["PORT"] or 5432)) as proxy,
        database_alias(
            "proxied",
            HOST="127.0.0.1",
            PORT=str(proxy.port),
            OPTIONS={"sslmode": "disable", "gssencmode": "disable"},
        ),
    ):
        yield proxy


def read(wanted: Scan = EVERYTHING, at_once: int = 3) -> list[StreamRecord]:
    chunks = list(scan(wanted, at_once=at_once))
    assert all(0 < len(chunk) <= at_once for chunk in chunks)
    return [record_of(row) for chunk in chunks for row in chunk]


def in_order(records: Sequence[StreamRecord]) -> list[StreamRecord]:
    return sorted(records, key=lambda record: (record.aggregate_root_id.encode(), record.version))


def histories() -> list[StreamRecord]:
    return [record for id in ("b", "a", "Z", "é", "a-2") for record in history(id, 4)]


def test_streams_come_by_aggregate_and_version_whatever_order_they_were_stored_in(store: PostgresEventStore) -> None:
    records = histories()
    store.append([*records, refusal("a", "refused")])
    for at_once in (1, 3, 4, 20, 21, 1_000):
        assert read(at_once=at_once) == in_order(records)


@pytest.mark.parametrize("size", [10, 3_000_000])
def test_streams_are_read_as_corrected(store: PostgresEventStore, size: int) -> None:
    """Small and large ones; without contents there is nothing to correct."""
    records = in_order([one._replace(events=b"e" * 10) for one in histories()])
    store.append(records)
    assert read(at_once=20) == records
    store.correct("a", 3, b"c" * size, by="ann", reason="a typing error", last=0)
    store.correct("b", 1, b"c", by="ann", reason="a typing error", last=0)
    better = {("a", 3): b"c" * size, ("b", 1): b"c"}
    expected = [
        one._replace(events=better.get((one.aggregate_root_id, one.version or 0), one.events)) for one in records
    ]
    for at_once in (1, 3, 20, 1_000):
        assert read(at_once=at_once) == expected
    assert read(EVERYTHING._replace(ids=["a"])) == [one for one in expected if one.aggregate_root_id == "a"]
    assert {one.events for one in read(EVERYTHING._replace(contents=False))} == {b""}
    refused = refusal("a")
    store.append([refused])
    assert read(EVERYTHING._replace(refusals=True)) == [refused]


def test_a_large_stream_may_be_corrected_to_a_small_one(store: PostgresEventStore) -> None:
    records = [one._replace(events=b"e" * 3_000_000) for one in history("a", 4)]
    store.append(records)
    made = [store.correct("a", version, b"c", by="ann", reason="a typing error", last=0) for version in (1, 2, 3)]
    assert len({one.number for one in made}) == 3
    assert [len(one.events) for one in read(at_once=1_000)] == [1, 1, 1, 3_000_000]


def test_ranges_laid_end_to_end_show_every_aggregate_whole_and_once(store: PostgresEventStore) -> None:
    records = histories()
    store.append(records)
    edges = ["", "Z", "a", "a-2", "b", None]
    parts = [read(EVERYTHING._replace(low=low or "", high=high)) for low, high in pairwise(edges)]
    assert [{record.aggregate_root_id for record in part} for part in parts] == [
        set(),
        {"Z"},
        {"a"},
        {"a-2"},
        {"b", "é"},
    ]
    assert [record for part in parts for record in part] == in_order(records)


def test_nothing_at_or_above_the_horizon_is_seen(store: PostgresEventStore) -> None:
    before = histories()
    store.append(before)
    horizon = store.position()
    store.append([stream("a", 5), stream("new", 1)])
    assert read(EVERYTHING._replace(horizon=horizon)) == in_order(before)
    assert [r.aggregate_root_id for r in read(EVERYTHING._replace(after=horizon))] == ["a", "new"]
    assert read(EVERYTHING._replace(after=horizon, horizon=horizon)) == []
    assert read(EVERYTHING._replace(horizon=BEGINNING)) == []


def test_a_transaction_that_is_open_at_the_horizon_stays_out_after_its_commit(store: PostgresEventStore) -> None:
    store.append(history("a", 2))
    with bare_session() as session:
        insert(session, stream("b", 1))
        horizon = store.position()
        chunks = scan(EVERYTHING._replace(horizon=horizon), at_once=1)
        first = next(chunks)
        session.commit()
        store.append([stream("a", 3)])
    rest = [row for chunk in chunks for row in chunk]
    assert [row[:2] for row in [*first, *rest]] == [("a", 1), ("a", 2)]


def test_rows_stored_in_a_generation_after_the_horizon_are_above_it(store: PostgresEventStore) -> None:
    store.append(history("a", 2))
    horizon = store.position()
    store.begin_generation(horizon.generation)
    store.append(history("b", 2))
    assert [row.aggregate_root_id for row in read(EVERYTHING._replace(horizon=horizon))] == ["a", "a"]
    assert [row.aggregate_root_id for row in read(EVERYTHING._replace(after=horizon))] == ["b", "b"]


def test_rows_can_be_chosen_by_type_id_and_time(store: PostgresEventStore) -> None:
    records = [
        record._replace(aggregate_root_type=f"t.{number % 2}", created_at=MADE + timedelta(minutes=number))
        for number, record in enumerate(in_order(histories()))
    ]
    store.append(records)
    later, latest = MADE + timedelta(minutes=3), MADE + timedelta(minutes=9)
    assert read(EVERYTHING._replace(types=["t.1"])) == records[1::2]
    assert read(EVERYTHING._replace(types=["t.1", "t.0", "\0"])) == records
    assert read(EVERYTHING._replace(created_from=later, created_before=latest)) == records[3:9]
    chosen = [record for record in records if record.aggregate_root_id in ("a", "é")]
    assert read(EVERYTHING._replace(ids=["é", "a", "none", "a", "\0", "x" * 300])) == chosen
    assert {row.aggregate_root_id for row in read(EVERYTHING._replace(ids=["é", "a", "Z"], low="a", high="é"))} == {"a"}


def test_refusals_come_in_a_scan_of_their_own(store: PostgresEventStore) -> None:
    refused = [
        refusal(f"a{number % 3}", f"command-{number}")._replace(created_at=MADE + timedelta(minutes=number // 4))
        for number in range(10)
    ]
    store.append([*refused, *history("a0", 2)])
    wanted = EVERYTHING._replace(refusals=True)
    for raw_times in (False, True):
        chunks = list(scan(wanted, at_once=3, raw_times=raw_times))
        assert sorted(row[2] for chunk in chunks for row in chunk) == sorted(record.command_id for record in refused)
    assert sorted(read(wanted)) == sorted(refused)
    assert sorted(read(wanted._replace(created_from=MADE + timedelta(minutes=2)))) == sorted(refused[8:])
    assert sorted(read(wanted._replace(ids=["a1"], low="a"))) == sorted(refused[1::3])
    assert read(wanted._replace(low="a0", high="a1")) == sorted(refused[::3], key=lambda record: record.created_at)


def test_raw_times_count_microseconds(store: PostgresEventStore) -> None:
    made = datetime(2026, 3, 1, 12, 30, 15, 123_457, tzinfo=UTC)
    store.append([stream("a", 1)._replace(created_at=made)])
    ((row,),) = scan(EVERYTHING, raw_times=True)
    assert RAW_TIMES_BEGIN + timedelta(microseconds=row[5]) == made


def test_raw_rows_make_the_records_of_the_scan(store: PostgresEventStore) -> None:
    store.append([*histories(), refusal("a", "refused")])
    wanted = EVERYTHING._replace(low="a", high="b")
    assert [decoded(row, raw_time) for row in scan_raw(wanted)] == list(scan_records(wanted)) == read(wanted)


def test_chunks_of_more_rows_have_more_bytes(store: PostgresEventStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scanning, "CHUNK_BYTES", 10_000)
    monkeypatch.setattr(scanning, "AT_ONCE", 100)
    store.append([stream("a", version, events=bytes(9_000)) for version in range(1, 8)])
    lengths = {at_once: [len(chunk) for chunk in scan(EVERYTHING, at_once=at_once)] for at_once in (10, 100, 200)}
    assert lengths == {10: [2, 2, 2, 1], 100: [2, 2, 2, 1], 200: [3, 3, 1]}


def test_a_chunk_of_large_rows_is_short(store: PostgresEventStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scanning, "CHUNK_BYTES", 10_000)
    sizes = [10] * 30 + [9_000] * 5 + [30_000] * 2 + [10] * 3
    records = [stream("a", number, events=bytes(size)) for number, size in enumerate(sizes, 1)]
    store.append(records)
    chunks = list(scan(EVERYTHING, at_once=100))
    assert [len(chunk) for chunk in chunks] == [30, 2, 2, 2, 1, 3]
    assert [row[1] for chunk in chunks for row in chunk] == list(range(1, 41))


def test_a_history_of_many_chunks_is_read_whole(store: PostgresEventStore) -> None:
    store.append(history("long", 2_000))
    store.append([*history("l", 2), *history("longer", 2)])
    assert [row.version for row in read(at_once=300)] == [1, 2, *range(1, 2_001), 1, 2]


@pytest.mark.parametrize("skip", [0, 1])
def test_a_connection_lost_between_chunks_is_made_again(
    proxy: PostgresProxy, store: PostgresEventStore, skip: int
) -> None:
    records = histories()
    store.append(records)
    proxy.lose_at(client_sends(b"P", b"enode_django_eventstream WHERE", skip=skip))
    assert read(Scan("proxied")) == in_order(records)
    assert proxy.lost.is_set()


def test_a_database_that_stays_away_is_not_waited_for_for_ever(
    store: PostgresEventStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scanning, "TRIES", 1)
    with database_alias("away", HOST="127.0.0.1", PORT="1"), pytest.raises(StoreUnavailable):
        read(Scan("away"))


class Unpaused:
    def check_once(self) -> None:
        pass

    def pause(self, seconds: float) -> None:
        raise AssertionError(f"it waits for {seconds} s")


def test_a_missing_table_is_told_at_once(store: PostgresEventStore) -> None:
    """No retry brings it before somebody migrates."""
    with connection.cursor() as cursor:
        cursor.execute(f"ALTER TABLE {statements.TABLE} RENAME TO away")
        try:
            with stopping.stoppable(Unpaused()), pytest.raises(StoreFailing, match=r"run manage\.py migrate"):
                read()
        finally:
            cursor.execute(f"ALTER TABLE away RENAME TO {statements.TABLE}")


def test_a_database_that_has_not_come_to_the_horizon_is_waited_for(
    store: PostgresEventStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    records = histories()
    store.append(records)
    reached = store.position()
    ahead = reached._replace(transaction_id=reached.transaction_id + 1)
    late = stream("new", 1)
    waits: list[float] = []

    def caught_up_meanwhile(seconds: float) -> None:
        waits.append(seconds)
        store.append([late])

    monkeypatch.setattr(scanning.stopping, "pause", caught_up_meanwhile)
    assert read(EVERYTHING._replace(horizon=ahead)) == in_order([*records, late])
    assert len(waits) == 1


def test_between_chunks_no_transaction_is_open(store: PostgresEventStore) -> None:
    store.append(histories())
    chunks = scan(EVERYTHING, at_once=3)
    next(chunks)
    with bare_session() as session:
        query = "SELECT count(*) FROM pg_stat_activity WHERE backend_xmin IS NOT NULL AND pid = %s"
        raw = connection.connection
        assert raw is not None
        assert session.execute(query, [raw.info.backend_pid]).fetchone() == (0,)


def test_inside_an_atomic_block_nothing_is_tried_again(proxy: PostgresProxy, store: PostgresEventStore) -> None:
    store.append(histories())
    proxy.lose_at(client_sends(b"P", b"enode_django_eventstream WHERE"))
    with pytest.raises(StoreUnavailable), transaction.atomic("proxied"):
        read(Scan("proxied"))


def test_the_index_gives_the_order_even_before_the_table_is_analyzed(
    store: PostgresEventStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.append([record for number in range(300) for record in history(f"id{number}", 3)])
    plans: list[str] = []

    def explained(connection: Any, statement: str, parameters: Any, loaders: Any) -> list[tuple[Any, ...]]:
        plans.append("\n".join(line for (line,) in execute(connection, f"EXPLAIN {statement}", parameters)))
        return execute(connection, statement, parameters)

    monkeypatch.setattr(scanning, "execute_long", explained)
    wanted = EVERYTHING._replace(high="z", horizon=store.position(), after=BEGINNING, types=["t"], created_from=MADE)
    for one in (EVERYTHING, wanted, wanted._replace(ids=["id1"])):
        list(scan(one, at_once=500))
    assert plans
    for plan in plans:
        assert re.search(r"Limit .*\n +->  Index Scan using enode_stream_version", plan), plan


def test_bounds_divide_the_streams_about_evenly(store: PostgresEventStore) -> None:
    store.append([record for number in range(400) for record in history(f"id{number:03}", 2)])
    edges = bounds("default", 4)
    assert edges == ["id100", "id200", "id300"]


def test_one_aggregate_with_most_streams_is_not_divided(store: PostgresEventStore) -> None:
    assert bounds("default", 8) == []
    store.append([*history("a", 5), *history("m", 500), *history("z", 5)])
    assert bounds("default", 8) == ["m"]
    assert bounds("default", 1) == []


def test_bounds_of_a_large_table_come_from_a_sample(store: PostgresEventStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dividing, "SAMPLED_PAGES", 10)
    store.append([record for number in range(3_000) for record in history(f"id{number:04}", 2)])
    edges = bounds("default", 3)
    counts = [
        len(read(EVERYTHING._replace(low=low, high=high), at_once=6_000))
        for low, high in zip(["", *edges], [*edges, None], strict=True)
    ]
    assert len(edges) <= 2
    assert sum(counts) == 6_000


def test_positions_divide_what_lies_between_two_of_them(store: PostgresEventStore) -> None:
    places: list[Position] = []
    for number in range(8):
        if number == 5:
            store.begin_generation(store.position().generation)
        places.append(store.position())
        store.append(history(f"id{number}", 4))
    assert position_bounds("default", 4, BEGINNING, store.position()) == [places[2], places[4], places[6]]
    assert position_bounds("default", 8, places[3], places[5]) == [places[4]]
    assert position_bounds("default", 7, places[3], places[4]) == []


def test_a_large_transaction_is_divided_by_its_rows(store: PostgresEventStore) -> None:
    store.append(history("a", 10))
    begin = store.position()
    store.append(history("m", 1_000))
    store.append(history("z", 10))
    found = position_bounds("default", 4, BEGINNING, store.position())
    assert [position.transaction for position in found] == [begin] * 3
    assert 0 < found[0].sequence < found[1].sequence < found[2].sequence


def test_refusals_are_divided_by_their_times(store: PostgresEventStore) -> None:
    assert refusal_bounds("default", 4) == []
    refusals = [refusal("a", f"c{n}")._replace(created_at=MADE + timedelta(minutes=n)) for n in range(8)]
    store.append([*refusals, *history("a", 8)])
    assert refusal_bounds("default", 8) == [MADE + timedelta(minutes=n) for n in (2, 4, 6)]
    assert refusal_bounds("default", 1) == []


def test_without_contents_all_else_is_the_same(store: PostgresEventStore) -> None:
    store.append([*history("a", 30), stream("b", 1, events=bytes(100_000)), refusal("b", "refused")])
    for wanted in (EVERYTHING, EVERYTHING._replace(refusals=True)):
        expected = [record._replace(events=b"", metadata=b"") for record in read(wanted)]
        assert read(wanted._replace(contents=False), at_once=7) == expected
