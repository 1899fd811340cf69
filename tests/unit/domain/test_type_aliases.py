"""Fields that are annotated with a ``type`` alias, as in ``type Money = Annotated[Decimal, …]`` of Python 3.12."""

from __future__ import annotations

import dataclasses
import sys
from decimal import Decimal
from typing import Annotated, Any, Literal

import pytest
from msgspec import Meta

from enode_django import Command
from enode_django.domain.fields import Schema
from enode_django.domain.scalars import UnsupportedType
from enode_django.exceptions import InvalidField
from enode_django.forms import command_form
from enode_django.repository.typetexts import type_text, value_classes
from enode_django.serialization.json_values import JsonFields
from enode_django.serialization.schemas import describe

if sys.version_info >= (3, 12):
    from typing import TypeAliasType
else:
    from typing_extensions import TypeAliasType

Money = TypeAliasType("Money", Annotated[Decimal, Meta(gt=0)])
Price = TypeAliasType("Price", Money)
Way = TypeAliasType("Way", Literal["air", "sea"])


@dataclasses.dataclass(frozen=True)
class Line:
    price: Price


Lines = TypeAliasType("Lines", list[Line])


class Buy(Command):
    type_name = "aliases.Buy"
    price: Price
    way: Way = "sea"
    tip: Money | None = None
    lines: Lines = dataclasses.field(default_factory=list)
    by_way: dict[Way, tuple[Money, ...]] = dataclasses.field(default_factory=dict)


class PlainBuy(Command):
    type_name = "aliases.PlainBuy"
    price: Annotated[Decimal, Meta(gt=0)]
    way: Literal["air", "sea"] = "sea"
    tip: Annotated[Decimal, Meta(gt=0)] | None = None
    lines: list[Line] = dataclasses.field(default_factory=list)
    by_way: dict[Literal["air", "sea"], tuple[Annotated[Decimal, Meta(gt=0)], ...]] = dataclasses.field(
        default_factory=dict
    )


def test_a_field_takes_the_values_of_what_its_alias_stands_for() -> None:
    buy = Buy("b", price=Decimal(3), lines=[Line(Decimal(1))], by_way={"air": (Decimal(2),)})
    assert (buy.way, buy.tip, buy.by_way) == ("sea", None, {"air": (Decimal(2),)})
    for wrong in ({"price": Decimal(0)}, {"way": "land"}, {"tip": Decimal(-1)}, {"by_way": {"air": (Decimal(0),)}}):
        with pytest.raises(InvalidField, match=f"Buy.{next(iter(wrong))}"):
            Buy("b", **({"price": Decimal(3)} | wrong))  # type: ignore[arg-type]


def test_schemas_json_and_forms_do_not_tell_an_alias_from_what_it_stands_for() -> None:
    assert describe(Buy) == describe(PlainBuy)
    assert JsonFields(Buy).schema == JsonFields(PlainBuy).schema
    aliased, plain = command_form(Buy)(), command_form(PlainBuy)()
    assert {name: type(field) for name, field in aliased.fields.items()} == {
        name: type(field) for name, field in plain.fields.items()
    }
    assert aliased.fields["way"].choices == plain.fields["way"].choices  # type: ignore[attr-defined]


def test_a_fingerprint_depends_on_what_an_alias_stands_for() -> None:
    assert type_text(dict[Way, Lines]) == type_text(dict[Literal["air", "sea"], list[Line]])
    assert value_classes(Lines | None) == [Line]


@pytest.mark.skipif(sys.version_info < (3, 12), reason="the statement came with Python 3.12")
def test_an_alias_that_contains_itself_cannot_be_stored() -> None:
    names: dict[str, Any] = {}
    exec("type Branches = dict[str, Branches]", names)
    Tree = type("Tree", (), {"__annotations__": {"branches": names["Branches"]}})
    with pytest.raises(UnsupportedType, match=r"Tree.branches: Branches cannot be stored: it contains itself"):
        Schema(dataclasses.dataclass(Tree))
