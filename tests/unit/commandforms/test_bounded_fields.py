"""Bounds, literals and a command's own rules at the border: in forms, serializers, JSON and its schema."""

from __future__ import annotations

from decimal import Decimal
from typing import Annotated, Any, Literal

import pytest
from annotated_types import Predicate
from django.utils.translation import override
from msgspec import Meta

from enode_django import Command
from enode_django.api.openapi import nullable
from enode_django.exceptions import InvalidFields, InvalidId
from enode_django.forms import command_form
from enode_django.ids import check_given_id
from enode_django.serialization.json_values import command_from_json, json_fields
from enode_django.serialization.plain import MOST_DIGITS
from enode_django.serializers import CommandSerializer
from tests.unit.commandforms.domain import Fill

BIG = 10 ** (MOST_DIGITS + 2)


class Book(Command):
    type_name = "commandforms.Book"
    seats: Annotated[int, Meta(ge=1, le=9)]
    price: Annotated[Decimal, Meta(gt=0)]
    name: Annotated[str, Meta(min_length=2, max_length=5)]
    way: Literal["there", "back"]
    stops: list[Annotated[str, Meta(pattern="^[a-z]+$")]]
    row: Annotated[int, Meta(gt=0, multiple_of=2)] | None = None
    level: Literal[1, "1", True] = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.way == "back" and self.seats > 2:
            raise ValueError("only two seats are free on the way back")


class Pay(Command):
    type_name = "commandforms.Pay"
    amount: Annotated[Decimal, Meta(gt=0)]
    currency: Annotated[str, Meta(pattern="^[A-Z]{3}$")]
    share: Annotated[float, Predicate(lambda share: share < 0.5)]
    rows: Annotated[list[int], Meta(min_length=1)]


class BookSerializer(CommandSerializer):
    class Meta:
        command = Book


VALID: dict[str, Any] = {"seats": 2, "price": "1.50", "name": "Ada", "way": "back", "stops": ["bern"], "row": 4}
ENTERED = {**VALID, "stops": '["bern"]', "level": "'1'"}
WRONG: list[tuple[str, Any, str]] = [
    ("seats", 0, "0 must be at least 1"),
    ("seats", 10, "10 must be at most 9"),
    ("price", "0", "Decimal('0') must be more than 0"),
    ("name", "A", "'A' must have a length of at least 2"),
    ("name", "", "'' must have a length of at least 2"),
    ("way", "up", "expected one of 'there', 'back', got 'up'"),
    ("row", 3, "3 must be a multiple of 2"),
    ("row", 0, "0 must be more than 0"),
    ("row", BIG, "send at most 1000"),
]


def test_a_form_has_the_bounds_of_its_command() -> None:
    form = command_form(Book)(ENTERED, aggregate_root_id="a")
    assert form.is_valid(), form.errors
    command: Any = form.command()
    assert (command.seats, command.row, command.way, command.level) == (2, 4, "back", "1")
    shown = command_form(Book)().as_p()
    for attributes in ('min="1"', 'max="9"', 'minlength="2"', 'maxlength="5"', '<option value="back">back</option>'):
        assert attributes in shown
    assert '<option value="1" selected>1</option>' in shown
    assert '<option value="True">True</option>' in shown


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("seats", 0, "greater than or equal to 1"),
        ("seats", BIG, "less than or equal to 9"),
        ("price", "0", "Ensure this value is greater than 0."),
        ("name", "A", "at least 2 characters"),
        ("way", "up", "Select a valid choice"),
        ("stops", '["Bern"]', "0: 'Bern' must match the pattern '^[a-z]+$'"),
        ("row", "3", "Ensure this value is a multiple of step size 2."),
        ("row", str(BIG), "at most 1000 digits"),
        ("row", "9" * 5000, "Enter a whole number."),
    ],
)
def test_what_is_out_of_bounds_is_an_error_of_its_field_of_a_form(name: str, value: Any, text: str) -> None:
    form = command_form(Book)({**ENTERED, name: value}, aggregate_root_id="a")
    assert not form.is_valid()
    assert text in " ".join(form.errors[name])


