"""Rows of projections on PostgreSQL are stored as ``save()`` stores them, but in bulk."""

from __future__ import annotations

import uuid
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from typing import Any

import psycopg
import pytest
from django.core.exceptions import ValidationError
from django.db import DataError, Error, connection, models, transaction
from django.db.models import F, Value
from django.db.models.functions import Now

from enode_django.databases import execute
from enode_django.eventing.read_models.row_statements import execute_for_rows
from enode_django.eventstore.sqlstates import sqlstate
from tests.integration.rowsapp.models import (
    Colour,
    Kinds,
    Plain,
    Size,
    WithArray,
)
from tests.projection_rows.rows import ALIAS, ODD, put, stored, table, written

PREPARED = {
    "text": ["", "NULL", '{"a,b"}', "back\\slash", "line\nbreak", "ünï 🏦", "100 %s %", 5, None],
    "name": ["ten chars.", "ten chars.     ", "", None],
    "colour": [Colour.RED, "blue", None],
    "amount": [
        Decimal("0"),
        Decimal("-1.005"),
        Decimal("1.015"),
        Decimal("123456789012345678.99"),
        3,
        1.5,
        "2.5",
        None,
    ],
    "small": [-32768, 32767, None],
    "number": [2**31 - 1, "12", True, None],
    "size": [Size.LARGE, 2, None],
    "big": [2**63 - 1, -(2**63), 1, None],
    "ratio": [0.1, -1e300, float("inf"), 3, None],
    "flag": [True, False, 1, None],
    "moment": [
        datetime(2026, 3, 29, 1, 30, tzinfo=UTC),
        datetime(1969, 12, 31, 23, 59, 59, 999999, tzinfo=timezone(timedelta(hours=-5))),
        None,
    ],
    "day": [date(1, 1, 1), datetime(2024, 2, 29, 23, 0, tzinfo=UTC), "2024-02-29", None],
    "time": [time(23, 59, 59, 999999), None],
    "span": [timedelta(days=-1, microseconds=1), timedelta(days=999999), None],
    "uuid": [uuid.UUID(int=0), str(uuid.UUID(int=2**128 - 1)), None],
    "data": [{"a": [1, None, '"}']}, [], [[1], [2]], "text", 0, False, Value(None, models.JSONField()), None],
    "raw": [b"", b"\x00\xff\\", memoryview(b"ab"), None],
    "address": ["10.0.0.1", "2001:db8::1", None],
    "file": ["a/b.txt", ""],
    "lowered": ["ABC", 5, None],
    "region_id": [1, "1", None],
    "place_id": ["here", None],
}

REFUSED = {
    "name": "eleven char",
    "colour": "a colour that is too long",
    "lowered": "MUCH TOO LONG",
    "amount": Decimal("1234567890123456789.00"),
    "small": 32768,
    "number": 2**31,
    "size": -1,
    "big": 2**63,
    "text": "nul \x00",
    "data": {"nul": "\x00"},
    "ratio": "no number",
    "uuid": "no uuid",
}


@pytest.mark.django_db
@pytest.mark.parametrize("model", ODD)
def test_values_of_every_kind_are_stored_as_saving_stores_them(model: type[Kinds]) -> None:
    given = {f"{name}-{n}": {name: value} for name, values in PREPARED.items() for n, value in enumerate(values)}
    for id, values in given.items():
        put(model, id, 1, **values)
    saved = stored(model)
    model._base_manager.all().delete()
    rows = [model(aggregate_root_id=id, version=1, **values) for id, values in given.items()]
    with transaction.atomic():
        assert table(model).store(rows) == len(given)
    assert stored(model) == saved


