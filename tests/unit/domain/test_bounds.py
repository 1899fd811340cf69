"""Literals and the bounds that ``Annotated`` puts beside a type, by `msgspec.Meta` and by annotated-types."""

from __future__ import annotations

import dataclasses
from datetime import UTC, datetime
from decimal import Decimal
from enum import Enum, IntEnum
from typing import Annotated, Any, Literal

import pytest
from msgspec import Meta

from enode_django import AggregateRoot, Command, DomainEvent, DomainException
from enode_django.domain.declarations import plain_of
from enode_django.domain.fields import field_type
from enode_django.domain.messages import message_of, restored_command, seal
from enode_django.domain.refusals import restored_refusal
from enode_django.domain.scalars import UnsupportedType
from enode_django.exceptions import InvalidField
from enode_django.serialization.schemas import describe, reads

Count = Annotated[int, Meta(ge=1, le=9)]
Name = Annotated[str, Meta(min_length=1, max_length=3, pattern="^[a-z]*$")]


@dataclasses.dataclass(frozen=True)
class Line:
    count: Count


class Order(Command):
    type_name = "bounds.Order"
    count: Count = 1
    lines: list[Line] = dataclasses.field(default_factory=list)
    by_name: dict[Name, Annotated[Decimal, Meta(gt=0)]] = dataclasses.field(default_factory=dict)
    speed: Literal["slow", "fast"] = "slow"


class Ordered(DomainEvent):
    type_name = "bounds.Ordered"
    count: Count
    tags: list[Name] = dataclasses.field(default_factory=list)


class Refused(DomainException):
    type_name = "bounds.Refused"
    count: Count


class Way(Enum):
    UP = "up"
    DOWN = "down"


class Moved(DomainEvent):
    type_name = "bounds.Moved"
    way: Literal["up", "down"]
    steps: Annotated[int, Meta(ge=1)]


class MovedBefore(DomainEvent):
    type_name = "bounds.MovedBefore"
    way: Way
    steps: int


class Basket(AggregateRoot):
    type_name = "bounds.Basket"
    count: Count = 1


def order(**fields: Any) -> Order:
    return Order("o", **fields)


@pytest.mark.parametrize(
    ("annotation", "inside", "outside", "text"),
    [
        (Annotated[int, Meta(ge=0)], [0, 1], [-1], "-1 must be at least 0"),
        (Annotated[int, Meta(gt=0)], [1], [0], "0 must be more than 0"),
        (Annotated[float, Meta(lt=1.5)], [1.0, 1], [1.5, float("inf")], "1.5 must be less than 1.5"),
        (Annotated[int, Meta(multiple_of=5)], [-5, 0], [3], "3 must be a multiple of 5"),
        (Annotated[Decimal | None, Meta(ge=0)], [None, Decimal(0)], [Decimal(-1)], "at least 0"),
        (Annotated[int, Meta(ge=0)] | None, [None, 0], [-1], "at least 0"),
        (Annotated[Annotated[int, Meta(ge=0)], Meta(le=1)], [0, 1], [-1, 2], "at least 0"),
        (Annotated[list[str], Meta(min_length=1)], [["a"]], [[]], "length of at least 1"),
        (Annotated[dict[str, int], Meta(max_length=1)], [{}], [{"a": 1, "b": 2}], "length of at most 1"),
        (tuple[Count, ...], [(), (1, 9)], [(1, 10)], "item 1: 10 must be at most 9"),
        (tuple[Count, str], [(1, "")], [(0, "")], "item 0: 0 must be at least 1"),
        (frozenset[Count], [frozenset({1})], [frozenset({0})], "item 0: 0 must be"),
        (dict[Name, int], [{"ab": 1}], [{"": 1}, {"A": 1}], "key: '' must have a length of at least 1"),
        (Annotated[str, Meta(pattern="b")], ["abc"], ["ac"], "'ac' must match the pattern 'b'"),
        (Literal["a", 1], ["a", 1], ["b", True, 1.0, [], None], "expected one of 'a', 1, got 'b'"),
        (Literal[True, b"x", None], [True, b"x", None], [1, "x"], "expected one of"),
        (dict[Literal["a"], int], [{"a": 1}], [{"b": 1}], "key: expected one of 'a'"),
        (Annotated[int, "a remark"], [-1], ["1"], "expected int"),
    ],
)
def test_values_are_checked_against_literals_and_bounds(
    annotation: Any, inside: list[Any], outside: list[Any], text: str
) -> None:
    kind = field_type(annotation)
    for value in inside:
        found = kind.check(value)
        assert found == value
        plain = kind.encode(found) if kind.encode else found
        assert kind.decode(plain) == found
    for value in outside:
        with pytest.raises(InvalidField):
            kind.check(value)
    with pytest.raises(InvalidField, match=f".*{text.replace('[', '.')}"):
        kind.check(outside[0])


def test_a_literal_takes_plain_values_of_subclasses_and_no_members_of_enums() -> None:
    class Text(str):
        pass

    class Number(IntEnum):
        ONE = 1

    kind = field_type(Literal["a", 1])
    assert type(kind.check(Text("a"))) is str
    with pytest.raises(InvalidField):
        kind.check(Number.ONE)


