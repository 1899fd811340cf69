"""The simple field types: plain values, literals, and enums, which are stored by their values."""

from __future__ import annotations

import sys
import typing
from collections.abc import Callable
from datetime import UTC, date, datetime
from decimal import Decimal
from enum import Enum
from typing import Any, NamedTuple
from uuid import UUID

from enode_django.exceptions import DefinitionError, InvalidField, shown

Convert = Callable[[Any], Any]


class FieldType(NamedTuple):
    """The operations of a field's type. A value of exactly the type ``exact`` needs no check (`Checked`: every value
    needs one). ``encode`` is None if checked values are plain; ``copy`` is None if they are immutable. Their results
    share no mutable object with the value. ``is_bounded`` is True if ``check`` also checks bounds, which ``decode``
    does not."""

    exact: type
    check: Convert
    encode: Convert | None
    decode: Convert
    hashable: bool = True
    copy: Convert | None = None
    is_bounded: bool = False


class Checked:
    """A type without instances. It marks field types whose every value must be checked."""


class TooLong(int):
    """A whole number with too many digits, in a command from the queue. No field accepts it, so it is refused at a
    point where the sender can be informed."""

    def __repr__(self) -> str:
        return f"a number of {self.bit_length()} bits, which is too long for a command"


class UnsupportedType(DefinitionError):
    """An annotation that no field can have."""


_FROM_TEXT = {"datetime": "datetime.fromisoformat(value)", "date": "date.fromisoformat(value)", "UUID": "UUID(value)"}


def mismatch(expected: str, value: object) -> InvalidField:
    remedy = f"; pass {_FROM_TEXT[expected]}" if isinstance(value, str) and expected in _FROM_TEXT else ""
    return InvalidField(f"expected {expected}, got {shown(value)} ({type(value).__name__}){remedy}")


def _leaf(kind: type, *, never: tuple[type, ...] = ()) -> FieldType:
    """Return a type of plain values. Values of subclasses are converted, so that a decoded value has the same type."""

    def check(value: Any) -> Any:
        if type(value) is kind:
            return value
        if not isinstance(value, kind) or isinstance(value, (Enum, *never)):
            raise mismatch(kind.__name__, value)
        return kind.__str__(value) if kind is str else kind(value)

    return FieldType(kind, check, None, check)


def _check_float(value: Any) -> float:
    if type(value) is int and abs(value) <= sys.float_info.max and float(value) == value:
        return float(value)
    if not isinstance(value, float) or isinstance(value, Enum):
        raise mismatch("float", value)
    if value != value:
        raise InvalidField("nan is not a number that can be stored; use None for an unknown value")
    return float(value)


def check_decimal(value: Any) -> Decimal:
    if type(value) is Decimal and not value.is_nan():
        return value
    if not isinstance(value, Decimal):
        if type(value) in (int, float, str):
            raise InvalidField(
                f"expected Decimal, got {shown(value)} ({type(value).__name__}); pass Decimal(str(value))"
            )
        raise mismatch("Decimal", value)
    if value.is_nan():
        raise InvalidField(f"{value!r} is not a number that can be stored; use None for an unknown value")
    return Decimal(value)


def _check_datetime(value: Any) -> datetime:
    if not isinstance(value, datetime):
        raise mismatch("datetime", value)
    if value.tzinfo is None:
        raise InvalidField(f"{value!r} has no time zone; use django.utils.timezone.now() or make_aware()")
    try:
        utc = value.astimezone(UTC)
    except OverflowError as error:
        raise InvalidField(f"{value!r} is outside the years 1 to 9999 in UTC") from error
    return datetime(*utc.timetuple()[:6], utc.microsecond, UTC) if type(utc) is not datetime else utc


def _check_date(value: Any) -> date:
    if not isinstance(value, date) or isinstance(value, datetime):
        raise mismatch("date", value)
    return value if type(value) is date else date(value.year, value.month, value.day)


def _check_uuid(value: Any) -> UUID:
    if not isinstance(value, UUID):
        raise mismatch("UUID", value)
    return value if type(value) is UUID else UUID(int=value.int)


def _check_none(value: Any) -> None:
    if value is not None:
        raise mismatch("None", value)


SCALARS: dict[Any, FieldType] = {
    bool: _leaf(bool),
    int: _leaf(int, never=(bool, TooLong)),
    str: _leaf(str),
    bytes: _leaf(bytes),
    float: FieldType(Checked, _check_float, None, _check_float),
    Decimal: FieldType(Checked, check_decimal, None, check_decimal),
    datetime: FieldType(Checked, _check_datetime, None, _check_datetime),
    date: FieldType(date, _check_date, None, _check_date),
    UUID: FieldType(UUID, _check_uuid, None, _check_uuid),
    type(None): FieldType(type(None), _check_none, None, _check_none),
}


def is_enum(annotation: Any) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, Enum)


def enum_type(kind: type[Enum]) -> FieldType:
    """Return the type of an enum, stored by its members' values, which must be of simple types, as in Django's
    choices."""
    for member in kind:
        if type(member.value) not in (bool, int, str, bytes, type(None)):
            raise UnsupportedType(
                f"{kind.__name__}.{member.name} has the value {member.value!r}, which cannot be stored"
            )

    def check(value: Any) -> Enum:
        if not isinstance(value, kind):
            raise mismatch(kind.__name__, value)
        return value

    def encode(value: Enum) -> Any:
        return value.value

    def decode(value: Any) -> Enum:
        try:
            return kind(value)
        except ValueError as error:
            raise mismatch(f"a value of {kind.__name__}", value) from error

    return FieldType(kind, check, encode, decode)


def is_literal(annotation: Any) -> bool:
    return typing.get_origin(annotation) is typing.Literal


def literal_type(annotation: Any) -> FieldType:
    """Return the type of a ``Literal``. Decoding refuses other values, too, as for an enum."""
    # The type is part of the key, as True equals 1.
    values = {(type(value), value) for value in typing.get_args(annotation)}
    kinds = {kind for kind, _ in values}
    for kind in kinds:
        if kind not in (bool, int, str, bytes, type(None)):
            raise UnsupportedType(f"{annotation!r} cannot be stored: it may name bools, ints, strings, bytes and None")

    def check(value: Any) -> Any:
        for kind in kinds:
            if (
                isinstance(value, kind)
                and (not isinstance(value, bool) or kind is bool)
                and not isinstance(value, Enum)
            ):
                plain = SCALARS[kind].check(value)
                if (kind, plain) in values:
                    return plain
        raise mismatch(f"one of {', '.join(map(repr, typing.get_args(annotation)))}", value)

    return FieldType(Checked, check, None, check)