@pytest.mark.django_db
@pytest.mark.parametrize("model", ODD)
@pytest.mark.parametrize("name", sorted(REFUSED))
def test_what_saving_refuses_is_refused_with_the_same_error(model: type[Kinds], name: str) -> None:
    def error_of(write: Any) -> type[BaseException]:
        with pytest.raises((Error, ValueError, ValidationError)) as raised, transaction.atomic():
            write()
        return raised.type

    values: dict[str, Any] = {"aggregate_root_id": "a", "version": 1, name: REFUSED[name]}
    neighbour = model(aggregate_root_id="b", version=1)
    saving = error_of(lambda: model(**values).save(force_insert=True))
    assert error_of(lambda: table(model).store([model(**values), neighbour])) == saving
    assert stored(model) == {}


@pytest.mark.django_db
@pytest.mark.parametrize("amount", ["NaN", "sNaN", "-Infinity"])
def test_amounts_that_are_no_numbers_are_refused_as_saving_refuses_them(amount: str) -> None:
    row = Plain(aggregate_root_id="a", version=1, amount=Decimal(amount))
    with pytest.raises(ValidationError), transaction.atomic():
        row.save(force_insert=True)
    with pytest.raises(ValidationError), transaction.atomic():
        table(Plain).store([row])


@pytest.mark.django_db
def test_moments_without_a_zone_are_stored_as_saving_stores_them(settings: Any) -> None:
    settings.TIME_ZONE = "Europe/Berlin"
    moment = datetime(2026, 1, 1, 12)
    with pytest.warns(RuntimeWarning, match="naive datetime"):
        put(Plain, "saved", 1, moment=moment)
    with pytest.warns(RuntimeWarning, match="naive datetime"), transaction.atomic():
        table(Plain).store([Plain(aggregate_root_id="stored", version=1, moment=moment)])
    assert written(Plain, "saved").moment == written(Plain, "stored").moment == datetime(2026, 1, 1, 11, tzinfo=UTC)


@pytest.mark.django_db
def test_a_value_that_is_too_long_is_not_cut_off_but_refused_as_data() -> None:
    with pytest.raises(DataError) as raised, transaction.atomic():
        table(Plain).store([Plain(aggregate_root_id="a", version=1, name="eleven char")])
    assert sqlstate(raised.value) == "22001"


@pytest.mark.django_db
@pytest.mark.parametrize("model", ODD)
def test_loaded_rows_are_what_django_loads(model: type[Kinds]) -> None:
    ids = []
    for name, values in PREPARED.items():
        for n, value in enumerate(values):
            ids.append(f"{name}-{n}")
            put(model, ids[-1], 3, **{name: value})
    with transaction.atomic():
        rows = table(model).load_locked(ids)
    assert rows.keys() == set(ids)
    for id, row in rows.items():
        expected = dict(written(model, id).__dict__, _state=None)
        assert dict(row.__dict__, _state=None) == expected
        assert [type(value) for value in row.__dict__.values()] == [
            type(v) for v in written(model, id).__dict__.values()
        ]
        assert not row._state.adding
        assert row._state.db == ALIAS
        assert not row.get_deferred_fields()


@pytest.mark.django_db
@pytest.mark.parametrize("model", ODD)
def test_a_loaded_row_is_stored_as_saving_stores_it(model: type[Kinds]) -> None:
    for name, values in PREPARED.items():
        for n, value in enumerate(values):
            put(model, f"{name}-{n}", 1, **{name: value})
    ids = list(stored(model))
    with transaction.atomic():
        rows = table(model).load_locked(ids)
        for row in rows.values():
            row.version = 2
        assert table(model).store(rows.values()) == len(ids)
    bulk = stored(model)
    model._base_manager.update(version=1)
    for row in model._base_manager.all():
        row.version = 2
        row.save(force_update=True)
    assert bulk == stored(model)


@pytest.mark.django_db
def test_without_time_zones_naive_and_aware_moments_are_stored_together(settings: Any) -> None:
    settings.USE_TZ = False
    moments = {
        "naive": datetime(2026, 1, 1, 12),
        "aware": datetime(2026, 1, 1, 12, tzinfo=timezone(timedelta(hours=3))),
    }
    for id, moment in moments.items():
        put(Plain, id, 1, moment=moment)
    saved = stored(Plain)
    Plain._base_manager.all().delete()
    with transaction.atomic():
        table(Plain).store([Plain(aggregate_root_id=id, version=1, moment=moment) for id, moment in moments.items()])
    assert stored(Plain) == saved


