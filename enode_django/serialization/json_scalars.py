"""Readers of simple values from JSON (see `enode_django.serialization.json_values`)."""

from __future__ import annotations

import binascii
import math
import re
import typing
from base64 import b64decode
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import date, datetime
from decimal import Decimal, InvalidOperation
from enum import Enum
from typing import Any, NamedTuple
from uuid import UUID

from enode_django.domain.bounds import Bound, check_bounds
from enode_django.exceptions import InvalidField, Path, shown
from enode_django.ids import MAX_ID_LENGTH, check_given_id
from enode_django.serialization.json_text import json_value
from enode_django.serialization.plain import MOST_BITS, MOST_DIGITS

Errors = dict[Path, str]
Read = Callable[[Any, Path, Errors], Any]
"""Converts a value of `json.loads`. Faults are added to the errors; the result is then undefined."""

MOST_ERRORS = 50
LARGEST_EXPONENT = 1000
_DECIMAL = re.compile(r"[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]{1,6})?|-?Infinity", re.ASCII)
_UUID = re.compile(r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}", re.ASCII)


class JsonType(NamedTuple):
    """A reader of JSON values with its JSON Schema (2020-12). ``is_text`` is True if every value is a string."""

    read: Read
    schema: Mapping[str, Any]
    is_text: bool = False


def _scalar(convert: Callable[[Any], Any]) -> Read:
    """Return a reader around a function that raises a ValueError, whose text says what to send instead."""

    def read(value: Any, path: Path, errors: Errors) -> Any:
        try:
            return convert(value)
        except ValueError as error:
            add_error(errors, path, str(error))

    return read


def add_error(errors: Errors, path: Path, message: str) -> None:
    if len(errors) < MOST_ERRORS:
        errors[path] = message


def wanted_error(what: str, value: Any) -> ValueError:
    return ValueError(f"expected {what}, got {shown(value)}")


def _bool(value: Any) -> bool:
    if type(value) is not bool:
        raise wanted_error("true or false", value)
    return value


def _int(value: Any) -> int:
    if type(value) is not int:
        raise wanted_error("a whole number", value)
    if value.bit_length() > MOST_BITS:
        raise ValueError(f"{shown(value)} has too many digits; send at most {MOST_DIGITS}")
    return value


def _float(value: Any) -> float:
    if value in ("inf", "-inf"):
        return float(value)
    if type(value) not in (int, float) or not math.isfinite(_float_of(value)):
        raise wanted_error('a number, or "inf" or "-inf"', value)
    if float(value) != value:
        raise ValueError(f"{shown(value)} has more digits than a float holds")
    return float(value)


def _float_of(number: int | float) -> float:
    try:
        return float(number)
    except OverflowError:
        return math.inf


def _text(value: Any, what: str = "a string") -> str:
    if type(value) is not str:
        raise wanted_error(what, value)
    if "\0" in value:
        raise ValueError(f"{shown(value)} holds a NUL; leave it out")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise ValueError(f"{shown(value)} is no Unicode text: it holds one half of a surrogate pair") from None
    return value


def _bytes(value: Any) -> bytes:
    try:
        return b64decode(_text(value, "a string in base64"), validate=True)
    except binascii.Error as error:
        raise ValueError(f"{shown(value)} is no base64: {error}") from None


def _decimal(value: Any) -> Decimal:
    if type(value) is int:
        value = str(value) if abs(value) < 10**LARGEST_EXPONENT else "1e9999"
    text = _text(value, 'a decimal number as a string, such as "12.50"')
    if not _DECIMAL.fullmatch(text):
        raise wanted_error('a decimal number as a string, such as "12.50"', value)
    try:
        number = Decimal(text)
    except InvalidOperation:
        raise wanted_error("a decimal number", value) from None
    if number.is_infinite():  # forms and serializers of Django and its REST framework take none either
        raise ValueError(f"{shown(value)} is infinite; send a finite number")
    if len(text) > LARGEST_EXPONENT or abs(number.adjusted()) > LARGEST_EXPONENT:
        raise ValueError(f"{shown(value)} has too many digits; send at most {LARGEST_EXPONENT}")
    return number


def _datetime(value: Any) -> datetime:
    wanted = "a time with its offset, such as 2026-01-31T12:00:00Z"
    try:
        moment = datetime.fromisoformat(_text(value, wanted))
    except ValueError:
        raise wanted_error(wanted, value) from None
    if moment.tzinfo is None:
        raise wanted_error(wanted, value)
    return moment


def _date(value: Any) -> date:
    try:
        return date.fromisoformat(_text(value))
    except ValueError:
        raise wanted_error("a day, such as 2026-01-31", value) from None


