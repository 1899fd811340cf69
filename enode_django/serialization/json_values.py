"""Fields of commands, events and states as JSON, and their JSON Schema. Pure.

The JSON of a field follows from its declared type. To write a value, encode it (`plain_of`) and convert it by
`enode_django.serialization.json_text.json_value`. This module reads values from outside:

================  ===================================================================================
Decimal           a string, since a JSON number is a binary fraction to most programs; or a whole number
datetime, date    a string in ISO 8601; a datetime with its offset from UTC
UUID              a string of 36 characters
bytes             a string, base64
Enum              the member's value
Literal           the value
set, tuple        an array
dict              an object; keys that are not strings are written as such: ``{"1": true}``
a dataclass       an object with its fields
a float           a number, or ``"inf"`` and ``"-inf"``
================  ===================================================================================

It refuses some values that a field could hold: text with a NUL, which PostgreSQL's text columns do not take; decimals
beyond ``10 ** ±1000``, which could make arithmetic very slow; and whole numbers of more than 1,000 digits, because
those of more than 4,300 cannot be written as JSON. A value out of the bounds of its type is refused at its place.
"""

from __future__ import annotations

import json
import types as python_types
import typing
from functools import cache
from typing import Any

from enode_django.domain.aliases import without_aliases
from enode_django.domain.bounds import bounds_of
from enode_django.domain.declarations import Declared, schema_of
from enode_django.domain.defaults import MISSING
from enode_django.domain.fields import Schema, field_type
from enode_django.domain.hashes import collide
from enode_django.domain.messages import Command
from enode_django.domain.prefixes import target_of
from enode_django.domain.scalars import is_enum, is_literal
from enode_django.exceptions import InvalidField, InvalidFields, InvalidId, Path
from enode_django.serialization.json_scalars import (
    ID,
    SCALARS,
    Errors,
    JsonType,
    add_error,
    bounded_type,
    enum_type,
    literal_type,
    wanted_error,
)


@cache
def json_type(annotation: Any) -> JsonType:
    """Return the JSON type of a resolved annotation that `field_type` accepts. Raises `UnsupportedType` for others."""
    field_type(annotation)
    if annotation in SCALARS:
        return SCALARS[annotation]
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is typing.Annotated:
        return bounded_type(json_type(arguments[0]), bounds_of(annotation))
    if is_literal(annotation):
        return literal_type(annotation)
    if origin in (typing.Union, python_types.UnionType):
        return _optional(json_type(next(each for each in arguments if each is not type(None))))
    if origin in (list, set, frozenset):
        return _collection(origin, json_type(arguments[0]))
    if origin is tuple:
        return _tuple(arguments)
    if origin is dict:
        return _dict(arguments[0], json_type(arguments[1]))
    return enum_type(annotation) if is_enum(annotation) else _dataclass(annotation)


# -- containers -------------------------------------------------------------------------------------------------------


def _optional(inner: JsonType) -> JsonType:
    def read(value: Any, path: Path, errors: Errors) -> Any:
        return None if value is None else inner.read(value, path, errors)

    return JsonType(read, {"anyOf": [inner.schema, {"type": "null"}]})


def _collection(kind: Any, item: JsonType) -> JsonType:
    def read(value: Any, path: Path, errors: Errors) -> Any:
        if type(value) is not list:
            return add_error(errors, path, str(wanted_error("an array", value)))
        found = [item.read(each, (*path, number), errors) for number, each in enumerate(value)]
        if errors or kind is list:
            return found
        if collide(found):
            return add_error(errors, path, "too many items with the same hash")
        made = kind(found)
        if len(made) < len(found):
            add_error(errors, path, "an item is there twice")
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
            return add_error(errors, path, str(wanted_error(f"an array of {len(kinds)} items", value)))
        each = enumerate(zip(kinds, value, strict=True))
        return tuple(kind.read(item, (*path, number), errors) for number, (kind, item) in each)

    length = {"minItems": len(kinds), "maxItems": len(kinds)}
    prefix = {"prefixItems": [kind.schema for kind in kinds]} if kinds else {}
    return JsonType(read, {"type": "array", **prefix, **length})


