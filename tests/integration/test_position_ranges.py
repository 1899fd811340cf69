"""Ranges of positions: together they have each stream once, and none has more than it may."""

from __future__ import annotations

import doctest
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from datetime import UTC, datetime
from typing import Any

import psycopg
import pytest
from django.db import connection
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from enode_django.eventstore import frontiers, position_ranges, statements
from enode_django.eventstore.base import StreamRecord
from enode_django.eventstore.frontiers import Frontier, frontier
from enode_django.eventstore.position_ranges import (
    MOST_STRETCHES,
    PositionRange,
    divided,
    heads,
    ranges_between,
    rest_since,
)
from enode_django.eventstore.positions import FIRST, Begun
from enode_django.eventstore.postgres import PostgresEventStore
from enode_django.eventstore.rows import by_index, connected, execute
from enode_django.ids import new_id
from tests.integration.store_sessions import bare_session, insert

pytestmark = pytest.mark.django_db(transaction=True)

OTHER = "notes.Note"


def stream(id: str, version: int, kind: str = "bank.BankAccount") -> StreamRecord:
    return StreamRecord(id, version, new_id(), kind, "bank.Deposit", datetime.now(UTC), b"", b"")


def insert_all(session: psycopg.Connection[Any], *records: StreamRecord) -> None:
    for record in records:
        insert(session, record)


@pytest.fixture
def store(transactional_db: None) -> PostgresEventStore:
    return PostgresEventStore()


def cut(since: Frontier, until: Frontier, most: int = 3, without: Sequence[str] = ()) -> list[PositionRange]:
    found = list(ranges_between("default", since, until, without, most))
    assert all(0 < one.streams <= most for one in found)
    return found


def heads_in(ranges: Sequence[PositionRange]) -> dict[str, int]:
    """The highest version of each aggregate in any of the ranges."""
    found: dict[str, int] = {}
    for one in ranges:
        for id, (_, version) in heads(one, "", None).items():
            found[id] = max(version, found.get(id, 0))
    return found


def test_the_examples_hold() -> None:
    assert doctest.testmod(frontiers).failed == 0


@settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    sizes=st.lists(st.integers(1, 8), min_size=1, max_size=8),
    open_ones=st.sets(st.integers(0, 7), max_size=2),
    most=st.integers(1, 6),
    looks=st.sets(st.integers(0, 7)),
)
def test_each_stream_is_in_one_range_of_one_round_whenever_its_transaction_ends(
    store: PostgresEventStore, sizes: list[int], open_ones: set[int], most: int, looks: set[int]
) -> None:
    """Rounds are cut while some transactions are open. Each shows the streams that the rounds before it did not."""
    at = begin = frontier("default")
    seen: Counter[int] = Counter()
    stored: Counter[int] = Counter()
    with ExitStack() as stack:
        quick = stack.enter_context(bare_session())
        late = []
        for number, size in enumerate(sizes):
            session = stack.enter_context(bare_session()) if number in open_ones else quick
            insert_all(session, *(stream(f"{number}/{new_id()}", 1) for _ in range(size)))
            if number in open_ones:
                late.append((session, number, size))
            else:
                session.commit()
                stored[number] += size
            if number in looks:
                at = look(at, most, seen)
                assert seen == stored
        for session, number, size in late:
            session.commit()
            stored[number] += size
    look(at, most, seen)
    assert seen == stored
    until = frontier("default")
    assert heads_in(cut(begin, until, most)) == heads_in(cut(begin, until, 1_000))


def look(since: Frontier, most: int, seen: Counter[int]) -> Frontier:
    until = frontier("default")
    rest = sum(one.streams for one in rest_since("default", since, (), 1_000))
    ranges = cut(since, until, most)
    assert rest == sum(one.streams for one in ranges)
    for one in ranges:
        found = heads(one, "", None)
        assert len(found) == one.streams
        seen.update(int(id.partition("/")[0]) for id in found)
    assert rest_since("default", until, (), 1_000) == []
    return until


def test_a_range_is_divided_among_aggregates(store: PostgresEventStore) -> None:
    since = frontier("default")
    store.append([stream(f"a{number:02}", version) for number in range(20) for version in (1, 2)])
    (whole,) = cut(since, frontier("default"), most=100)
    begins = divided(whole, 4)
    assert begins == ["a04", "a09", "a14"]
    parts = [heads(whole, low, high) for low, high in zip(["", *begins], [*begins, None], strict=True)]
    assert [len(part) for part in parts] == [4, 5, 5, 6]
    assert {**parts[0], **parts[1], **parts[2], **parts[3]} == heads(whole, "", None)
    assert heads(whole, "", None)["a07"] == ("bank.BankAccount", 2)


def test_an_aggregate_with_most_of_the_streams_is_not_divided(store: PostgresEventStore) -> None:
    since = frontier("default")
    store.append([stream("hot", version) for version in range(1, 50)])
    (whole,) = cut(since, frontier("default"), most=100)
    assert divided(whole, 4) == []


