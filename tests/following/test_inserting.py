"""Rows that handlers insert one by one are sent together."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from django.db import connection, transaction

from enode_django.databases import execute
from enode_django.eventing.read_models.row_inserts import RowInserts
from enode_django.eventing.read_models.rows import RowTable
from enode_django.eventing.read_models.waiting_inserts import ROWS_MAX, insert, inserts_wait
from tests.following.domain import Added, CounterRow
from tests.following.harness import Harness
from tests.following.inserting import Run, a_line, accounts, inserted, statements, waits
from tests.following.lines import Line, Named


def test_rows_that_handlers_insert_one_by_one_are_sent_in_one_statement(run: Run) -> None:
    made: list[Line] = []
    assert run(lambda event: made.append(a_line(event, amount=event.amount))) == {}
    assert accounts() == ["a", "b", "c"]
    assert statements(Line) == 1
    assert [line.pk for line in made] == [line.pk for line in Line.objects.order_by("account")]
    assert not any(line._state.adding for line in made)


def test_rows_that_are_created_are_there_at_once(run: Run) -> None:
    made: list[Line] = []
    assert run(lambda event: made.append(Line.objects.create(account=event.aggregate_root_id))) == {}
    assert accounts() == ["a", "b", "c"]
    assert statements(Line) == 3


def test_a_row_of_another_model_is_refused(run: Run) -> None:
    failed = run(lambda event: inserted(CounterRow(pk=event.aggregate_root_id)))
    assert list(failed) == ["a", "b", "c"]
    assert "Lines.insert() got <CounterRow: CounterRow object (a)>, and it writes (" in failed["a"]


def test_the_inserts_of_a_single_event_are_sent_together(run: Run) -> None:
    def two(event: Added) -> None:
        a_line(event)
        a_line(event, version=2)

    assert run(two, "a") == {}
    assert statements(Line) == 1


def test_rows_are_sent_before_there_are_too_many(run: Run) -> None:
    def many(event: Added) -> None:
        for version in range(ROWS_MAX):
            a_line(event, version=version)

    assert run(many, "a", "b") == {}
    assert Line.objects.count() == 2 * ROWS_MAX
    assert statements(Line) == 2


# -- looking at what waits ----------------------------------------------------------------------------------------


def by_raw_sql(line: Line) -> int:
    with connection.cursor() as cursor:
        cursor.execute("SELECT count(*) FROM following_line WHERE account = %s", [line.account])
        return int(cursor.fetchone()[0])


def by_many_statements(line: Line) -> int:
    with connection.cursor() as cursor:
        cursor.executemany("UPDATE following_line SET note = %s WHERE account = %s", [("x", line.account)])
        return int(cursor.rowcount)


def by_getting_or_creating(line: Line) -> int:
    found, created = Line.objects.get_or_create(account=line.account)
    return int(found == line and not created)


def by_a_lost_update_or_create(line: Line) -> int:
    return int(not Line.objects.update_or_create(account=line.account, defaults={"note": "again"})[1])


def by_creating_in_bulk(line: Line) -> int:
    return (
        len(Line.objects.bulk_create([Line(account=line.account)], ignore_conflicts=True)) * Line.objects.count() and 1
    )


@pytest.mark.parametrize(
    "look",
    [
        lambda line: Line.objects.filter(account=line.account).count(),
        lambda line: Line.objects.filter(account=line.account).update(note="x"),
        lambda line: sum(1 for _ in Line.objects.filter(account=line.account).iterator()),
        lambda line: execute("default", "SELECT 1 FROM following_line WHERE account = %s", (line.account,)).rowcount,
        by_raw_sql,
        by_many_statements,
        by_getting_or_creating,
        by_a_lost_update_or_create,
        by_creating_in_bulk,
    ],
)
def test_a_handler_finds_what_it_has_just_created(run: Run, look: Callable[[Line], int]) -> None:
    found: list[int] = []
    assert run(lambda event: found.append(look(a_line(event)))) == {}
    assert found == [1, 1, 1]
    assert accounts() == ["a", "b", "c"]


def test_a_handler_deletes_what_it_has_just_inserted(run: Run) -> None:
    def delete(event: Added) -> None:
        a_line(event)
        assert Line.objects.filter(account=event.aggregate_root_id).delete()[0] == 1

    assert run(delete) == {}
    assert accounts() == []


def test_rows_of_a_model_projection_are_read_behind_what_waits(harness: Harness, line_tables: None) -> None:
    with transaction.atomic():
        with inserts_wait(RowInserts("default")):
            insert(Named(name="n"), "default")
            assert waits()
            RowTable(CounterRow, "default").versions(["n"])
            assert not waits()
        transaction.set_rollback(True)
