"""Bounds that ``Annotated`` puts beside a type, as in ``Annotated[int, Ge(0)]``.

A bound is recognized by its attributes, so the classes of the package annotated-types and `msgspec.Meta` both work, and
neither is imported here. Bounds are checked when a value is made, and not when it is decoded: a stored value was made
under the bounds of its time.
"""

from __future__ import annotations

import operator
import re
import types
import typing
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any, NamedTuple

from enode_django.domain.scalars import UnsupportedType
from enode_django.exceptions import InvalidField, shown


class Bound(NamedTuple):
    """A bound of a value. ``name`` is the kind of ``limit``: ``ge``, ``gt``, ``le``, ``lt``, ``multiple_of``,
    ``min_length``, ``max_length``, ``pattern``, or ``predicate``, whose limit is a function. ``text`` follows the value
    in an error message."""

    name: str
    limit: Any
    text: str
    holds: Callable[[Any, Any], object]

    def check(self, value: Any) -> None:
        """Raise `InvalidField` for a value that is out of the bound, or that cannot be compared with it."""
        try:
            is_met = self.holds(value, self.limit)
        except Exception as error:  # a predicate is application code
            raise InvalidField(f"{shown(value)} {self.text}; {type(error).__name__}: {error}") from error
        if not is_met:
            raise InvalidField(f"{shown(value)} {self.text}")


def check_bounds(bounds: Iterable[Bound], value: Any) -> None:
    """Raise `InvalidField` for the first bound that ``value`` violates. None satisfies all bounds."""
    if value is not None:
        for bound in bounds:
            bound.check(value)


_KNOWN: dict[str, tuple[str, Callable[[Any, Any], object]]] = {
    "ge": ("must be at least", operator.ge),
    "gt": ("must be more than", operator.gt),
    "le": ("must be at most", operator.le),
    "lt": ("must be less than", operator.lt),
    "multiple_of": ("must be a multiple of", lambda value, step: value % step == 0),
    "min_length": ("must have a length of at least", lambda value, least: len(value) >= least),
    "max_length": ("must have a length of at most", lambda value, most: len(value) <= most),
    "pattern": ("must match the pattern", lambda value, pattern: re.search(pattern, value) is not None),
}


def bounds_of(annotation: Any) -> tuple[Bound, ...]:
    """Return the bounds of an ``Annotated`` type, without those of its items. Raises `UnsupportedType` for a bound that
    values of the type cannot be compared with, and for an unknown bound of annotated-types."""
    kind, *remarks = typing.get_args(annotation)
    bounds = tuple(bound for remark in remarks for bound in _bounds_in(remark))
    for bound in bounds:
        if bound.name != "predicate":
            _check_applies(bound, kind)
    return bounds


def _bounds_in(remark: Any) -> Iterator[Bound]:
    if isinstance(remark, type):
        return
    if hasattr(remark, "__is_annotated_types_grouped_metadata__"):
        for part in remark:
            yield from _bounds_in(part)
        return
    found = [*_comparisons(remark), *_predicate(remark)]
    if not found and _is_unknown(remark):
        raise UnsupportedType(f"{remark!r} cannot be checked; use a Predicate instead")
    yield from found


def _comparisons(remark: Any) -> Iterator[Bound]:
    for name, (text, holds) in _KNOWN.items():
        limit = getattr(remark, name, None)
        if limit is not None and (name, limit) != ("min_length", 0):
            yield Bound(name, limit, f"{text} {limit if isinstance(limit, Decimal | date) else shown(limit)}", holds)


def _predicate(remark: Any) -> Iterator[Bound]:
    if _is_of_annotated_types(remark, "Predicate"):
        name = getattr(remark.func, "__qualname__", None) or repr(remark.func)
        yield Bound("predicate", remark.func, f"must satisfy {name}", lambda value, holds: holds(value))


def _is_unknown(remark: Any) -> bool:
    """Return True for a bound that would be ignored. A unit bounds nothing, and every datetime is aware."""
    if not _is_of_annotated_types(remark, "BaseMetadata") or _is_of_annotated_types(remark, "Unit", "Len", "Interval"):
        return False
    return not (_is_of_annotated_types(remark, "Timezone") and remark.tz is ...)


def _is_of_annotated_types(remark: Any, *names: str) -> bool:
    return any(each.__module__ == "annotated_types" and each.__name__ in names for each in type(remark).__mro__)


_SAMPLES: dict[Any, Any] = {
    bool: True,
    int: 1,
    float: 1.0,
    Decimal: Decimal(1),
    str: "",
    bytes: b"",
    datetime: datetime(2000, 1, 1, tzinfo=UTC),
    date: date(2000, 1, 1),
    **{kind: kind() for kind in (list, tuple, dict, set, frozenset)},
}
"""A sample value of each type that can have bounds. Keys are types, or the origins of generic types."""


def _check_applies(bound: Bound, annotation: Any) -> None:
    kind = _base(annotation)
    try:
        bound.holds(_SAMPLES[kind], bound.limit)
    except Exception as error:
        name = getattr(kind, "__name__", repr(kind))
        raise UnsupportedType(f"{name} cannot have the bound {bound.name} = {shown(bound.limit)}") from error


def _base(annotation: Any) -> Any:
    """Return the type without ``Annotated``, without None, and without its items."""
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is typing.Annotated:
        return _base(arguments[0])
    if origin in (typing.Union, types.UnionType):
        return _base(next(each for each in arguments if each is not type(None)))
    return origin or annotation
