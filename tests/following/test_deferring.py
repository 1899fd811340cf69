"""Rows that handlers create one by one are inserted together, and nobody can tell but by the clock."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.db import connection, transaction
from django.db.models.signals import post_save, pre_save

from enode_django.databases import execute
from enode_django.eventing.read_models.deferring import ROWS_MAX, DeferredInserts
from enode_django.eventing.read_models.rows import RowTable
from tests.following.deferred import Run, a_line, accounts, statements, waits
from tests.following.domain import Added, CounterRow
from tests.following.harness import Harness
from tests.following.lines import Line, LinesAtOnce, Named


def test_what_handlers_create_one_by_one_is_inserted_in_one_statement(run: Run) -> None:
    made: list[Line] = []
    assert run(lambda event: made.append(a_line(event, amount=event.amount))) == {}
    assert accounts() == ["a", "b", "c"]
    assert statements(Line) == 1
    keys = [line.pk for line in made]
    assert keys == sorted(set(keys)) == [line.pk for line in Line.objects.order_by("account")]
    assert not any(line._state.adding for line in made)
    after = Line.objects.create(account="later")
    assert after.pk > keys[-1]


def test_a_projection_can_have_each_row_inserted_at_once(run: Run) -> None:
    assert run(a_line, projection=LinesAtOnce) == {}
    assert accounts() == ["a", "b", "c"]
    assert statements(Line) == 3


def test_a_batch_of_one_aggregate_inserts_at_once(run: Run) -> None:
    def two(event: Added) -> None:
        a_line(event)
        a_line(event, version=2)

    assert run(two, "a") == {}
    assert statements(Line) == 2


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
        cursor.execute("SELECT count(*) FROM following_line WHERE id = %s", [line.pk])
        return int(cursor.fetchone()[0])


def by_many_statements(line: Line) -> int:
    with connection.cursor() as cursor:
        cursor.executemany("UPDATE following_line SET note = %s WHERE id = %s", [("x", line.pk)])
        return int(cursor.rowcount)


def by_saving_again(line: Line) -> int:
    line.note = "changed"
    line.save(force_update=True)
    return 1


def by_refreshing(line: Line) -> int:
    line.refresh_from_db()
    return 1


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
        lambda line: Line.objects.filter(pk=line.pk).update(note="x"),
        lambda line: sum(1 for _ in Line.objects.filter(pk=line.pk).iterator()),
        lambda line: execute("default", "SELECT 1 FROM following_line WHERE id = %s", (line.pk,)).rowcount,
        by_raw_sql,
        by_many_statements,
        by_saving_again,
        by_refreshing,
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


def test_a_handler_deletes_what_it_has_just_created(run: Run) -> None:
    assert run(lambda event: a_line(event).delete()) == {}
    assert accounts() == []


def test_rows_of_a_model_projection_are_read_behind_what_waits(harness: Harness, line_tables: None) -> None:
    with transaction.atomic():
        with DeferredInserts([Named], "default").wait():
            Named.objects.create(name="n")
            assert waits()
            RowTable(CounterRow, "default").versions(["n"])
            assert not waits()
        transaction.set_rollback(True)


def test_receivers_of_signals_find_the_row_and_can_change_it_before(run: Run) -> None:
    found: list[str] = []

    def before(instance: Line, **_: Any) -> None:
        instance.note = "set by a receiver"

    def after(instance: Line, created: bool, **_: Any) -> None:
        assert created
        found.extend(Line.objects.filter(pk=instance.pk).values_list("note", flat=True))

    pre_save.connect(before, sender=Line)
    post_save.connect(after, sender=Line)
    try:
        assert run(a_line) == {}
    finally:
        pre_save.disconnect(before, sender=Line)
        post_save.disconnect(after, sender=Line)
    assert found == ["set by a receiver"] * 3


def test_a_row_that_is_saved_again_without_its_key_is_another_one(run: Run) -> None:
    def twice(event: Added) -> None:
        line = a_line(event)
        line.pk, line.version = None, 2
        line.save()

    assert run(twice) == {}
    assert Line.objects.values_list("pk", flat=True).distinct().count() == 6
    assert statements(Line) == 1
