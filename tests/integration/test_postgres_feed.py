"""The feed of a Postgres store: beside writers that overtake each other, on a large table, and when it is held back."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from django.db import connection

from enode_django.eventstore import feed, statements
from enode_django.eventstore.base import FeedEntry
from enode_django.eventstore.feed import MORE_CANDIDATES, holding_back
from enode_django.eventstore.positions import BEGINNING, Position
from enode_django.eventstore.postgres import PostgresEventStore
from enode_django.eventstore.rows import by_index
from enode_django.testing.event_store_feed_contract import read_on
from enode_django.testing.event_store_read_contract import stream
from tests.integration.store_sessions import bare_session, insert, wait_until
from tests.integration.store_writers import Writers

pytestmark = pytest.mark.django_db(transaction=True)

ALL = 2**62
AT_ONCE = timedelta(0)


@pytest.fixture
def store() -> PostgresEventStore:
    return PostgresEventStore()


def roots(entries: list[FeedEntry]) -> list[str]:
    return [record.aggregate_root_id for _, record in entries]


# Beside writers


def test_a_row_that_is_committed_late_is_not_skipped(store: PostgresEventStore) -> None:
    """The picture in docs/discussions/ordering.md: the lower sequence appears last."""
    with bare_session() as slow, bare_session() as quick:
        insert(slow, stream("slow", 1))
        insert(quick, stream("quick", 1))
        quick.commit()
        entries, at = read_on(store, BEGINNING, limit=10)
        assert entries == []
        slow.commit()
    later: list[FeedEntry] = []

    def is_complete() -> bool:
        nonlocal at
        found, at = read_on(store, at, limit=10)
        later.extend(found)
        return len(later) == 2

    wait_until(is_complete)
    assert roots(later) == ["slow", "quick"]


STORED, ROLLED_BACK, PAGES = 400, 21, 11
"""The minimum before the writers end: rows, transactions without an effect, pages with rows. A generation's share of
the rows exceeds the number that eight writers can have committed without having counted them yet."""


def _stored() -> list[tuple[Position, str]]:
    """Return the position and the aggregate of each row in the order of the tables, which the feed has to return."""
    with connection.cursor() as cursor:
        cursor.execute(f"""
            SELECT coalesce((SELECT max(generation) FROM {statements.GENERATIONS} WHERE after_sequence < sequence), 0),
                   transaction_id::text::bigint, sequence, aggregate_root_id
            FROM {statements.TABLE} ORDER BY 1, 2, 3
        """)
        return [(Position(*place), root_id) for *place, root_id in cursor.fetchall()]


class _Reader:
    """Reads beside writers, page by page, and begins generations."""

    def __init__(self, store: PostgresEventStore, limit: int, generations: int) -> None:
        self._store = store
        self._limit = limit
        self._generations = generations
        self._at = BEGINNING
        self._begun_after = [0]
        self._pages_with_rows = 0
        self.seen: list[FeedEntry] = []

    def has_seen_enough(self, writers: Writers) -> bool:
        """Read a page, and begin the next generation if this one has its part of the rows."""
        page = self._store.feed(self._at, limit=self._limit)
        self._pages_with_rows += bool(page.entries)
        self.seen += page.entries
        self._at = page.position
        if writers.committed_rows - self._begun_after[-1] < STORED // self._generations:
            return False
        if len(self._begun_after) < self._generations:
            self._store.begin_generation(self._store.position().generation)
            self._begun_after.append(writers.committed_rows)
            return False
        return self._pages_with_rows >= PAGES and writers.rolled_back >= ROLLED_BACK

    def read_the_rest(self) -> None:
        """Wait until all that the writers stored is settled, and read it."""
        last, _ = _stored()[-1]
        wait_until(lambda: self._store.position() > last)
        self.seen += read_on(self._store, self._at, limit=self._limit)[0]


@pytest.mark.parametrize("generations", [1, 4], ids=["one generation", "four generations"])
@pytest.mark.parametrize("limit", [1, 7, 1_000])
def test_readers_beside_eight_writers_see_each_committed_row_once_in_one_order(
    store: PostgresEventStore, limit: int, generations: int
) -> None:
    reader = _Reader(store, limit, generations)
    with Writers(limit, writers=8) as writers:
        wait_until(lambda: reader.has_seen_enough(writers))
    reader.read_the_rest()
    given, stored = [(position, record.aggregate_root_id) for position, record in reader.seen], _stored()
    assert [*(Counter(stored) - Counter(given))] == [], "these rows were left out"
    assert given == stored
    assert Counter(roots(reader.seen)) == writers.committed
    assert len({position.generation for position, _ in reader.seen}) == generations
    assert read_on(store, BEGINNING, limit=100)[0] == reader.seen


# Costs

ROWS = 200_000
LARGE = 50_000


@pytest.fixture
def _large_table(transactional_db: None) -> Iterator[None]:
    """``ROWS`` as if 100 at a time had been stored, but every eighth row 50 transactions late, and then ``LARGE`` in
    one transaction; never seen by ANALYZE. To the store they come from another cluster, and so are settled."""
    with connection.cursor() as cursor:
        cursor.execute(f"ALTER TABLE {statements.TABLE} SET (autovacuum_enabled = off)")
        try:
            for rows, transaction in [
                (ROWS, f"{2**33} + n / 100 + CASE n % 8 WHEN 0 THEN 50 ELSE 0 END"),
                (LARGE, "7"),
            ]:
                cursor.execute(f"""
                    INSERT INTO {statements.TABLE} ({", ".join(stream("", 1)._fields)}, transaction_id)
                    SELECT 'root-' || n || '-{rows}', 1, 'command-' || n, 'bank.BankAccount', 'bank.Deposit', now(),
                           convert_to(repeat('e', 200), 'UTF8'), '', ({transaction})::text::xid8
                    FROM generate_series(0, {rows} - 1) AS n
                """)
            cursor.execute("SELECT brin_summarize_new_values('enode_stream_position')")
            yield
        finally:
            cursor.execute(f"TRUNCATE {statements.TABLE}")
            cursor.execute(f"ALTER TABLE {statements.TABLE} RESET (autovacuum_enabled)")


def _plan(statement: str, parameters: tuple[object, ...]) -> Any:
    with by_index(connection), psycopg.Cursor[Any](connection.connection) as cursor:
        row = cursor.execute(
            f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {statement}", parameters, prepare=False
        ).fetchone()
    plan = row[0] if isinstance(row[0], list) else json.loads(row[0])
    return plan[0]["Plan"]


def _scans(plan: Any) -> list[Any]:
    own = [plan] if "Scan" in plan["Node Type"] and "Relation Name" in plan else []
    return own + [scan for part in plan.get("Plans", []) for scan in _scans(part)]


@pytest.mark.usefixtures("_large_table")
def test_a_page_of_a_large_table_is_found_by_the_index_and_costs_what_lies_in_it_before_and_after_it_is_analyzed(
    store: PostgresEventStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert_pages_are_found_by_the_index()
    assert_all_is_read_with_few_looks(store, monkeypatch)
    assert_pages_inside_a_transaction_of_very_many_rows_cost_a_page(store, monkeypatch)
    with connection.cursor() as cursor:
        cursor.execute(f"ANALYZE {statements.TABLE}")
    assert_pages_are_found_by_the_index()


def assert_pages_are_found_by_the_index() -> None:
    begin = 2**33 + 1_000
    for end, count in [(begin + 10, 1_000), (ALL, 3_001)]:
        plan = _plan(statements.FEED.plain, (begin, end, 0, ALL, begin, 0, 3_001, 1_000, 3_000))
        text = json.dumps(plan)
        assert "enode_stream_position" in text
        assert "Seq Scan" not in text
        rows_read = {scan["Node Type"]: scan["Actual Rows"] * scan["Actual Loops"] for scan in _scans(plan)}
        assert round(rows_read["Bitmap Heap Scan"]) == count
        assert plan["Shared Hit Blocks"] + plan["Shared Read Blocks"] < 10_000


class _Looks:
    """Counts the feed's queries for rows."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        ask = feed.execute

        def counted(*arguments: Any) -> Any:
            self.count += 1
            return ask(*arguments)

        monkeypatch.setattr(feed, "execute", counted)