def test_bounds_hold_for_a_command_that_is_made_and_for_one_that_comes_from_the_queue() -> None:
    for fields in (
        {"count": 10},
        {"speed": "late"},
        {"by_name": {"Big": Decimal(1)}},
        {"by_name": {"a": Decimal(0)}},
    ):
        with pytest.raises(InvalidField, match=f"Order.{next(iter(fields))}: "):
            order(**fields)
        with pytest.raises(InvalidField, match=f"Order.{next(iter(fields))}: "):
            restored_command(Order, "id", "o", {**plain_of(order()), **fields})
    with pytest.raises(InvalidField, match=r"Order.lines: item 0: Line.count: 0 must be at least 1"):
        order(lines=[Line(0)])
    with pytest.raises(InvalidField, match=r"Order.lines: item 0: Line.count: 0 must be at least 1"):
        restored_command(Order, "id", "o", {"lines": [{"count": 0}]})
    sent = order(lines=[Line(9)], by_name={"a": Decimal(1)}, speed="fast")
    assert restored_command(Order, sent.id, "o", plain_of(sent)) == sent


def test_what_was_stored_before_a_bound_was_added_stays_readable() -> None:
    with pytest.raises(InvalidField, match=r"Ordered.count: 0 must be"):
        Ordered(count=0)
    with pytest.raises(InvalidField, match=r"Refused.count: 10 must be"):
        Refused("no", count=10)
    assert message_of(Ordered, {"count": 0, "tags": ["LONG ONE"]}).tags == ["LONG ONE"]
    assert restored_refusal(Refused, "no", {"count": 10}).count == 10
    basket = Basket("b")
    basket.restore({"count": 0})
    assert basket.count == 0


def test_an_event_that_was_changed_beyond_its_bounds_is_refused_when_it_is_applied() -> None:
    event = Ordered(count=1, tags=["a"])
    event.tags.append("LONG ONE")
    with pytest.raises(InvalidField, match="item 1"):
        seal(event)


def test_the_values_of_a_literal_are_known_to_the_check_of_event_schemas_and_bounds_are_not() -> None:
    assert describe(Moved) == describe(MovedBefore) == {"way": "Enum('down', 'up')", "steps": "int"}
    assert reads("Enum('down', 'up', 'left')", "Enum('down', 'up')")
    with pytest.raises(InvalidField, match="expected one of 'up', 'down', got 'left'"):
        message_of(Moved, {"way": "left", "steps": 1})


@pytest.mark.parametrize(
    ("annotation", "text"),
    [
        (Annotated[str, Meta(ge=0)], "str cannot have the bound ge = 0"),
        (Annotated[int, Meta(min_length=1)], "int cannot have the bound min_length = 1"),
        (Annotated[Line, Meta(gt=0)], "Line cannot have the bound gt = 0"),
        (list[Annotated[bytes, Meta(multiple_of=2)]], "bytes cannot have the bound"),
        (Literal["a", Line], "may name bools, ints, strings, bytes and None"),
        (Literal["a", None] | None, ""),
    ],
)
def test_a_bound_that_a_type_cannot_have_is_refused_when_the_class_is_looked_at(annotation: Any, text: str) -> None:
    if text:
        with pytest.raises(UnsupportedType, match=text):
            field_type(annotation)
    else:
        assert field_type(annotation).check(None) is None


def test_the_bounds_of_annotated_types_are_understood() -> None:
    at = pytest.importorskip("annotated_types")
    for annotation, inside, outside in (
        (Annotated[int, at.Ge(0), at.Lt(5)], 0, 5),
        (Annotated[int, at.Gt(0)], 1, 0),
        (Annotated[int, at.Interval(gt=1, le=3)], 3, 1),
        (Annotated[int, at.MultipleOf(2), at.Unit("m")], 4, 3),
        (Annotated[str, at.MinLen(2)], "ab", "a"),
        (Annotated[list[int], at.Len(1, 2)], [1], [1, 2, 3]),
        (Annotated[str, at.MaxLen(2)], "", "abc"),
        (Annotated[datetime, at.Ge(datetime(2020, 1, 1, tzinfo=UTC)), at.Timezone(...)],
         datetime(2020, 1, 1, tzinfo=UTC), datetime(2019, 1, 1, tzinfo=UTC)),
        (at.LowerCase[str], "a", "A"),
        (at.IsFinite[float], 1.0, float("inf")),
    ):  # fmt: skip
        kind = field_type(annotation)
        assert kind.check(inside) == inside
        with pytest.raises(InvalidField, match=r" must "):
            kind.check(outside)
    with pytest.raises(InvalidField, match=r"'A' must satisfy str.islower"):
        field_type(at.LowerCase[str]).check("A")
    with pytest.raises(InvalidField, match=r"must satisfy .*; ZeroDivisionError: "):
        field_type(Annotated[int, at.Predicate(lambda value: 1 / value)]).check(0)
    with pytest.raises(UnsupportedType, match=r"Timezone\(tz=None\) cannot be checked"):
        field_type(Annotated[datetime, at.Timezone(None)])
