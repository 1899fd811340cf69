"""The approximate memory that a value takes, with everything it holds."""

from __future__ import annotations

import dataclasses
from sys import getsizeof
from typing import Any

from enode_django.domain.aggregate import AggregateRoot


def weight_of(value: Any) -> int:
    """Return the size in bytes. Containers, dataclasses and aggregates are followed, each once; other values are
    not."""
    total, seen, left = 0, set[int](), [value]
    while left:
        one = left.pop()
        total += getsizeof(one)
        held = _held_by(one)
        if held and id(one) not in seen:
            seen.add(id(one))
            left += held
    return total


def _held_by(value: Any) -> list[Any]:
    match value:
        case str() | bytes() | int() | float() | None | type():
            return []
        case dict():
            return [*value, *value.values()]
        case list() | tuple() | set() | frozenset():
            return list(value)
    if isinstance(value, AggregateRoot) or dataclasses.is_dataclass(value):
        return [getattr(value, "__dict__", None)]
    return []