def assert_all_is_read_with_few_looks(store: PostgresEventStore, monkeypatch: pytest.MonkeyPatch) -> None:
    looks = _Looks(monkeypatch)
    entries, _ = read_on(store, BEGINNING, limit=5_000)
    assert len(entries) == ROWS + LARGE
    assert len({position for position, _ in entries}) == ROWS + LARGE
    assert [position for position, _ in entries] == sorted(position for position, _ in entries)
    pages = (ROWS + LARGE) // 5_000 + 1
    assert looks.count < 6 * pages


def assert_pages_inside_a_transaction_of_very_many_rows_cost_a_page(
    store: PostgresEventStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has more rows than are sorted at once."""
    assert 2 * 1_000 + MORE_CANDIDATES < LARGE
    entries = store.feed(BEGINNING, limit=1_000).entries
    assert {position.transaction_id for position, _ in entries} == {7}
    at = entries[-1].position
    looks = _Looks(monkeypatch)
    for _ in range(10):
        page = store.feed(at, limit=1_000)
        assert [position.sequence for position, _ in page.entries] == [at.sequence + n for n in range(1, 1_001)]
        at = page.position
    assert looks.count <= 3 * 10
    plan = _plan(statements.FEED_WITHIN.plain, (at.sequence, at.sequence + 2_000, 7, 1_000))
    assert plan["Shared Hit Blocks"] + plan["Shared Read Blocks"] < 500


# Sessions that hold it back


def test_a_session_that_idles_in_a_transaction_is_named(store: PostgresEventStore) -> None:
    with bare_session(application_name="forgotten") as forgotten:
        insert(forgotten, stream("held", 1))
        forgotten.execute("SELECT 'the last thing it did'")
        (holder,) = [one for one in holding_back("default", AT_ONCE) if one.application_name == "forgotten"]
        assert holder.pid == forgotten.info.backend_pid
        assert holder.state == "idle in transaction"
        assert holder.query == "SELECT 'the last thing it did'"
        assert holder.age > timedelta(0)
        assert holder.database == connection.settings_dict["NAME"]
        assert holding_back("default", timedelta(hours=1)) == []
        forgotten.rollback()
        assert all(one.pid != holder.pid for one in holding_back("default", AT_ONCE))


def test_sessions_that_hold_nothing_back_are_not_named() -> None:
    with bare_session(application_name="reader") as reader, bare_session(application_name="idle", autocommit=True):
        reader.execute("SELECT 1")
        assert [one for one in holding_back("default", AT_ONCE) if one.application_name in ("reader", "idle")] == []


def test_the_oldest_transaction_is_named_first() -> None:
    with bare_session(application_name="older") as older, bare_session(application_name="newer") as newer:
        for number, session in enumerate((older, newer)):
            insert(session, stream(f"held-{number}", 1))
        names = [one.application_name for one in holding_back("default", AT_ONCE)]
        assert [name for name in names if name in ("older", "newer")] == ["older", "newer"]


def test_positions_of_pages_survive_as_text(store: PostgresEventStore) -> None:
    store.append([stream("a", 1), stream("b", 1)])
    wait_until(lambda: len(store.feed(BEGINNING, limit=2).entries) == 2)
    page = store.feed(BEGINNING, limit=1)
    assert roots(list(store.feed(Position.parse(str(page.position)), limit=2).entries)) == ["b"]
