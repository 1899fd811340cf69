"""Fields of commands, events and states from JSON and to JSON, and what they look like to JSON Schema. Pure.

What the JSON of a field is follows from its declared type. To write a value, it is encoded (`to_plain`) and turned into
JSON by `enode_django.serialization.json_text.json_value`; here is the way back, for what comes from outside:

================  ===================================================================================
Decimal           a string, since a JSON number is a binary fraction to most programs; or a whole number
datetime, date    a string in ISO 8601; a datetime with its offset from UTC
UUID              a string of 36 characters
bytes             a string, base64
Enum              the member's value
set, tuple        an array
dict              an object; keys that are no strings are written as such: ``{"1": true}``
a dataclass       an object with its fields
a float           a number, or ``"inf"`` and ``"-inf"``
================  ===================================================================================

Refused though a field could hold them: text with a NUL, which no text column of PostgreSQL takes, and decimals beyond
``10 ** ±1000``, which could keep arithmetic busy for very long.
"""

from __future__ import annotations

import binascii
import json
import math
import re
import types as python_types
import typing
from base64 import b64decode
from collections.abc import Callable, Mapping
from datetime import date, datetime
from decimal import Decimal, InvalidOperation
from enum import Enum
from functools import cache
from typing import Any, NamedTuple
from uuid import UUID

from enode_django.domain.declarations import Declared
from enode_django.domain.fields import MISSING, Schema, field_type
from enode_django.domain.messages import Command
from enode_django.domain.scalars import is_enum
from enode_django.exceptions import InvalidField, InvalidFields, InvalidId, Path, shown
from enode_django.serialization.json_text import json_value

Errors = dict[Path, str]
Read = Callable[[Any, Path, Errors], Any]
"""The value of what `json.loads` gave; what is wrong is added to the errors, and then the value does not matter."""

MOST_ERRORS = 50
LARGEST_EXPONENT = 1000
_DECIMAL = re.compile(r"[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]{1,6})?|-?Infinity", re.ASCII)
_UUID = re.compile(r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}", re.ASCII)


class JsonType(NamedTuple):
    """``schema`` is JSON Schema (2020-12). ``is_text`` says that every value is a string."""

    read: Read
    schema: Mapping[str, Any]
    is_text: bool = False


@cache
def json_type(annotation: Any) -> JsonType:
    """Of a resolved annotation that `field_type` takes; raises `UnsupportedType` for another."""
    field_type(annotation)
    if annotation in _SCALARS:
        return _SCALARS[annotation]
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is typing.Annotated:
        return json_type(arguments[0])
    if origin in (typing.Union, python_types.UnionType):
        return _optional(json_type(next(each for each in arguments if each is not type(None))))
    if origin in (list, set, frozenset):
        return _collection(origin, json_type(arguments[0]))
    if origin is tuple:
        return _tuple(arguments)
    if origin is dict:
        return _dict(arguments[0], json_type(arguments[1]))
    return _enum(annotation) if is_enum(annotation) else _dataclass(annotation)


# -- scalars ----------------------------------------------------------------------------------------------------------


def _scalar(convert: Callable[[Any], Any]) -> Read:
    """Of a function that raises ValueError with what to send instead."""

    def read(value: Any, path: Path, errors: Errors) -> Any:
        try:
            return convert(value)
        except ValueError as error:
            _add(errors, path, str(error))

    return read


def _add(errors: Errors, path: Path, message: str) -> None:
    if len(errors) < MOST_ERRORS:
        errors[path] = message


def _wanted(what: str, value: Any) -> ValueError:
    return ValueError(f"expected {what}, got {shown(value)}")


def _bool(value: Any) -> bool:
    if type(value) is not bool:
        raise _wanted("true or false", value)
    return value


def _int(value: Any) -> int:
    if type(value) is not int:
        raise _wanted("a whole number", value)
    return value


def _float(value: Any) -> float:
    if value in ("inf", "-inf"):
        return float(value)
    if type(value) not in (int, float) or not math.isfinite(_float_of(value)):
        raise _wanted('a number, or "inf" or "-inf"', value)
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
        raise _wanted(what, value)
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
        raise _wanted('a decimal number as a string, such as "12.50"', value)
    try:
        number = Decimal(text)
    except InvalidOperation:
        raise _wanted("a decimal number", value) from None
    if number.is_finite() and (len(text) > LARGEST_EXPONENT or abs(number.adjusted()) > LARGEST_EXPONENT):
        raise ValueError(f"{shown(value)} has too many digits; send at most {LARGEST_EXPONENT}")
    return number