def _uuid(value: Any) -> UUID:
    if not _UUID.fullmatch(_text(value, "a UUID")):
        raise wanted_error("a UUID of 36 characters", value)
    return UUID(value)


def _none(value: Any) -> None:
    if value is not None:
        raise wanted_error("null", value)


def _string(**more: str) -> dict[str, str]:
    return {"type": "string", **more}


SCALARS: dict[Any, JsonType] = {
    bool: JsonType(_scalar(_bool), {"type": "boolean"}),
    int: JsonType(_scalar(_int), {"type": "integer"}),
    float: JsonType(_scalar(_float), {"type": "number", "description": 'Or "inf" and "-inf".'}),
    str: JsonType(_scalar(_text), _string(), True),
    bytes: JsonType(_scalar(_bytes), _string(format="byte"), True),
    Decimal: JsonType(_scalar(_decimal), _string(format="decimal", pattern=r"^[+-]?[0-9]+(\.[0-9]+)?$"), True),
    datetime: JsonType(_scalar(_datetime), _string(format="date-time"), True),
    date: JsonType(_scalar(_date), _string(format="date"), True),
    UUID: JsonType(_scalar(_uuid), _string(format="uuid"), True),
    type(None): JsonType(_scalar(_none), {"type": "null"}),
}


def _id(value: Any) -> str:
    return check_given_id(_text(value))


ID = JsonType(_scalar(_id), {**_string(), "minLength": 1, "maxLength": MAX_ID_LENGTH}, True)


def enum_type(kind: type[Enum]) -> JsonType:
    return _choice([json_value(member.value) for member in kind], list(kind))


def literal_type(annotation: Any) -> JsonType:
    values = typing.get_args(annotation)
    return _choice([json_value(value) for value in values], values)


def _choice(values: Sequence[Any], meant: Sequence[Any]) -> JsonType:
    """Return the type of a choice of JSON values, each with its Python value."""
    # The type is part of the key, as True equals 1.
    members = {(type(value), value): member for value, member in zip(values, meant, strict=True)}

    def convert(value: Any) -> Any:
        key = (type(value), value)
        if isinstance(value, dict | list) or key not in members:
            raise wanted_error(f"one of {', '.join(map(repr, values))}", value)
        return members[key]

    kinds = {type(value) for value in values}
    schema: dict[str, Any] = {"enum": values}
    if len(kinds) == 1:
        schema["type"] = {str: "string", int: "integer", bool: "boolean"}.get(kinds.pop(), "null")
    return JsonType(_scalar(convert), schema, schema.get("type") == "string")


# -- bounds -----------------------------------------------------------------------------------------------------------

_KEYWORDS: Mapping[str, Mapping[str, str]] = {
    "number": {
        "ge": "minimum",
        "gt": "exclusiveMinimum",
        "le": "maximum",
        "lt": "exclusiveMaximum",
        "multiple_of": "multipleOf",
    },
    "string": {"min_length": "minLength", "max_length": "maxLength", "pattern": "pattern"},
    "array": {"min_length": "minItems", "max_length": "maxItems"},
    "object": {"min_length": "minProperties", "max_length": "maxProperties"},
}
"""The keywords of JSON Schema by the JSON type and the name of the bound."""


def bounded_type(inner: JsonType, bounds: Sequence[Bound]) -> JsonType:
    """Return the type of the values of ``inner`` that satisfy all bounds."""
    if not bounds:
        return inner

    def read(value: Any, path: Path, errors: Errors) -> Any:
        known = len(errors)
        found = inner.read(value, path, errors)
        if len(errors) == known:
            try:
                check_bounds(bounds, found)
            except InvalidField as error:
                add_error(errors, path, str(error))
        return found

    return inner._replace(read=read, schema=_bounded_schema(inner.schema, bounds))


def _bounded_schema(schema: Mapping[str, Any], bounds: Iterable[Bound]) -> Mapping[str, Any]:
    """Return the schema with the bounds. JSON Schema has no keywords for predicates and for bounds of values written as
    text: these are added to the description."""
    if "anyOf" in schema:  # or null
        first, *others = schema["anyOf"]
        return {**schema, "anyOf": [_bounded_schema(first, bounds), *others]}
    kind = {"integer": "number"}.get(schema.get("type", ""), schema.get("type", ""))
    is_text_of_another = kind == "string" and "format" in schema
    known = {} if is_text_of_another else _KEYWORDS.get(kind, {})
    found, texts = dict(schema), [schema["description"]] if "description" in schema else []
    for bound in bounds:
        if bound.name in known and type(bound.limit) in (int, float, str):
            found[known[bound.name]] = bound.limit
        else:
            texts.append(f"It {bound.text}.")
    return found | ({"description": " ".join(texts)} if texts else {})
