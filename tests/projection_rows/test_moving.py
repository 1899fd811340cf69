"""Rows of projections move only forward, and are deleted below a version."""

from __future__ import annotations

import pytest
from django.db import DataError, transaction

from tests.integration.rowsapp.models import (
    Bare,
    Kinds,
    Plain,
)
from tests.projection_rows.rows import ODD, put, stored, table, written


@pytest.mark.django_db
def test_a_manager_that_hides_rows_hides_none_from_a_projection() -> None:
    put(Plain, "a", 1)
    assert not Plain.objects.filter(pk="a").exists()
    with transaction.atomic():
        assert list(table(Plain).load_locked(["a"])) == ["a"]


@pytest.mark.django_db
def test_only_the_rows_that_exist_are_loaded() -> None:
    put(Bare, "a", 4)
    with transaction.atomic():
        rows = table(Bare).load_locked(["b", "a", "nul"])
        assert table(Bare).load_locked([]) == {}
    assert {id: row.version for id, row in rows.items()} == {"a": 4}
    assert table(Bare).versions(["a", "b"]) == {"a": 4}
    assert table(Bare).versions([]) == {}


@pytest.mark.django_db
@pytest.mark.parametrize(("version", "name", "written_rows"), [(4, "old", 0), (5, "old", 0), (6, "new", 1)])
@pytest.mark.parametrize("model", ODD)
def test_a_row_moves_only_forward(model: type[Kinds], version: int, name: str, written_rows: int) -> None:
    put(model, "a", 5, name="old")
    with transaction.atomic():
        assert table(model).store([model(aggregate_root_id="a", version=version, name="new")]) == written_rows
    assert written(model, "a").name == name
    assert written(model, "a").version == max(version, 5)


@pytest.mark.django_db
def test_a_batch_writes_the_rows_that_are_ahead_and_counts_them() -> None:
    put(Bare, "a", 1)
    put(Bare, "b", 9)
    rows = [Bare(aggregate_root_id=id, version=5) for id in "cba"]
    with transaction.atomic():
        assert table(Bare).store(rows) == 2
        assert table(Bare).store([]) == 0
    assert table(Bare).versions(["a", "b", "c"]) == {"a": 5, "b": 9, "c": 5}


@pytest.mark.django_db
@pytest.mark.parametrize("model", ODD)
def test_a_large_batch_is_stored_whole(model: type[Kinds]) -> None:
    ids = [f"{n:04}" for n in range(1001)]
    with transaction.atomic():
        assert table(model).store([model(aggregate_root_id=id, version=1, name=id) for id in ids]) == len(ids)
        assert {id: row.name for id, row in table(model).load_locked(ids).items()} == dict(zip(ids, ids, strict=True))


@pytest.mark.django_db
def test_rows_are_deleted_below_the_version_that_is_given() -> None:
    for id in "abcd":
        put(Bare, id, 5)
    with transaction.atomic():
        table(Bare).delete({"a": 6, "b": 5, "c": 4, "missing": 9})
        table(Bare).delete({})
    assert sorted(stored(Bare)) == ["b", "c", "d"]


@pytest.mark.django_db
def test_a_deleted_row_can_be_made_again() -> None:
    put(Bare, "a", 5)
    with transaction.atomic():
        table(Bare).delete({"a": 6})
        assert table(Bare).store([Bare(aggregate_root_id="a", version=6)]) == 1
    assert table(Bare).versions(["a"]) == {"a": 6}


@pytest.mark.django_db
def test_an_error_undoes_its_savepoint_only() -> None:
    with transaction.atomic():
        table(Bare).store([Bare(aggregate_root_id="a", version=1)])
        with pytest.raises(DataError), transaction.atomic():
            table(Bare).store([Bare(aggregate_root_id="a", version=2), Bare(aggregate_root_id="x" * 256, version=1)])
        with transaction.atomic():
            table(Bare).store([Bare(aggregate_root_id="b", version=1)])
    assert table(Bare).versions(["a", "b"]) == {"a": 1, "b": 1}
