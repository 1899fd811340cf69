"""Positions in PostgreSQL: what other sessions' open transactions do to them, and how they are found."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from django.db import connection, transaction

from enode_django.databases import end_sessions
from enode_django.eventstore import statements
from enode_django.eventstore.base import Settled
from enode_django.eventstore.positions import BEGINNING, END, Position
from enode_django.eventstore.postgres import PostgresEventStore
from enode_django.eventstore.rows import by_index
from enode_django.testing.event_store_position_contract import settled_between
from enode_django.testing.event_store_read_contract import history, refusal, stream
from tests.integration.store_sessions import bare_session, database_alias, insert, wait_until
from tests.integration.store_writers import Writers

pytestmark = pytest.mark.django_db(transaction=True)

ENOUGH = 10_000
ALL = 2**62


@pytest.fixture
def store() -> PostgresEventStore:
    return PostgresEventStore()


def rows_below(store: PostgresEventStore, position: Position, after: Position = BEGINNING) -> Settled:
    return settled_between(store, after, position, ENOUGH)


def wait_until_settled(store: PostgresEventStore, *root_ids: str) -> Position:
    """Wait until the streams of these aggregates are settled. Return a position above them."""
    wait_until(lambda: set(root_ids) <= set(rows_below(store, store.position()).heads))
    return store.position()


def following(position: Position) -> Position:
    return Position(position.generation, position.transaction_id + 1)


# Open transactions of other sessions


@pytest.mark.parametrize("commits", [True, False], ids=["commits", "rolls back"])
def test_an_open_transaction_holds_the_position_back(store: PostgresEventStore, commits: bool) -> None:
    store.append([stream("before", 1)])
    wait_until_settled(store, "before")
    with bare_session() as slow:
        insert(slow, stream("slow", 1))
        insert(slow, refusal("slow", "refused"))
        for number in range(5):
            store.append([stream(f"quick-{number}", 1)])
        held = store.position()
        assert set(rows_below(store, held).heads) == {"before"}
        if commits:
            slow.commit()
        else:
            slow.rollback()
    wait_until_settled(store, *(f"quick-{number}" for number in range(5)))
    assert set(rows_below(store, held).heads) == {"before"}
    late = rows_below(store, store.position(), after=held)
    assert ("slow" in late.heads) is commits
    assert [record.command_id for record in late.refusals] == (["refused"] if commits else [])


def test_a_transaction_that_wrote_nothing_yet_holds_nothing_back(store: PostgresEventStore) -> None:
    with bare_session() as idle:
        idle.execute("SELECT 1")
        store.append([stream("quick", 1)])
        position = wait_until_settled(store, "quick")
        insert(idle, stream("later", 1))
        idle.commit()
    wait_until_settled(store, "quick", "later")
    assert set(rows_below(store, position).heads) == {"quick"}


def test_a_savepoint_has_the_position_of_its_transaction(store: PostgresEventStore) -> None:
    with bare_session() as slow:
        insert(slow, stream("slow", 1))
        held = store.position()
        with slow.transaction():
            insert(slow, stream("slow", 2))
        assert store.position() == held
        slow.commit()
    wait_until_settled(store, "slow")
    assert rows_below(store, following(held)).heads == {"slow": ("bank.BankAccount", 2)}


def test_versions_that_were_open_at_a_position_are_not_before_it(store: PostgresEventStore) -> None:
    store.append(history("a", 2))
    wait_until_settled(store, "a")
    with bare_session() as slow:
        insert(slow, stream("a", 3))
        position = store.position()
        assert store.heads_before(["a"], position) == {"a": 2}
        slow.commit()
    assert store.heads_before(["a"], position) == {"a": 2}
    assert store.heads_before(["a"], following(wait_until_settled(store, "a"))) == {"a": 3}


@pytest.mark.parametrize("seed", range(3))
def test_a_reader_that_advances_sees_each_committed_row_once(store: PostgresEventStore, seed: int) -> None:
    seen: Counter[str] = Counter()
    ranges: list[tuple[Position, Position, Settled]] = []
    swept = store.position()

    def advance() -> None:
        nonlocal swept
        before = store.position()
        settled = rows_below(store, before, after=swept)
        ranges.append((swept, before, settled))
        seen.update(settled.heads.keys())
        seen.update(refused.aggregate_root_id for refused in settled.refusals)
        swept = before

    def has_seen_enough() -> bool:
        advance()
        ranges_with_rows = sum(bool(settled.heads) for _, _, settled in ranges)
        return writers.committed_rows > 250 and writers.rolled_back > 10 and ranges_with_rows > 10

    def has_caught_up() -> bool:
        advance()
        return seen.total() >= writers.committed_rows

    with Writers(seed, writers=4) as writers:
        wait_until(has_seen_enough)
    wait_until(has_caught_up)
    assert seen == writers.committed
    for after, before, settled in ranges:
        again = rows_below(store, before, after=after)
        assert (again.heads, sorted(again.refusals)) == (settled.heads, sorted(settled.refusals))


# Costs of a search

ROWS = 100_000


@pytest.fixture
def _large_table(transactional_db: None) -> Iterator[None]:
    """Rows as `ROWS` / 100 transactions would have stored them, never seen by ANALYZE."""
    with connection.cursor() as cursor:
        cursor.execute(f"ALTER TABLE {statements.TABLE} SET (autovacuum_enabled = off)")
        try:
            cursor.execute(f"""
                INSERT INTO {statements.TABLE} ({", ".join(stream("", 1)._fields)}, transaction_id)
                SELECT 'root-' || n, 1, 'command-' || n, 'bank.BankAccount', 'bank.Deposit', now(),
                       convert_to(repeat('e', 200), 'UTF8'), '', (1000 + n / 100)::text::xid8
                FROM generate_series(0, {ROWS - 1}) AS n
            """)
            cursor.execute("SELECT brin_summarize_new_values('enode_stream_position')")
            yield
        finally:
            cursor.execute(f"TRUNCATE {statements.TABLE}")
            cursor.execute(f"ALTER TABLE {statements.TABLE} RESET (autovacuum_enabled)")


def _plan(after: int, before: int, limit: int) -> Any:
    with by_index(connection), psycopg.Cursor[Any](connection.connection) as cursor:
        explain = f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {statements.SETTLED}"
        row = cursor.execute(explain, (after, before, 0, ALL, limit), prepare=False).fetchone()
    plan = row[0] if isinstance(row[0], list) else json.loads(row[0])
    return plan[0]["Plan"]


def _pages() -> int:
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT pg_relation_size('{statements.TABLE}') / 8192")
        return int(cursor.fetchone()[0])


@pytest.mark.usefixtures("_large_table")
def test_a_range_is_found_by_the_index_and_costs_what_lies_in_it_before_and_after_the_table_is_analyzed(
    store: PostgresEventStore,
) -> None:
    assert_ranges_are_found_by_the_index(store)
    assert_parts_of_histories_are_found_by_the_index()
    with connection.cursor() as cursor:
        cursor.execute(f"ANALYZE {statements.TABLE}")
    assert_ranges_are_found_by_the_index(store)


def assert_ranges_are_found_by_the_index(store: PostgresEventStore) -> None:
    pages = _pages()
    for after, before in [(1_900, 1_950), (1_000, 1_010), (1_500, ALL), (0, ALL)]:
        plan = _plan(after, before, 5_001)
        assert "enode_stream_position" in json.dumps(plan)
        assert "Seq Scan" not in json.dumps(plan)
        assert plan["Shared Hit Blocks"] + plan["Shared Read Blocks"] < pages / 3
    after, before = Position(0, 1_900), Position(0, 1_950)
    assert len(rows_below(store, before, after).heads) == 5_000
    part = store.settled(after, before, limit=4_999)
    assert part.until < before
    assert 0 < len(part.settled.heads) < 5_000
    assert len(settled_between(store, BEGINNING, END, 5_000).heads) == ROWS
    assert store.heads_before(["root-5000"], Position(0, 1_050)) == {}
    assert store.heads_before(["root-5000"], Position(0, 1_051)) == {"root-5000": 1}


def test_finding_a_range_leaves_the_settings_of_the_session_alone(store: PostgresEventStore) -> None:
    with connection.cursor() as cursor:
        for chosen in ("on", "off"):
            cursor.execute(f"SET enable_seqscan = {chosen}")
            store.settled(BEGINNING, store.position(), limit=1)
            assert _sequential_scans(cursor) == chosen
            with transaction.atomic():
                store.settled(BEGINNING, store.position(), limit=1)
                assert _sequential_scans(cursor) == chosen
        cursor.execute("RESET enable_seqscan")


def _sequential_scans(cursor: Any) -> str:
    cursor.execute("SHOW enable_seqscan")
    return str(cursor.fetchone()[0])


def assert_parts_of_histories_are_found_by_the_index() -> None:
    wanted = [f"root-{number}" for number in range(0, 50_000, 100)]
    parameters = (wanted, [0] * len(wanted), [9] * len(wanted), 1_000)
    with psycopg.Cursor[Any](connection.connection) as cursor:
        explain = f"EXPLAIN (FORMAT JSON) {statements.LOAD_RANGES.plain}"
        row = cursor.execute(explain, parameters, prepare=False).fetchone()
    assert "enode_stream_version" in json.dumps(row[0])
    assert "Seq Scan" not in json.dumps(row[0])


# Sessions in any database


def test_sessions_of_an_owner_are_ended_and_nobody_elses(transactional_db: None) -> None:
    with (
        database_alias("elsewhere", OPTIONS={"application_name": "survivor"}) as alias,
        bare_session(application_name="dead-worker") as dead,
        bare_session(application_name="other-worker", autocommit=True) as other,
    ):
        dead.execute("SELECT 1")
        assert end_sessions(alias, "dead-worker") == 1
        with pytest.raises(psycopg.OperationalError):
            dead.execute("SELECT 1")
        assert other.execute("SELECT 1").fetchone() == (1,)
        assert end_sessions(alias, "dead-worker") == 0
        assert end_sessions(alias, "survivor") == 0