def test_streams_of_unwanted_types_and_refusals_do_not_count(store: PostgresEventStore) -> None:
    since = frontier("default")
    store.append([stream("a", 1), stream("n", 1, OTHER), stream("r", 1)._replace(version=None)])
    (whole,) = cut(since, frontier("default"), without=[OTHER])
    assert (whole.streams, heads_in([whole])) == (1, {"a": 1})
    assert sum(one.streams for one in rest_since("default", since, [OTHER], 10)) == 1


def test_what_is_left_is_looked_at_only_until_it_is_too_much(store: PostgresEventStore) -> None:
    since = frontier("default")
    store.append([stream(f"a{number}", 1) for number in range(50)])
    (whole,) = rest_since("default", since, (), 10)
    assert whole.streams == 11


def test_ranges_go_on_in_a_new_generation(store: PostgresEventStore) -> None:
    since = frontier("default")
    with bare_session() as session:
        insert(session, stream("open", 1))
        store.append([stream("before", 1)])
        open_then = frontier("default")
        session.commit()
    store.begin_generation(store.position().generation)
    store.append([stream("after", 1)])
    until = frontier("default")
    assert until.generation > since.generation
    assert heads_in(cut(since, until)) == {"open": 1, "before": 1, "after": 1}
    assert heads_in(cut(open_then, until)) == {"open": 1, "after": 1}
    assert heads_in(rest_since("default", open_then, (), 10)) == {"open": 1, "after": 1}
    assert cut(until, frontier("default")) == []


def test_a_frontier_lies_at_the_oldest_open_transaction() -> None:
    assert Frontier(3, 50, (30, 40)).position == (3, 30, 0)
    assert Frontier(3, 50).position == (3, 50, 0)
    assert Frontier.at(Frontier(3, 50, (30,)).position) == Frontier(3, 30)
    assert Frontier(0, 50, (30,)).late_stretches([FIRST, Begun(7, 90)], Frontier(7, 10, (30,)))[0].until_sequence == 90


MANY = 40_000
_MANY = f"""
    INSERT INTO enode_django_eventstream (aggregate_root_id, version, command_id, aggregate_root_type, command_type,
        created_at, events, metadata)
    SELECT 'a' || number, 1, 'c' || number, 'bank.BankAccount', 'bank.Deposit', now(), '', ''
    FROM generate_series(1, {MANY}) AS number
"""


def test_one_transaction_with_very_many_aggregates_is_cut_and_read_in_small_parts(store: PostgresEventStore) -> None:
    since, seen = frontier("default"), 0
    with connection.cursor() as cursor:
        cursor.execute(_MANY)
    for one in ranges_between("default", since, frontier("default"), (), 20_000):
        assert one.streams == 20_000
        begins = divided(one, 8)
        for low, high in zip(["", *begins], [*begins, None], strict=True):
            found = heads(one, low, high)
            assert 2_499 <= len(found) <= 2_501
            seen += len(found)
    assert seen == MANY


INDEX = "Bitmap Index Scan on enode_stream_position"


@pytest.mark.parametrize(
    ("stretches", "parts"), [(100, [[2], [2], [3], [1], [1, 1, 1]]), (2, [[2], [2], [3], [1], [1, 1], [1]])]
)
def test_transactions_that_were_open_are_gathered_up_to_the_limits(
    store: PostgresEventStore, monkeypatch: pytest.MonkeyPatch, stretches: int, parts: list[list[int]]
) -> None:
    """One with more streams than a range may have is cut into ranges of its own."""
    monkeypatch.setattr(position_ranges, "MOST_STRETCHES", stretches)
    sizes = [2, 2, 4, 1, 1, 1]
    begin = frontier("default").end
    with bare_session() as session:
        for number, size in enumerate(sizes):
            insert_all(session, *(stream(f"{number}/{place}", 1) for place in range(size)))
            session.commit()
    until = frontier("default")
    ranges = cut(Frontier(0, until.end, tuple(range(begin, until.end))), until)
    assert [one.streams for one in ranges] == [sum(part) for part in parts]
    assert [len(one.stretches) for one in ranges] == [len(part) for part in parts]
    assert sorted(id for one in ranges for id in heads(one, "", None)) == [
        f"{number}/{place}" for number, size in enumerate(sizes) for place in range(size)
    ]


def plan(statement: str, parameters: Sequence[object]) -> str:
    with connected("default") as known, by_index(known):
        return "\n".join(line for (line,) in execute(known, f"EXPLAIN {statement}", parameters))


@pytest.mark.parametrize("late", [1, 100])
def test_ranges_are_found_by_the_index_of_transactions(store: PostgresEventStore, late: int) -> None:
    store.append([stream("a", 1)])
    end = frontier("default").end
    since = Frontier(0, end, tuple(range(end - late, end)))
    whole = rest_since("default", since, (), 10)[0]
    assert len(whole.stretches) == min(late + 1, MOST_STRETCHES)
    condition, parameters = whole.where()
    query = statements.HEADS_IN_RANGES.replace("{ranges}", condition)
    assert INDEX in plan(query, (*parameters, "", None, None))
    assert INDEX in plan(statements.COUNT_BY_TRANSACTION, (list(since.late), 0, 2**62, []))
