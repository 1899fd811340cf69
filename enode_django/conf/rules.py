"""Rules that the values of settings keep."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Annotated, Any, NamedTuple

BY_SIZE, IN_PROCESSES, ON_SPARK = "auto", "processes", "spark"
ENGINES = (BY_SIZE, IN_PROCESSES, ON_SPARK)
"""The engines of a rebuild that ``REBUILDS`` may name."""


class Rule(NamedTuple):
    """A constraint on a value. ``accepts`` decides; ``wanted`` is its text in messages; the check ``id`` reports it."""

    wanted: str
    accepts: Callable[[Any], bool]
    id: str


def _is_number(value: object) -> bool:
    return type(value) is int or (type(value) is float and math.isfinite(value))


def _are_delays(value: object) -> bool:
    return isinstance(value, list | tuple) and all(_is_number(each) and each >= 0 for each in value)


def _is_text(value: object) -> bool:
    return isinstance(value, str) and value != ""


def _are_texts(value: object) -> bool:
    return isinstance(value, list | tuple) and all(map(_is_text, value))


Count = Annotated[
    int, Rule("a whole number above 0", lambda value: type(value) is int and value >= 1, id="enode_django.E003")
]
CountOrZero = Annotated[
    int,
    Rule("a whole number that is not below 0", lambda value: type(value) is int and value >= 0, id="enode_django.E009"),
]
Seconds = Annotated[
    float,
    Rule("a number above 0, or a timedelta", lambda value: _is_number(value) and value > 0, id="enode_django.E007"),
]
Delays = Annotated[
    Sequence[float],
    Rule("a list of numbers that are not below 0, or of timedeltas", _are_delays, id="enode_django.E008"),
]
Text = Annotated[str, Rule("a text that is not empty", _is_text, id="enode_django.E083")]
Texts = Annotated[Sequence[str], Rule("a list of texts that are not empty", _are_texts, id="enode_django.E085")]
Switch = Annotated[bool, Rule("True or False", lambda value: isinstance(value, bool), id="enode_django.E084")]
Engine = Annotated[
    str, Rule(f"one of {', '.join(map(repr, ENGINES))}", lambda value: value in ENGINES, id="enode_django.E067")
]