@pytest.mark.django_db
def test_arrays_are_stored_as_saving_stores_them() -> None:
    for id, tags in {"a": ["x", "y,{}"], "b": [], "c": None}.items():
        with transaction.atomic():
            table(WithArray).store([WithArray(aggregate_root_id=id, version=1, tags=tags)])
        assert written(WithArray, id).tags == tags


@pytest.mark.django_db
@pytest.mark.parametrize("model", ODD)
@pytest.mark.parametrize("write", ["store", "copy"])
def test_an_expression_is_stored_where_saving_takes_it(model: type[Kinds], write: str) -> None:
    neighbour = model(aggregate_root_id="b", version=1, number=5)
    with transaction.atomic():
        getattr(table(model), write)([model(aggregate_root_id="a", version=1, moment=Now()), neighbour])
    assert written(model, "a").moment is not None
    assert written(model, "b").number == 5
    with pytest.raises((Error, ValueError)), transaction.atomic():
        getattr(table(model), write)([model(aggregate_root_id="c", version=1, number=F("number") + 1)])


@pytest.mark.parametrize(
    "time",
    [
        "2026-01-02 03:04:05.06+00",
        "2026-01-02 03:04:05-07:30",
        "0001-01-01 00:00:00+00",
        "9999-12-31 23:59:59.999999+00",
    ],
)
def test_times_are_loaded_as_django_loads_them(transactional_db: None, time: str) -> None:
    statement = "SELECT %s::timestamptz"
    with connection.cursor() as cursor:
        cursor.execute(statement, [time])
        (usual,) = cursor.fetchone()
    ((loaded,),) = execute_for_rows(ALIAS, statement, [time]).fetchall()
    assert (loaded, loaded.tzinfo) == (usual, usual.tzinfo)


@pytest.mark.parametrize("time", ["infinity", "0044-03-15 12:00:00+00 BC", "12026-01-02 03:04:05+00"])
def test_a_time_that_python_does_not_have_is_refused_as_ever(transactional_db: None, time: str) -> None:
    with pytest.raises(psycopg.DataError, match=r"too large|too small|before year 1"):
        execute_for_rows(ALIAS, "SELECT %s::timestamptz", [time]).fetchall()


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        ("text", ["a", "", "ä\t\\"]),
        ("text", ["a", None]),
        ("text", [None, None]),
        ("text", []),
        ("bigint", [1, -(2**62), 0]),
        ("numeric", [Decimal("1.50"), Decimal("-0"), Decimal("1E+3")]),
        ("timestamptz", [datetime(2026, 1, 2, 3, 4, 5, 6, UTC), datetime(1, 1, 1, tzinfo=UTC)]),
        ("bytea", [b"", b"\0\xff"]),
        ("boolean", [True, False]),
        ("int[]", [[1, 2], [3, 4]]),
    ],
)
def test_arrays_are_written_as_the_driver_writes_them(transactional_db: None, kind: str, values: list[Any]) -> None:
    statement = f"SELECT %b::{kind.removesuffix('[]')}[]::text"
    connection.ensure_connection()
    usual = psycopg.Cursor[Any](connection.connection).execute(statement, [values])
    assert execute(ALIAS, statement, [values]).fetchall() == usual.fetchall()


def test_what_the_driver_refuses_in_an_array_is_refused(transactional_db: None) -> None:
    connection.ensure_connection()
    for values in ([1, "a"], [1, [2]], [object()]):
        with pytest.raises((psycopg.Error, TypeError, AttributeError)) as usual:
            psycopg.Cursor[Any](connection.connection).execute("SELECT %b::bigint[]", [values])
        with pytest.raises(type(usual.value)):
            execute(ALIAS, "SELECT %b::bigint[]", [values])