def _datetime(value: Any) -> datetime:
    wanted = "a time with its offset, such as 2026-01-31T12:00:00Z"
    try:
        moment = datetime.fromisoformat(_text(value, wanted))
    except ValueError:
        raise _wanted(wanted, value) from None
    if moment.tzinfo is None:
        raise _wanted(wanted, value)
    return moment


def _date(value: Any) -> date:
    try:
        return date.fromisoformat(_text(value))
    except ValueError:
        raise _wanted("a day, such as 2026-01-31", value) from None


def _uuid(value: Any) -> UUID:
    if not _UUID.fullmatch(_text(value, "a UUID")):
        raise _wanted("a UUID of 36 characters", value)
    return UUID(value)


def _none(value: Any) -> None:
    if value is not None:
        raise _wanted("null", value)


def _string(**more: str) -> dict[str, str]:
    return {"type": "string", **more}


_SCALARS: dict[Any, JsonType] = {
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


def _enum(kind: type[Enum]) -> JsonType:
    values = [json_value(member.value) for member in kind]
    # The type is part of the key, as True equals 1.
    members = {(type(value), value): member for value, member in zip(values, kind, strict=True)}

    def convert(value: Any) -> Enum:
        member = members.get((type(value), value)) if not isinstance(value, dict | list) else None
        if member is None:
            raise _wanted(f"one of {', '.join(map(repr, values))}", value)
        return member

    kinds = {type(value) for value in values}
    schema: dict[str, Any] = {"enum": values}
    if len(kinds) == 1:
        schema["type"] = {str: "string", int: "integer", bool: "boolean"}.get(kinds.pop(), "null")
    return JsonType(_scalar(convert), schema, schema.get("type") == "string")


# -- what holds others ------------------------------------------------------------------------------------------------


def _optional(inner: JsonType) -> JsonType:
    def read(value: Any, path: Path, errors: Errors) -> Any:
        return None if value is None else inner.read(value, path, errors)

    return JsonType(read, {"anyOf": [inner.schema, {"type": "null"}]})


def _collection(kind: Any, item: JsonType) -> JsonType:
    def read(value: Any, path: Path, errors: Errors) -> Any:
        if type(value) is not list:
            return _add(errors, path, str(_wanted("an array", value)))
        found = [item.read(each, (*path, number), errors) for number, each in enumerate(value)]
        if errors or kind is list:
            return found
        made = kind(found)
        if len(made) < len(found):
            _add(errors, path, "an item is there twice")
        return made

    unique = {} if kind is list else {"uniqueItems": True}
    return JsonType(read, {"type": "array", "items": item.schema, **unique})


def _tuple(arguments: tuple[Any, ...]) -> JsonType:
    if len(arguments) == 2 and arguments[1] is Ellipsis:
        items = _collection(list, json_type(arguments[0]))
        return JsonType(lambda *given: tuple(items.read(*given) or ()), items.schema)
    kinds = [json_type(argument) for argument in arguments]

    def read(value: Any, path: Path, errors: Errors) -> Any:
        if type(value) is not list or len(value) != len(kinds):
            return _add(errors, path, str(_wanted(f"an array of {len(kinds)} items", value)))
        each = enumerate(zip(kinds, value, strict=True))
        return tuple(kind.read(item, (*path, number), errors) for number, (kind, item) in each)

    length = {"minItems": len(kinds), "maxItems": len(kinds)}
    prefix = {"prefixItems": [kind.schema for kind in kinds]} if kinds else {}
    return JsonType(read, {"type": "array", **prefix, **length})


def _dict(key_annotation: Any, item: JsonType) -> JsonType:
    key = json_type(key_annotation)

    def read(value: Any, path: Path, errors: Errors) -> Any:
        if type(value) is not dict:
            return _add(errors, path, str(_wanted("an object", value)))
        found = {
            _read_key(key, name, (*path, name), errors): item.read(each, (*path, name), errors)
            for name, each in value.items()
        }
        if len(found) < len(value) and not errors:
            _add(errors, path, "a key is there twice, written differently")
        return found

    return JsonType(read, {"type": "object", "additionalProperties": item.schema})


def _read_key(key: JsonType, name: str, path: Path, errors: Errors) -> Any:
    """A key that is no text is the JSON of the value; where that leads nowhere, it is the text (of an enum, say)."""
    if not key.is_text:
        try:
            parsed = json.loads(name)
        except (ValueError, RecursionError):
            parsed = name
        attempt: Errors = {}
        found = key.read(parsed, path, attempt)
        if not attempt:
            return found
    return key.read(name, path, errors)


def _dataclass(kind: type) -> JsonType:
    fields = JsonFields(kind)

    def read(value: Any, path: Path, errors: Errors) -> Any:
        own: Errors = {}
        values = fields.read_into(value, path, own)
        if not own:
            try:
                return kind(**values)
            except Exception as error:  # its own __post_init__
                _add(own, path, str(error))
        for where, message in own.items():
            _add(errors, where, message)

    return JsonType(read, fields.schema)


class JsonFields:
    """The declared fields of a message, a state or a dataclass as a JSON object."""

    def __init__(self, cls: type) -> None:
        self.cls = cls
        self._schema = cls.schema() if issubclass(cls, Declared) else Schema(cls)
        hints = typing.get_type_hints(cls, include_extras=True)
        self.types = {name: json_type(hints[name]) for name in self._schema.names}
        self.required = tuple(name for name in self.types if self._schema.defaults[name] is MISSING)

    @property
    def schema(self) -> dict[str, Any]:
        schema: dict[str, Any] = {"type": "object", "properties": {name: t.schema for name, t in self.types.items()}}
        if self.required:
            schema["required"] = list(self.required)
        return schema | {"additionalProperties": False}

    def read(self, value: Any, path: Path = ()) -> dict[str, Any]:
        """The values that are given, by name; the rest have defaults. ``path`` is where the object stands.

        Raises `InvalidFields` with all that is wrong.
        """
        errors: Errors = {}
        values = self.read_into(value, path, errors)
        if errors:
            raise InvalidFields(errors)
        return values

    def read_into(self, value: Any, path: Path, errors: Errors) -> dict[str, Any]:
        if type(value) is not dict:
            _add(errors, path, str(_wanted("an object", value)))
            return {}
        for name in value.keys() - self.types.keys():
            _add(errors, (*path, name), f"there is no such field; known are {', '.join(self.types) or 'none'}")
        for name in self.required:
            if name not in value:
                _add(errors, (*path, name), "this field is required")
        given = ((name, kind) for name, kind in self.types.items() if name in value)
        return {name: kind.read(value[name], (*path, name), errors) for name, kind in given}


def json_fields(cls: type) -> JsonFields:
    """Made once for each class; raises `DefinitionError` for one with a field that cannot be stored."""
    fields = _fields.get(cls)
    if fields is None:
        fields = _fields[cls] = JsonFields(cls)
    return fields


_fields: dict[type, JsonFields] = {}


def command_from_json(
    cls: type[Command], aggregate_root_id: Any, fields: Any, *, id: str | None = None, path: Path = ()
) -> Command:
    """A command of what `json.loads` gave; ``path`` is where ``fields`` stand. Raises `InvalidFields`."""
    errors: Errors = {}
    values = json_fields(cls).read_into(fields, path, errors)
    _text_of_id(aggregate_root_id, errors)
    if errors:
        raise InvalidFields(errors)
    given = {} if id is None else {"id": id}
    try:
        return cls(aggregate_root_id=aggregate_root_id, **given, **values)
    except InvalidId as error:
        raise InvalidFields({("aggregate_root_id",): str(error)}) from error
    except (InvalidField, ValueError) as error:  # the class's own __post_init__
        raise InvalidFields({path: str(error)}) from error


def _text_of_id(value: Any, errors: Errors) -> None:
    _SCALARS[str].read(value, ("aggregate_root_id",), errors)


def message_to_json(message: Any) -> dict[str, Any]:
    """The fields of a command, event or domain exception."""
    found: dict[str, Any] = json_value(message.to_plain())
    return found
