"""A command that declares a result that no handler can return is reported, before one is sent."""

from __future__ import annotations

import dataclasses
from decimal import Decimal
from enum import Enum, StrEnum
from typing import Any

import pytest

from enode_django import Command
from enode_django.checks.definitions import check_definitions


@dataclasses.dataclass(frozen=True)
class Money:
    cents: int


class Size(Enum):
    SMALL = 1


class Colour(StrEnum):
    RED = "red"


def said(name: str) -> list[str]:
    return [one.msg for one in check_definitions(None) if one.id == "enode_django.W188" and name in one.msg]


@pytest.mark.parametrize("result", [Money, Size, set[int], Money | None, list[Money], dict[str, Size]])
def test_a_result_that_cannot_be_sent_is_reported(undeclared: None, result: Any) -> None:
    class Weigh(Command[result]):  # type: ignore[misc, valid-type]
        type_name = "results.Weigh"

    (text,) = said("Weigh")
    assert "but no handler can return that: a command's result is a plain value" in text


@pytest.mark.parametrize(
    "result", [None, int, Decimal, Colour, str | None, list[int], tuple[int, str], dict[str, Any], Any, "Money"]
)
def test_other_results_are_not(undeclared: None, result: Any) -> None:
    class Measure(Command[result]):  # type: ignore[misc, valid-type]
        type_name = "results.Measure"

    class Plain(Command):
        type_name = "results.Plain"

    assert said("Measure") == said("Plain") == []
