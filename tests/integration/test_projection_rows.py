"""Rows of projections on PostgreSQL: they are stored as ``save()`` stores, but in bulk and only forward."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from typing import Any

import pytest
from django.core.exceptions import ValidationError
from django.db import DataError, Error, IntegrityError, connection, connections, models, transaction
from django.db.models import F, Value
from django.db.models.functions import Now
from django.db.transaction import TransactionManagementError
from django.utils import timezone as django_timezone

from enode_django.eventing.rows import RowTable
from enode_django.eventstore.sqlstates import sqlstate
from tests.integration.rowsapp.models import (
    MODELS,
    Bare,
    Colour,
    Dated,
    Defaulted,
    Kinds,
    Place,
    Plain,
    Region,
    Size,
    WithArray,
)
from tests.integration.store_sessions import Call, bare_session, database_alias

ALIAS = "default"

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

ODD = [pytest.param(Plain, id="in arrays"), pytest.param(WithArray, id="as values")]


@pytest.fixture(scope="module", autouse=True)
def tables(django_db_setup: None, django_db_blocker: Any) -> Iterator[None]:
    with django_db_blocker.unblock():
        with connection.schema_editor() as editor:
            for model in MODELS:
                editor.create_model(model)
        Region.objects.create(number=1)
        Place.objects.create(code="here")
        yield
        with connection.schema_editor() as editor:
            for model in reversed(MODELS):
                editor.delete_model(model)
        connection.close()


@pytest.fixture
def emptied() -> Iterator[None]:
    """For tests that commit."""
    yield
    for model in (Plain, WithArray, Dated, Defaulted, Bare):
        model._base_manager.all().delete()


def table(model: type[Any]) -> RowTable[Any]:
    return RowTable(model, ALIAS)


def stored(model: type[models.Model]) -> dict[str, dict[str, str | None]]:
    """Every column as the database writes it, by id."""
    columns = [field.column for field in model._meta.concrete_fields]
    selected = ", ".join(f'"{column}"::text' for column in columns)
    with connection.cursor() as cursor:
        cursor.execute(f'SELECT {selected} FROM "{model._meta.db_table}"')
        rows = [dict(zip(columns, row, strict=True)) for row in cursor.fetchall()]
    return {str(row.pop("aggregate_root_id")): row for row in rows}


def written(model: type[Any], id: str) -> Any:
    return model._base_manager.get(aggregate_root_id=id)


def put(model: type[Any], id: str, version: int, **values: Any) -> None:
    model(aggregate_root_id=id, version=version, **values).save(force_insert=True)


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


LONG_AGO = datetime(2001, 1, 1, tzinfo=UTC)


@pytest.mark.django_db
def test_a_new_row_gets_the_dates_of_its_making() -> None:
    before = django_timezone.now()
    with transaction.atomic():
        table(Dated).store([Dated(aggregate_root_id="a", version=1)])
    row = written(Dated, "a")
    assert before <= row.created_at <= django_timezone.now()
    assert before <= row.changed_at <= django_timezone.now()
    assert row.created_on == date.today()


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


@pytest.mark.django_db
def test_an_error_undoes_its_savepoint_only() -> None:
    with transaction.atomic():
        table(Bare).store([Bare(aggregate_root_id="a", version=1)])
        with pytest.raises(DataError), transaction.atomic():
            table(Bare).store([Bare(aggregate_root_id="a", version=2), Bare(aggregate_root_id="x" * 256, version=1)])
        with transaction.atomic():
            table(Bare).store([Bare(aggregate_root_id="b", version=1)])
    assert table(Bare).versions(["a", "b"]) == {"a": 1, "b": 1}


@pytest.mark.django_db(transaction=True)
def test_rows_are_neither_locked_nor_written_outside_of_a_transaction() -> None:
    bare = table(Bare)
    calls = [
        lambda: bare.load_locked(["a"]),
        lambda: bare.store([Bare(aggregate_root_id="a", version=1)]),
        lambda: bare.delete({"a": 1}),
    ]
    for call in calls:
        with pytest.raises(TransactionManagementError, match="outside of a transaction"):
            call()
    assert bare.versions(["a"]) == {}


@pytest.mark.django_db
def test_a_transaction_that_will_be_rolled_back_takes_no_rows() -> None:
    with transaction.atomic():
        transaction.set_rollback(True)
        with pytest.raises(TransactionManagementError):
            table(Bare).store([Bare(aggregate_root_id="a", version=1)])


@pytest.mark.django_db(transaction=True)
def test_no_statement_is_left_prepared_in_the_session(emptied: None) -> None:
    with database_alias("preparing", OPTIONS={"prepare_threshold": 0}) as alias:
        for model in (Bare, WithArray):
            rows: RowTable[Any] = RowTable(model, alias)
            with transaction.atomic(using=alias):
                rows.store([model(aggregate_root_id="a", version=1)])
                rows.load_locked(["a"])
                rows.versions(["a"])
                rows.delete({"a": 1})
        names = connections[alias].connection.execute("SELECT statement FROM pg_prepared_statements", prepare=False)
        assert names.fetchall() == []


@pytest.mark.django_db(transaction=True)
def test_two_sessions_take_their_locks_in_one_order_and_none_is_lost(emptied: None) -> None:
    ids = [f"{n:03}" for n in range(50)]
    with transaction.atomic():
        table(Bare).store([Bare(aggregate_root_id=id, version=0) for id in ids])

    def count(alias: str, order: list[str]) -> None:
        rows: RowTable[Any] = RowTable(Bare, alias)
        for _ in range(40):
            with transaction.atomic(using=alias):
                found = rows.load_locked(order)
                for row in found.values():
                    row.version += 1
                assert rows.store([found[id] for id in order]) == len(order)

    with database_alias("one"), database_alias("other"):
        calls = [Call(lambda: count("one", ids)), Call(lambda: count("other", ids[::-1]))]
        for call in calls:
            call.result()
    assert set(table(Bare).versions(ids).values()) == {80}


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("makes_rows", [False, True], ids=["locking", "making"])
def test_rows_are_locked_in_the_order_of_their_ids(emptied: None, makes_rows: bool) -> None:
    if not makes_rows:
        put(Bare, "b", 1)
        put(Bare, "a", 1)

    def take() -> None:
        with transaction.atomic(using="waiting"):
            rows: RowTable[Any] = RowTable(Bare, "waiting")
            if makes_rows:
                rows.store([Bare(aggregate_root_id=id, version=1) for id in "ba"])
            else:
                rows.load_locked(["b", "a"])

    with (
        database_alias("waiting", OPTIONS={"application_name": "waiting"}),
        bare_session() as observer,
        bare_session(options="-c lock_timeout=2s") as third,
    ):
        with transaction.atomic():
            if makes_rows:
                table(Bare).store([Bare(aggregate_root_id="a", version=1)])
            else:
                table(Bare).load_locked(["a"])
            call = Call(take)
            call.wait_for_a_lock(observer, "waiting")
            third.execute(f"INSERT INTO {Bare._meta.db_table} VALUES ('b', 1) ON CONFLICT DO NOTHING")
            third.execute(f"SELECT FROM {Bare._meta.db_table} WHERE aggregate_root_id = 'b' FOR UPDATE")
            third.rollback()
        call.result()


@pytest.mark.django_db(transaction=True)
def test_a_locked_row_is_waited_for_and_then_seen_as_it_was_committed(emptied: None) -> None:
    put(Bare, "a", 1)

    def load() -> int:
        with transaction.atomic(using="waiting"):
            return int(RowTable(Bare, "waiting").load_locked(["a"])["a"].version)

    with database_alias("waiting", OPTIONS={"application_name": "waiting"}), bare_session() as observer:
        with transaction.atomic():
            row = table(Bare).load_locked(["a"])["a"]
            call = Call(load)
            call.wait_for_a_lock(observer, "waiting")
            row.version = 2
            table(Bare).store([row])
        assert call.result() == 2


@pytest.mark.django_db(transaction=True)
def test_two_that_make_the_same_rows_keep_the_higher_versions(emptied: None) -> None:
    def store() -> int:
        with transaction.atomic(using="waiting"):
            return RowTable(Bare, "waiting").store(
                [Bare(aggregate_root_id=id, version=v) for id, v in (("b", 1), ("a", 3))]
            )

    with database_alias("waiting", OPTIONS={"application_name": "waiting"}), bare_session() as observer:
        with transaction.atomic():
            table(Bare).store([Bare(aggregate_root_id=id, version=2) for id in "ba"])
            call = Call(store)
            call.wait_for_a_lock(observer, "waiting")
        assert call.result() == 1
    assert table(Bare).versions(["a", "b"]) == {"a": 3, "b": 2}


@pytest.mark.django_db
def test_an_expression_is_stored_where_saving_takes_it() -> None:
    with transaction.atomic():
        table(WithArray).store([WithArray(aggregate_root_id="a", version=1, moment=Now())])
    assert written(WithArray, "a").moment is not None
    with pytest.raises((Error, ValueError)), transaction.atomic():
        table(WithArray).store([WithArray(aggregate_root_id="b", version=1, number=F("number") + 1)])
