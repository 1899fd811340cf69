"""A row does not depend on which events are handled together."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from django.core.exceptions import ValidationError
from django.db import Error, connection, models, transaction
from django.db.models import Value
from django.db.models.functions import Upper
from django.db.transaction import TransactionManagementError
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from psycopg.types.range import Range

from enode_django.eventing.read_models.column_types import OnlyDatabaseKnows
from enode_django.eventing.read_models.compiled_rows import HANDLED
from enode_django.eventing.read_models.row_changes import RowChanges, changed_row
from enode_django.eventing.read_models.rows import RowTable
from tests.integration.rowsapp.models import (
    Bare,
    Colour,
    Dated,
    Every,
    Numbered,
    Odd,
    Own,
    Region,
    Remark,
    Remembering,
    Size,
    WithArray,
    Worded,
)
from tests.projection_rows.rows import stored, table

Given = dict[str, Any]
"""The values that an event gives to fields, by name of the field."""
Seen = list[dict[str, Any]]

REFUSALS = (Error, ValueError, TypeError, ValidationError)

words = st.text(st.sampled_from("aB 9_ß🏦\t"), max_size=12)
zones = st.sampled_from([UTC, timezone(timedelta(hours=-5)), ZoneInfo("Europe/Berlin"), None])
moments = st.datetimes(datetime(1950, 1, 1), datetime(2090, 1, 1), timezones=zones)
numbers = st.integers(-40_000, 40_000)
decimals = st.decimals(-10_000, 10_000, places=4, allow_nan=False) | st.sampled_from(
    [Decimal("0.005"), Decimal("-0.001"), Decimal("9999.995"), Decimal("1E+3"), Decimal(-0), Decimal("NaN"), 1.5, "2.5"]
)
plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | words,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(words | st.integers() | st.none(), inner, max_size=3),
    max_leaves=6,
)
naturals = st.integers(-3, 40_000) | st.sampled_from([True, "12", Size.LARGE, 2**31, 1.5])
texts = words | st.sampled_from(["", Colour.RED, 5, "ten chars.   ", "eleven char", "nul \0", "half \ud800"])

VALUES: dict[type[models.Model], dict[str, st.SearchStrategy[Any]]] = {
    Every: {
        "big": st.integers(-(2**63), 2**63 - 1) | st.just(2**63),
        "raw": st.binary(max_size=4) | st.sampled_from([memoryview(b"ab"), bytearray(b"c")]),
        "flag": st.booleans() | st.sampled_from([1, "t", "False"]),
        "name": texts,
        "day": st.dates() | moments | st.just("2024-02-29"),
        "moment": moments | st.sampled_from([date(2024, 2, 29), "2024-02-29 12:00Z"]),
        "amount": decimals,
        "span": st.timedeltas() | st.just("1 day"),
        "email": texts,
        "file": texts.filter(lambda text: text != 5),
        "path": texts,
        "ratio": st.floats() | numbers | st.just("1.5"),
        "region_id": numbers | st.sampled_from(["1", 2**31]),
        "address": (st.ip_addresses() | st.sampled_from(["10.0.0.1", "::", "::1", "::ffff:1.2.3.4", "::2.3.4.5"])).map(
            str
        ),
        "image": texts.filter(lambda text: text != 5),
        "number": numbers | st.sampled_from([2**31, "12", Decimal("1.7"), True]),
        "data": plain
        | st.sampled_from(
            [
                {"nul": "\0"},
                {"half": "\ud800"},
                {"\udfe6": 1, "b": 2},
                {"🏦": 1, "bb": 2},
                {1: 2, "1": 3},
                float("nan"),
                Value(None, models.JSONField()),
            ]
        ),
        "place_id": words,
        "natural_big": naturals,
        "natural": naturals,
        "natural_small": naturals,
        "slug": texts,
        "small": numbers,
        "text": texts,
        "time": st.times(timezones=zones) | moments | st.just("12:30"),
        "link": texts,
        "uuid": st.uuids() | st.uuids().map(str),
        "needed": numbers | st.none(),
        "lowered": words,
    },
    Odd: {
        "tags": st.lists(st.text("abc", max_size=4) | st.none(), max_size=3),
        "amounts": st.lists(decimals, max_size=3),
        "table": st.lists(st.lists(st.integers(0, 9), min_size=2, max_size=2), max_size=2),
        "numbers": st.builds(Range, st.integers(-9, -1), st.integers(0, 9), st.sampled_from(["[]", "()"])),
        "decoded": plain,
        "since": moments.filter(lambda moment: moment.tzinfo is not None),
        "count": numbers,
    },
}


def seen_in(row: models.Model) -> dict[str, str]:
    return {
        field.attname: repr(getattr(row, field.attname, None))
        for field in row._meta.concrete_fields
        if field.attname not in ("version", "since")
    }


def columns_of(model: type[models.Model]) -> dict[str, Any]:
    return {name: value for name, value in stored(model)["a"].items() if name != "since"}


def handle(model: type[Any], batches: Sequence[Sequence[Given]], rows: RowTable[Any] | None = None) -> Seen | None:
    """Return the row that each event found, and finally the one that a reader finds. None if one of the events is
    refused."""
    seen: Seen = []

    def handler(row: Any, event: Any) -> None:
        seen.append(seen_in(row) if row.version else {})
        for name, value in event.items():
            setattr(row, name, value)

    rows, version = rows or table(model), 0
    try:
        with transaction.atomic():
            for batch in batches:
                row = rows.load_locked(["a"]).get("a")
                for event in batch:
                    row = changed_row(model, "a", row, [(event, [handler])], rows.normalise)  # type: ignore[list-item]
                    version += 1
                    row.version = version
                rows.store([row])
            last = [seen_in(rows.load_locked(["a"])["a"]), columns_of(model)]
            transaction.set_rollback(True)
        return [*seen, *last]
    except TransactionManagementError:
        raise
    except REFUSALS:
        return None


def each_alone(history: Sequence[Given]) -> list[list[Given]]:
    return [[event] for event in history]


def events_of(model: type[models.Model]) -> st.SearchStrategy[Given]:
    one_of = [
        st.tuples(st.just(name), values if name == "needed" or model is Odd else values | st.none())
        for name, values in VALUES[model].items()
    ]
    return st.lists(st.one_of(*one_of), max_size=4).map(dict)


@st.composite
def split_histories(draw: Any, model: type[models.Model]) -> list[list[Given]]:
    history = draw(st.lists(events_of(model), min_size=2, max_size=5))
    batches: list[list[Given]] = [[]]
    for event in history:
        if batches[-1] and draw(st.booleans()):
            batches.append([])
        batches[-1].append(event)
    return batches


@pytest.mark.django_db
@pytest.mark.filterwarnings("ignore:DateTimeField .* received a naive datetime")
@pytest.mark.parametrize("model", [Every, Odd])
def test_any_split_of_any_history_gives_the_same_row(model: type[models.Model]) -> None:
    @settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.too_slow])
    @given(split_histories(model))
    def check(batches: list[list[Given]]) -> None:
        history = [event for batch in batches for event in batch]
        expected = handle(model, each_alone(history), rows)
        assert handle(model, batches, rows) == expected
        assert handle(model, [history], rows) == expected

    rows = table(model)
    check()


@pytest.mark.django_db
@pytest.mark.filterwarnings("ignore:DateTimeField .* received a naive datetime")
@pytest.mark.parametrize(("model", "name"), [(model, name) for model, names in VALUES.items() for name in names])
def test_two_events_see_the_same_whether_they_come_together_or_apart(model: type[models.Model], name: str) -> None:
    @settings(max_examples=6, deadline=None, suppress_health_check=[HealthCheck.too_slow])
    @given(VALUES[model][name])
    def check(value: Any) -> None:
        history: list[Given] = [{name: value}, {}]
        assert handle(model, [history], rows) == handle(model, each_alone(history), rows)

    rows = table(model)
    check()


ORDINARY: Given = {
    "big": 5,
    "raw": b"x",
    "flag": True,
    "name": "a name",
    "day": date(2026, 1, 1),
    "moment": datetime(2026, 1, 1, tzinfo=timezone(timedelta(hours=3))),
    "amount": Decimal("0.005"),
    "span": timedelta(days=1),
    "email": "a@b.de",
    "file": "a/b.txt",
    "path": "/a/b",
    "ratio": 1,
    "region_id": "1",
    "address": "10.0.0.1",
    "image": "a.png",
    "number": "12",
    "data": {1: [1e16, 0.5], "🏦": None},
    "place_id": "here",
    "natural_big": 1,
    "natural": Size.LARGE,
    "natural_small": True,
    "slug": "a",
    "small": 1.5,
    "text": Colour.RED,
    "time": time(1, 2),
    "link": "http://a",
    "uuid": str(uuid.UUID(int=1)),
    "needed": 1,
    "lowered": "ABC",
}


def test_ordinary_values_of_every_field_are_known_without_asking_the_database() -> None:
    row = Every(aggregate_root_id="a", **ORDINARY)
    setattr(row, HANDLED, ())
    assert table(Every)._normaliser.normalise(row)
    assert (row.amount, row.region_id, row.number, row.small) == (Decimal("0.01"), 1, 12, 1)
    assert (row.data, row.lowered, str(row.amount)) == ({"1": [10**16, 0.5], "🏦": None}, "<abc>", "0.01")
    assert row.moment == ORDINARY["moment"]
    assert row.moment.tzinfo is UTC


@pytest.mark.django_db
def test_ordinary_values_are_those_that_are_loaded() -> None:
    row = Every(aggregate_root_id="a", version=1, **ORDINARY)
    setattr(row, HANDLED, ())
    with transaction.atomic():
        table(Every).store([Every(aggregate_root_id="a", version=1, **ORDINARY)])
        (loaded,) = table(Every).load_locked(["a"]).values()
    table(Every).normalise_in_memory(row)
    assert seen_in(row) == seen_in(loaded)


def test_every_class_of_fields_is_among_those_that_are_tried() -> None:
    """A version of Django that brings another class has to be tried with it."""
    known = {field for field in vars(models).values() if isinstance(field, type) and issubclass(field, models.Field)}
    tried = {type(field) for model in (Every, Odd) for field in model._meta.concrete_fields}
    keys = {models.AutoField, models.BigAutoField, models.SmallAutoField, models.CompositePrimaryKey}
    of_no_column = {models.Field, models.ForeignObject, models.ManyToManyField, models.OrderWrt}
    gone = {models.CommaSeparatedIntegerField, models.IPAddressField, models.NullBooleanField}
    assert known - keys - of_no_column - gone <= tried


@pytest.mark.django_db
def test_a_batch_refuses_a_value_that_a_later_event_would_replace() -> None:
    assert handle(Every, [[{"name": "much too long"}, {"name": "short"}]]) is None
    assert handle(Every, [[{"needed": None}, {"needed": 1}]]) is None
    assert handle(Every, [[{"natural": -1}, {"natural": 1}]]) is None
    assert handle(Every, [[{"small": 2**15}, {"small": 1}]]) is None
    assert handle(Every, [[{"amount": Decimal("NaN")}, {"amount": 1}]]) is None
    assert handle(Every, [[{"name": "nul \0"}, {"name": "short"}]]) is None
    assert handle(Own, [[{"digit": 10}, {"digit": 1}]]) is None
    assert handle(WithArray, [[{"table": [[1], [2, 3]]}, {"table": [[1]]}]]) is None


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("model", "given", "seen"),
    [
        (Own, {"shouted": "abc"}, "'ABC'"),
        (Own, {"whispered": "ABC"}, "'abc'"),
        (Worded, {"words": ["a", "b"]}, "['a', 'b']"),
        (Own, {"initial": "x", "name": "abc"}, "'a'"),
        (Own, {"decoded": 1.5}, "Decimal('1.5')"),
        (WithArray, {"table": [[1, 2], [3, 4]]}, "[[1, 2], [3, 4]]"),
        (Every, {"amount": Decimal("-0.001")}, "Decimal('0.00')"),
        (Every, {"amount": -0.001}, "Decimal('0.00')"),
        (Every, {"data": -0.0}, "0.0"),
        (
            Every,
            {"moment": datetime(2026, 1, 1, tzinfo=UTC, fold=1)},
            "datetime.datetime(2026, 1, 1, 0, 0, tzinfo=datetime.timezone.utc)",
        ),
    ],
)
def test_the_next_event_sees_what_the_column_made_of_a_value(model: Any, given: Given, seen: str) -> None:
    apart = handle(model, [[given], [{}]])
    assert apart is not None
    assert apart[1][next(iter(given))] == seen
    assert handle(model, [[given, {}]]) == apart


@pytest.mark.django_db
def test_the_next_event_sees_what_the_column_makes_of_a_document_that_was_changed_in_place() -> None:
    def note(row: Any, event: Any) -> None:
        documents.append(repr(row.data))
        row.data[event] = (event,)

    documents: list[str] = []
    row = Every(aggregate_root_id="a", data={})
    changed_row(Every, "a", row, [(1, [note]), (2, [note]), (3, [note])], table(Every).normalise_in_memory)  # type: ignore[list-item]
    assert documents == ["{}", "{'1': [1]}", "{'1': [1], '2': [2]}"]


@pytest.mark.django_db
def test_the_next_event_sees_the_dates_of_a_new_row() -> None:
    def note(row: Any, event: Any) -> None:
        dates.append((row.created_at, row.changed_at))

    dates: list[Any] = []
    changed_row(Dated, "a", None, [(None, [note]), (None, [note])], table(Dated).normalise_in_memory)  # type: ignore[list-item]
    assert dates[0] == (None, None)
    assert None not in dates[1]


@pytest.mark.django_db
@pytest.mark.parametrize("model", [pytest.param(Every, id="in memory"), pytest.param(Numbered, id="by the database")])
def test_a_new_row_is_a_stored_one_for_the_next_event(model: type[models.Model]) -> None:
    def note(row: Any, event: Any) -> None:
        states.append((row._state.adding, row._state.db))

    states: list[Any] = []
    with transaction.atomic():
        changed_row(model, "a", None, [(None, [note])] * 3, table(model).normalise)  # type: ignore[list-item]
    assert states == [(True, None), (False, "default"), (False, "default")]


@pytest.mark.django_db
@pytest.mark.parametrize("shouted", [pytest.param(None, id="in memory"), pytest.param("x", id="by the database")])
def test_a_field_that_is_set_when_a_row_is_made_is_set_by_the_first_event(shouted: str | None) -> None:
    history: list[Given] = [{"name": "ann", "shouted": shouted}, {"name": "bob"}, {"name": "cat"}]
    apart = handle(Own, each_alone(history))
    assert handle(Own, [history]) == handle(Own, [history[:2], history[2:]]) == apart is not None
    assert apart[-1]["first_name"] == "ann"


@pytest.mark.django_db
def test_what_a_handler_leaves_on_a_row_is_gone_for_the_next_event() -> None:
    def mark(row: Any, event: Any) -> None:
        assert not hasattr(row, "own")
        assert not row._state.fields_cache
        row.own, row.region, row.remark = 1, Region(number=1), Remark()

    row = None
    for _ in range(2):
        row = changed_row(Every, "a", row, [(None, [mark])], table(Every).normalise_in_memory)  # type: ignore[list-item]
    assert row.region_id == 1


@pytest.mark.django_db
def test_what_a_handler_leaves_on_a_row_without_other_fields_is_gone_for_the_next_event() -> None:
    def mark(row: Any, event: Any) -> None:
        assert not hasattr(row, "own")
        row.own = 1

    changed_row(Bare, "a", None, [(None, [mark]), (None, [mark])], table(Bare).normalise_in_memory)  # type: ignore[list-item]


@pytest.mark.django_db
def test_what_loading_adds_to_a_row_is_there_for_the_next_event() -> None:
    def count(row: Any, event: Any) -> None:
        row.count = getattr(row, "loaded", 10) + 1

    rows, row = table(Remembering), None
    with transaction.atomic():
        for version in (1, 2, 3):
            row = changed_row(Remembering, "a", row, [(None, [count])], rows.normalise)  # type: ignore[list-item]
            row.version = version
    assert row.count == 13


@pytest.mark.django_db
def test_a_row_that_has_to_be_stored_to_be_normalised_is_not_stored_by_that() -> None:
    rows = table(Odd)
    with transaction.atomic():
        row = Odd(aggregate_root_id="a", count=4, tags=["long as it is"[:3]])
        setattr(row, HANDLED, ())
        rows.normalise(row)
        assert (row.doubled, row.version, rows.versions(["a"])) == (8, 0, {})
    with pytest.raises(OnlyDatabaseKnows, match="Odd 'a' has to be stored"):
        rows.normalise_in_memory(row)


@pytest.mark.django_db
@pytest.mark.parametrize("model", [pytest.param(Every, id="in arrays"), pytest.param(WithArray, id="as values")])
def test_an_expression_is_computed_between_two_events(model: type[models.Model]) -> None:
    history: list[Given] = [{"number": 1}, {"name": Upper(Value("abc"))}, {"number": Value(3) + Value(4)}, {}]
    apart = handle(model, each_alone(history))
    assert handle(model, [history]) == apart is not None
    assert (apart[-1]["name"], apart[-1]["number"]) == ("ABC", "7")


@pytest.mark.django_db
def test_a_column_that_is_made_of_the_version_has_that_of_the_last_event() -> None:
    history: list[Given] = [{"name": "a"}, {"name": "b"}, {"name": "c"}]
    apart = handle(Numbered, each_alone(history))
    assert handle(Numbered, [history]) == handle(Numbered, [history[:1], history[1:]]) == apart is not None


@pytest.mark.django_db
@pytest.mark.parametrize("events", [1, 2])
def test_a_row_that_is_deleted_and_made_anew_keeps_nothing_of_the_old_one(events: int) -> None:
    def delete(row: Any, event: Any) -> None:
        row._enode_deleted = True

    def note(row: Any, event: Any) -> None:
        dates.append(getattr(row, "since", None))

    long_ago = datetime(2001, 1, 1, tzinfo=UTC)
    dates: list[Any] = []
    rows = table(Numbered)
    Numbered(aggregate_root_id="a", version=1).save(force_insert=True)
    Numbered.objects.update(since=long_ago)
    with transaction.atomic():
        row = rows.load_locked(["a"])["a"]
        changes = RowChanges(rows, {"a": row}, {"a": 1})
        followed: list[Any] = [(None, [delete]), *[(None, [note])] * events]
        row = changed_row(Numbered, "a", row, followed, rows.normalise)
        row.version = 4
        changes.note("a", row, 4)
        changes.write("default", "some subscriber")
    assert (len(dates), dates[0]) == (events, None)
    assert all(date > long_ago for date in dates[1:])
    assert Numbered.objects.get().since > long_ago


@pytest.mark.django_db(transaction=True)
def test_without_time_zones_any_split_gives_the_same_row(settings: Any) -> None:
    settings.USE_TZ, settings.TIME_ZONE = False, "Europe/Berlin"
    connection.close()  # else it goes on in the zone that it has begun in
    left_out = datetime(2026, 3, 29, 2, 30)
    for moment in (left_out, datetime(2026, 10, 25, 2, 30, fold=1), datetime(2026, 1, 1, tzinfo=UTC)):
        history: list[Given] = [{"moment": moment}, {}]
        apart = handle(Every, each_alone(history))
        assert handle(Every, [history]) == apart is not None
    connection.close()
