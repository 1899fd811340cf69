"""Columns that nobody but Django or the database fills, and references."""

from __future__ import annotations

from datetime import UTC, date, datetime
from typing import Any

import pytest
from django.db import IntegrityError, connection, transaction
from django.utils import timezone as django_timezone

from enode_django.eventing.read_models.row_changes import RowChanges, changed_row
from tests.integration.rowsapp.models import (
    Dated,
    Defaulted,
    Plain,
)
from tests.projection_rows.rows import ALIAS, put, table, written

LONG_AGO = datetime(2001, 1, 1, tzinfo=UTC)


@pytest.mark.django_db
def test_a_new_row_gets_the_dates_of_its_making() -> None:
    before, today = django_timezone.now(), date.today()
    with transaction.atomic():
        table(Dated).store([Dated(aggregate_root_id="a", version=1)])
    row = written(Dated, "a")
    assert before <= row.created_at <= django_timezone.now()
    assert before <= row.changed_at <= django_timezone.now()
    assert today <= row.created_on <= date.today()


@pytest.mark.django_db
def test_a_stored_row_keeps_the_dates_of_its_making() -> None:
    put(Dated, "loaded", 1)
    put(Dated, "met", 1)
    Dated.objects.update(created_at=LONG_AGO, created_on=LONG_AGO.date(), changed_at=LONG_AGO)
    with transaction.atomic():
        (loaded,) = table(Dated).load_locked(["loaded"]).values()
        loaded.version = 2
        met = Dated(aggregate_root_id="met", version=2, name="new")
        assert table(Dated).store([met, loaded, Dated(aggregate_root_id="a", version=1)]) == 3
    for id in ("loaded", "met"):
        row = written(Dated, id)
        assert (row.created_at, row.created_on, row.version) == (LONG_AGO, LONG_AGO.date(), 2)
        assert row.changed_at > LONG_AGO
    assert written(Dated, "met").name == "new"


@pytest.mark.django_db
def test_a_row_that_two_events_have_made_leaves_a_stored_one_the_dates_of_its_making() -> None:
    """Another worker has stored it after this one looked for it."""
    put(Dated, "a", 1)
    Dated.objects.update(created_at=LONG_AGO)
    nothing: list[Any] = [(None, [])] * 2
    with transaction.atomic():
        row = changed_row(Dated, "a", None, nothing, table(Dated).normalise)
        row.version = 2
        changes = RowChanges(table(Dated), {}, {})
        changes.note("a", row, 2)
        changes.write(ALIAS, "any")
    assert (written(Dated, "a").created_at, written(Dated, "a").version) == (LONG_AGO, 2)


@pytest.mark.django_db
def test_a_handler_may_change_the_date_of_making_of_a_loaded_row() -> None:
    put(Dated, "a", 1)
    with transaction.atomic():
        row = table(Dated).load_locked(["a"])["a"]
        row.version, row.created_at = 2, LONG_AGO
        table(Dated).store([row])
    assert written(Dated, "a").created_at == LONG_AGO


@pytest.mark.django_db
def test_defaults_and_generated_columns_are_the_databases() -> None:
    rows = [
        Defaulted(aggregate_root_id="a", version=1, name="x"),
        Defaulted(aggregate_root_id="b", version=1, name="y", number=1, since=LONG_AGO),
        Defaulted(aggregate_root_id="c", version=1, name="z", number=2),
    ]
    with transaction.atomic():
        assert table(Defaulted).store(rows) == 3
    found = {row.pk: (row.number, row.upper) for row in Defaulted.objects.all()}
    assert found == {"a": (7, "X"), "b": (1, "Y"), "c": (2, "Z")}
    assert written(Defaulted, "a").since == written(Defaulted, "c").since > LONG_AGO
    assert written(Defaulted, "b").since == LONG_AGO


@pytest.mark.django_db
def test_a_generated_column_is_loaded_and_follows_the_row() -> None:
    put(Defaulted, "a", 1, name="x")
    with transaction.atomic():
        row = table(Defaulted).load_locked(["a"])["a"]
        assert row.upper == "X"
        row.name, row.version = "new", 2
        table(Defaulted).store([row])
    assert (written(Defaulted, "a").upper, written(Defaulted, "a").number) == ("NEW", 7)


@pytest.mark.django_db
def test_a_missing_reference_is_refused_at_the_commit_as_django_does() -> None:
    with transaction.atomic():
        table(Plain).store([Plain(aggregate_root_id="a", version=1, region_id=99)])
        with pytest.raises(IntegrityError), transaction.atomic():
            connection.check_constraints()
        transaction.set_rollback(True)
