"""Whatever a field accepts comes back equal from its JSON, but for what JSON must not bring; whatever JSON arrives is
read, or refused with its place."""

from __future__ import annotations

import dataclasses
import json
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from enode_django.domain.declarations import plain_of
from enode_django.domain.fields import field_type
from enode_django.domain.messages import Command
from enode_django.exceptions import InvalidFields
from enode_django.serialization.json_scalars import MOST_ERRORS, Errors
from enode_django.serialization.json_text import json_text, json_value
from enode_django.serialization.json_values import command_from_json, json_fields, json_type
from tests.properties.test_codec import FIELDS, Colour, Everything, Level, Line, typed, typed_values

NOT_FROM_JSON = ("digits", "NUL", "infinite")
"""Words of the refusals of values that only code may pass."""
anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)


def read(annotation: Any, value: Any) -> tuple[Any, Errors]:
    errors: Errors = {}
    return json_type(annotation).read(value, (), errors), errors


@settings(max_examples=60, deadline=None)
@given(typed_values)
def test_every_accepted_value_comes_back_equal_from_its_json(typed_value: tuple[Any, Any]) -> None:
    annotation, value = typed_value
    kind = field_type(annotation)
    checked = kind.check(value)
    plain = kind.encode(checked) if kind.encode else checked
    written = json.loads(json.dumps(json_value(plain)))
    assert written == json.loads(json_text(plain))
    back, errors = read(annotation, written)
    assume(not any(word in text for text in errors.values() for word in NOT_FROM_JSON))
    assert errors == {}
    assert kind.check(back) == checked


@settings(max_examples=40, deadline=None)
@given(fields=st.fixed_dictionaries({}, optional=FIELDS))
def test_a_command_comes_back_equal_from_its_json(fields: dict[str, Any]) -> None:
    command = Everything("a", id="c", **fields)
    try:
        back = command_from_json(Everything, "a", json_value(plain_of(command)), id="c")
    except InvalidFields as error:
        assume(not any(word in text for text in error.errors.values() for word in NOT_FROM_JSON))
        raise
    assert back == command


@settings(max_examples=60, deadline=None)
@given(typed, anything)
def test_any_json_is_read_as_a_value_of_the_type_or_refused(kind: tuple[Any, Any], value: Any) -> None:
    back, errors = read(kind[0], value)
    if not errors:
        field_type(kind[0]).check(back)
    assert all(type(path) is tuple and text for path, text in errors.items())


@pytest.mark.parametrize(
    ("annotation", "value", "message"),
    [
        (int, True, "expected a whole number, got True"),
        (int, 5.0, "expected a whole number"),
        (bool, 1, "expected true or false"),
        (str, "a\0b", "holds a NUL"),
        (str, "\ud800", "half of a surrogate pair"),
        (str, None, "expected a string"),
        (float, "nan", "expected a number"),
        (float, 10**400, "expected a number"),
        (float, 2**53 + 1, "more digits than a float holds"),
        (Decimal, 1.5, 'such as "12.50"'),
        (Decimal, "NaN", "decimal number"),
        (Decimal, "Infinity", "is infinite; send a finite number"),
        (Decimal, "1e5000", "too many digits"),
        (Decimal, 10**2000, "too many digits"),
        (Decimal, "١", "decimal number"),
        (datetime, "2026-01-31T12:00:00", "with its offset"),
        (datetime, "2026-13-31T12:00:00Z", "with its offset"),
        (date, "2026-02-30", "such as 2026-01-31"),
        (UUID, "{00000000-0000-0000-0000-000000000000}", "36 characters"),
        (bytes, "a", "no base64"),
        (bytes, "a*==", "no base64"),
        (Colour, "blue", "one of 'red', None"),
        (Level, True, "one of 1"),
        (set[int], [1, 1], "there twice"),
        (dict[Decimal, int], {"1.0": 1, "1.00": 2}, "written differently"),
        (tuple[int, int], [1], "an array of 2 items"),
        (list[int], {"0": 1}, "expected an array"),
        (dict[str, int], [], "expected an object"),
    ],
)
def test_what_does_not_fit_is_refused_with_what_to_send(annotation: Any, value: Any, message: str) -> None:
    _, errors = read(annotation, value)
    assert list(errors) == [()]
    assert message in errors[()]


def test_all_that_is_wrong_is_told_with_its_place() -> None:
    wrong = {"ends": [{"x": "1"}, {"x": "one", "tags": ["a", 2]}], "colour": "blue", "width": 1}
    _, errors = read(Line, wrong)
    assert set(errors) == {("ends", 1, "x"), ("ends", 1, "tags", 1), ("colour",), ("width",)}
    _, errors = read(Line, {})
    assert errors == {("ends",): "this field is required"}


def test_no_more_is_told_than_somebody_reads() -> None:
    _, errors = read(list[int], ["x"] * 10_000)
    assert len(errors) == MOST_ERRORS


@dataclasses.dataclass(frozen=True)
class Share:
    percent: int

    def __post_init__(self) -> None:
        if self.percent > 100:
            raise ValueError(f"{self.percent} % is more than all")


class Split(Command):
    type_name = "json.Split"
    shares: tuple[Share, ...]
    note: str = ""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.shares:
            raise ValueError("shares are missing; give one at least")


def test_what_a_class_itself_refuses_is_told_with_its_place() -> None:
    with pytest.raises(InvalidFields) as caught:
        command_from_json(Split, "a", {"shares": [{"percent": 50}, {"percent": 500}]}, path=("fields",))
    assert caught.value.errors == {("fields", "shares", 1): "500 % is more than all"}
    with pytest.raises(InvalidFields, match="give one at least"):
        command_from_json(Split, "a", {"shares": []})
    with pytest.raises(InvalidFields) as caught:
        command_from_json(Split, "", {"shares": [{"percent": 50}]})
    assert list(caught.value.errors) == [("aggregate_root_id",)]
    with pytest.raises(InvalidFields) as caught:
        command_from_json(Split, 5, {"note": "a"})
    assert set(caught.value.errors) == {("aggregate_root_id",), ("shares",)}


def test_the_schema_names_types_and_what_is_required() -> None:
    assert json_fields(Split).schema == {
        "type": "object",
        "properties": {
            "shares": {
                "type": "array",
                "items": {
                    "type": "object",
                    "properties": {"percent": {"type": "integer"}},
                    "required": ["percent"],
                    "additionalProperties": False,
                },
            },
            "note": {"type": "string"},
        },
        "required": ["shares"],
        "additionalProperties": False,
    }
    assert json_type(Decimal | None).schema["anyOf"][1] == {"type": "null"}
    assert json_type(Level).schema == {"enum": [1, 2**40], "type": "integer"}


def test_times_keep_their_instant() -> None:
    moment, _ = read(datetime, "2026-01-31T13:00:00+01:00")
    assert moment == datetime(2026, 1, 31, 12, tzinfo=UTC)