def test_a_form_tells_bounds_to_people_in_their_language() -> None:
    form = command_form(Pay)({"amount": "0.00", "currency": "e", "share": "0.7", "rows": "[]"}, aggregate_root_id="a")
    with override("de"):
        assert form.errors == {
            "amount": ["Ensure this value is greater than 0."],
            "currency": ["Bitte einen gültigen Wert eingeben."],
            "share": ["Bitte einen gültigen Wert eingeben."],
            "rows": ["[] must have a length of at least 1"],
        }


@pytest.mark.parametrize(("name", "value", "text"), [*WRONG, ("stops", ["a", "B"], "1: 'B' must match the pattern")])
def test_what_is_out_of_bounds_is_an_error_of_its_field_of_a_serializer(name: str, value: Any, text: str) -> None:
    serializer = BookSerializer(data={**VALID, name: value})
    assert not serializer.is_valid()
    assert text in " ".join(serializer.errors[name])


@pytest.mark.parametrize(("name", "value", "text"), WRONG)
def test_what_is_out_of_bounds_is_told_with_its_place_in_json(name: str, value: Any, text: str) -> None:
    with pytest.raises(InvalidFields) as raised:
        command_from_json(Book, "a", {**VALID, name: value, "stops": ["B"]}, path=("fields",))
    assert raised.value.errors.keys() == {("fields", name), ("fields", "stops", 0)}
    assert text in raised.value.errors["fields", name]


def test_a_value_error_of_the_commands_own_rules_is_an_error_of_the_form_or_the_request() -> None:
    text = "only two seats are free on the way back"
    form = command_form(Book)({**ENTERED, "seats": 3}, aggregate_root_id="a")
    assert not form.is_valid()
    assert form.non_field_errors() == [text]
    with pytest.raises(InvalidFields) as raised:
        command_from_json(Book, "a", {**VALID, "seats": 3}, path=("fields",))
    assert raised.value.errors == {("fields",): text}


def test_the_json_schema_tells_literals_and_bounds() -> None:
    properties = json_fields(Book).schema["properties"]
    assert properties == {
        "seats": {"type": "integer", "minimum": 1, "maximum": 9},
        "price": {**properties["price"], "description": "It must be more than 0."},
        "name": {"type": "string", "minLength": 2, "maxLength": 5},
        "way": {"type": "string", "enum": ["there", "back"]},
        "stops": {"type": "array", "items": {"type": "string", "pattern": "^[a-z]+$"}},
        "row": {"anyOf": [{"type": "integer", "exclusiveMinimum": 0, "multipleOf": 2}, {"type": "null"}]},
        "level": {"enum": [1, "1", True]},
    }
    older = {"type": "integer", "minimum": 0, "exclusiveMinimum": True, "multipleOf": 2, "nullable": True}
    assert nullable(properties["row"]) == older


BAD_IDS = ["a\x1b[2J", "a\nb", "a\x9fb", "a\u202eb", "a\ud800", "a\0", "a" * 256]


@pytest.mark.parametrize("id", [*BAD_IDS, ""])
def test_an_id_from_outside_has_no_control_characters_and_is_not_too_long(id: str) -> None:
    with pytest.raises(InvalidFields) as raised:
        command_from_json(Fill, id, {"coins": 1})
    assert raised.value.errors.keys() == {("aggregate_root_id",)}
    form = command_form(Fill, ("aggregate_root_id", "coins"))({"aggregate_root_id": id, "coins": "1"})
    assert form.errors.keys() == {"aggregate_root_id"}
    meta = type("Meta", (), {"command": Fill, "fields": ("aggregate_root_id", "coins")})
    serializer = type("FillSerializer", (CommandSerializer,), {"Meta": meta})(
        data={"aggregate_root_id": id, "coins": 1}
    )
    assert not serializer.is_valid()
    assert serializer.errors.keys() == {"aggregate_root_id"}


def test_what_is_stored_under_an_id_with_control_characters_can_still_be_sent_commands_by_code() -> None:
    assert Fill("a\tb", coins=1).aggregate_root_id == "a\tb"
    with pytest.raises(InvalidId, match="id 'a\\\\tb' holds control characters; leave them out"):
        check_given_id("a\tb")
    assert check_given_id("é 日本 😀") == "é 日本 😀"
