from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import date, datetime
from decimal import Decimal
from enum import Enum, IntEnum
from typing import Annotated, Any, Optional
from uuid import UUID

import pytest

from enode_django.domain.fields import field_type
from enode_django.domain.messages import Command, DomainEvent
from enode_django.domain.refusals import DomainException
from enode_django.exceptions import InvalidField
from enode_django.serialization.schemas import describe, reads, stores_the_same, unreadable

pytestmark = pytest.mark.usefixtures("undeclared")


class Speed(Enum):
    NORMAL = "normal"
    EXPRESS = "express"


class Level(IntEnum):
    LOW = 1


@dataclass(frozen=True)
class Place:
    street: str
    floor: int | None = None


@dataclass(frozen=True)
class House:
    place: Place
    rooms: list[Place] = field(default_factory=list)


TEXTS: list[tuple[Any, str]] = [
    (bool, "bool"),
    (int, "int"),
    (float, "float"),
    (str, "str"),
    (bytes, "bytes"),
    (Decimal, "Decimal"),
    (datetime, "datetime"),
    (date, "date"),
    (UUID, "UUID"),
    (None, "None"),
    (int | None, "int | None"),
    (None | int, "int | None"),
    (Optional[int], "int | None"),  # noqa: UP045
    (Annotated[int, "of something"], "int"),
    (list[Decimal], "list[Decimal]"),
    (set[int], "set[int]"),
    (frozenset[int], "frozenset[int]"),
    (tuple[int, str], "tuple[int, str]"),
    (tuple[int, ...], "tuple[int, ...]"),
    (tuple[()], "tuple[()]"),
    (dict[str, list[int | None]], "dict[str, list[int | None]]"),
    (Speed, "Enum('express', 'normal')"),
    (Level, "Enum(1)"),
    (Place, "Fields(floor=Default[int | None], street=str)"),
    (House, "Fields(place=Fields(floor=Default[int | None], street=str), "
            "rooms=Default[list[Fields(floor=Default[int | None], street=str)]])"),
]  # fmt: skip


def text_of(annotation: Any) -> str:
    cls = type("One", (DomainEvent,), {"__annotations__": {"one": annotation}, "__module__": __name__})
    return describe(cls)["one"]


@pytest.mark.parametrize(("annotation", "text"), TEXTS)
def test_text_of_a_type_says_what_is_stored(annotation: Any, text: str) -> None:
    assert text_of(annotation) == text


def test_fields_are_in_order_of_their_names_and_without_the_envelope() -> None:
    class Sent(Command):
        b: int
        a: str = "x"
        c: list[int] = field(default_factory=list)

    class Refused(DomainException):
        b: int
        a: str = "x"
        c: list[int] = []

    assert describe(Sent) == describe(Refused) == {"a": "Default[str]", "b": "int", "c": "Default[list[int]]"}
    assert list(describe(Sent)) == ["a", "b", "c"]


def test_where_a_class_comes_from_is_no_part_of_its_schema() -> None:
    Renamed = Enum("Renamed", {"FAST": "express", "SLOW": "normal"})
    assert text_of(Renamed) == text_of(Speed)


READS: list[tuple[Any, Any, bool]] = [
    (int | None, int, True),
    (int, int | None, False),
    (int | None, None, True),
    (int | None, str | None, False),
    (float, int, False),
    (int, float, False),
    (str, Decimal, False),
    (Enum("Wider", {"A": "normal", "B": "express", "C": "slow"}), Speed, True),
    (Enum("Narrower", {"A": "normal"}), Speed, False),
    (str, Speed, False),
    (list[int | None], list[int], True),
    (list[int], list[int | None], False),
    (list[int] | None, list[int], True),
    (list[int | None] | None, list[int] | None, True),
    (set[int], list[int], False),
    (tuple[int | None, str], tuple[int, str], True),
    (tuple[int, str], tuple[int, str, str], False),
    (tuple[int, ...], tuple[int, int], False),
    (dict[str, int | None], dict[str, int], True),
    (dict[int, int], dict[str, int], False),
    (Place, House, False),
    (Place, Speed, False),
    (list[int], int, False),
]


@pytest.mark.parametrize(("new", "old", "expected"), READS)
def test_one_type_reads_another_if_every_value_of_it_is_one_of_its_own(new: Any, old: Any, expected: bool) -> None:
    assert reads(text_of(new), text_of(old)) is expected
    assert reads(text_of(new), text_of(new))


@dataclass(frozen=True)
class PlaceWithCity:
    street: str
    city: str = ""


@dataclass(frozen=True)
class PlaceThatNeedsACity:
    street: str
    city: str


EXAMPLES: Mapping[Any, list[Any]] = {
    int: [1, 0],
    int | None: [1, None],
    Speed: list(Speed),
    list[int]: [[1], []],
    Place: [Place("a"), Place("a", 1)],
    tuple[int, str]: [(1, "a")],
    dict[str, int]: [{"a": 1}],
}


@pytest.mark.parametrize("old", EXAMPLES)
@pytest.mark.parametrize("new", [*EXAMPLES, list[int | None], dict[str, int | None], PlaceWithCity, Place | None])
def test_what_is_said_to_be_read_decodes_and_nothing_else(new: Any, old: Any) -> None:
    encode = field_type(old).encode
    stored = [encode(value) if encode else value for value in EXAMPLES[old]]
    assert reads(text_of(new), text_of(old)) is all(decodes(new, plain) for plain in stored)


def decodes(annotation: Any, plain: Any) -> bool:
    try:
        field_type(annotation).decode(plain)
    except InvalidField:
        return False
    return True


def test_fields_of_a_nested_dataclass_are_compared_as_those_of_an_event() -> None:
    assert reads(text_of(PlaceWithCity), text_of(Place))
    assert reads(text_of(list[PlaceWithCity]), text_of(list[Place]))
    assert not reads(text_of(PlaceThatNeedsACity), text_of(Place))


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        ("int", "Default[int]", True),
        ("list[Fields(a=int)]", "Default[list[Fields(a=Default[int])]]", True),
        ("int", "int | None", False),
        ("Fields(a=int)", "Fields(a=Default[str])", False),
        ("Map<int>", "Map<int>", True),
        ("Map<int>", "int", False),
    ],
)
def test_defaults_make_no_difference_to_what_is_stored(one: str, other: str, expected: bool) -> None:
    assert stores_the_same(one, other) is stores_the_same(other, one) is expected


def test_unreadable_names_each_field_and_why() -> None:
    old = {"same": "int", "gone": "str", "typed": "str", "wider": "int"}
    new = {"same": "int", "typed": "Default[int]", "wider": "int | None", "new": "str", "more": "Default[str]"}
    assert unreadable(new, old) == {"typed": "was str and is int", "new": "is new and has no default"}


def test_a_text_that_was_written_by_hand_reads_itself_only() -> None:
    assert reads("Map<int>", "Map<int>")
    assert not reads("Map<int>", "int")