def _dict(key_annotation: Any, item: JsonType) -> JsonType:
    key = json_type(key_annotation)

    def read(value: Any, path: Path, errors: Errors) -> Any:
        if type(value) is not dict:
            return add_error(errors, path, str(wanted_error("an object", value)))
        keys = [_read_key(key, name, (*path, name), errors) for name in value]
        if collide(keys):
            return add_error(errors, path, "too many keys with the same hash")
        found = {
            read: item.read(each, (*path, name), errors) for read, (name, each) in zip(keys, value.items(), strict=True)
        }
        if len(found) < len(value) and not errors:
            add_error(errors, path, "a key is there twice, written differently")
        return found

    return JsonType(read, {"type": "object", "additionalProperties": item.schema})


def _read_key(key: JsonType, name: str, path: Path, errors: Errors) -> Any:
    """Read a key of an object. A key of a type other than text is parsed as JSON first; if that fails, it is read as
    text (of an enum, for example)."""
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
                add_error(own, path, str(error))
        for where, message in own.items():
            add_error(errors, where, message)

    return JsonType(read, fields.schema)


class JsonFields:
    """The declared fields of a message, a state or a dataclass as a JSON object."""

    def __init__(self, cls: type) -> None:
        self._schema = schema_of(cls) if issubclass(cls, Declared) else Schema(cls)
        hints = typing.get_type_hints(cls, include_extras=True)
        self.types = {name: json_type(without_aliases(hints[name])) for name in self._schema.names}
        self.required = tuple(name for name in self.types if self._schema.defaults[name] is MISSING)

    @property
    def schema(self) -> dict[str, Any]:
        schema: dict[str, Any] = {"type": "object", "properties": {name: t.schema for name, t in self.types.items()}}
        if self.required:
            schema["required"] = list(self.required)
        return schema | {"additionalProperties": False}

    def read(self, value: Any, path: Path = ()) -> dict[str, Any]:
        """Return the given values by name; the missing ones have defaults. ``path`` is the place of the object.

        Raises `InvalidFields` with all errors.
        """
        errors: Errors = {}
        values = self.read_into(value, path, errors)
        if errors:
            raise InvalidFields(errors)
        return values

    def read_into(self, value: Any, path: Path, errors: Errors) -> dict[str, Any]:
        if type(value) is not dict:
            add_error(errors, path, str(wanted_error("an object", value)))
            return {}
        for name in value.keys() - self.types.keys():
            add_error(errors, (*path, name), f"there is no such field; known are {', '.join(self.types) or 'none'}")
        for name in self.required:
            if name not in value:
                add_error(errors, (*path, name), "this field is required")
        given = ((name, kind) for name, kind in self.types.items() if name in value)
        return {name: kind.read(value[name], (*path, name), errors) for name, kind in given}


def json_fields(cls: type) -> JsonFields:
    """Return the `JsonFields` of a class, made once. Raises `DefinitionError` for a field that cannot be stored."""
    fields = _fields.get(cls)
    if fields is None:
        fields = _fields[cls] = JsonFields(cls)
    return fields


_fields: dict[type, JsonFields] = {}


def command_from_json(
    cls: type[Command], aggregate_root_id: Any, fields: Any, *, id: str | None = None, path: Path = ()
) -> Command:
    """Return a command from values of `json.loads`; ``path`` is the place of ``fields``. Raises `InvalidFields`."""
    errors: Errors = {}
    values = json_fields(cls).read_into(fields, path, errors)
    ID.read(aggregate_root_id, ("aggregate_root_id",), errors)
    if errors:
        raise InvalidFields(errors)
    given = {} if id is None else {"id": id}
    target = target_of(cls, aggregate_root_id)
    try:
        return cls(aggregate_root_id=target, **given, **values)
    except InvalidId as error:
        raise InvalidFields({("aggregate_root_id",): str(error)}) from error
    except (InvalidField, ValueError) as error:  # the class's own __post_init__
        raise InvalidFields({path: str(error)}) from error
