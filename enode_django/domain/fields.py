"""The types that a field of a command, event, refusal or aggregate may have.

A `FieldType` does four things with a value: *check* it when a message is made (returning it, or its normal form),
*encode* it to plain values, *decode* it from them, and *copy* it for a caller that may change it. Plain values are
None, bool, int, float, str, bytes, Decimal, aware datetime, date, UUID, and list and dict of these: the codec can write
them without knowing any class.

A value that passes the check decodes to an equal value. So NaN is refused (it equals nothing), and a naive datetime
(it names no instant); aware datetimes are converted to UTC, where no hour happens twice.
"""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Callable, Collection, Iterable, Mapping
from inspect import signature
from typing import Any

from enode_django.domain.aliases import without_aliases
from enode_django.domain.bounds import Bound, bounds_of, check_bounds
from enode_django.domain.compiled import Converted, compiled_check, compiled_decode, compiled_maker
from enode_django.domain.defaults import MISSING, Factory, declared_defaults, made_anew
from enode_django.domain.hashes import MOST_ALIKE, collide
from enode_django.domain.scalars import (
    SCALARS,
    Checked,
    Convert,
    FieldType,
    UnsupportedType,
    enum_type,
    is_enum,
    is_literal,
    literal_type,
    mismatch,
)
from enode_django.exceptions import InvalidField, shown

SUPPORTED = (
    "None, bool, int, float, str, bytes, Decimal, datetime, date, UUID, Enum, Literal, list, tuple, dict, set, "
    "frozenset, frozen dataclasses, X | None of these, and Annotated[X, …] with bounds"
)


def field_type(annotation: Any) -> FieldType:
    """Return the field type of a resolved annotation. Raises `UnsupportedType` for one that cannot be stored."""
    leaf = SCALARS.get(annotation)
    if leaf is not None:
        return leaf
    origin = typing.get_origin(annotation)
    arguments = typing.get_args(annotation)
    if origin is typing.Annotated:
        return _bounded(field_type(arguments[0]), bounds_of(annotation))
    if is_literal(annotation):
        return literal_type(annotation)
    if origin in (typing.Union, types.UnionType):
        return _optional(annotation, arguments)
    if origin in (list, set, frozenset):
        return _collection(origin, field_type(arguments[0]), annotation)
    if origin is tuple:
        return _tuple(arguments)
    if origin is dict:
        return _dict(field_type(arguments[0]), field_type(arguments[1]), annotation)
    if is_enum(annotation):
        return enum_type(annotation)
    if isinstance(annotation, type) and dataclasses.is_dataclass(annotation):
        return _dataclass(annotation)
    raise UnsupportedType(f"{_shown(annotation)} cannot be stored; use {SUPPORTED}")


def _shown(annotation: Any) -> str:
    if annotation in (list, set, frozenset, tuple, dict):
        return f"{annotation.__name__} without item types"
    return annotation.__name__ if isinstance(annotation, type) else repr(annotation)


def _bounded(inner: FieldType, bounds: tuple[Bound, ...]) -> FieldType:
    """Return a type that checks values against the bounds when they are made, and not when they are decoded."""

    def check(value: Any) -> Any:
        found = inner.check(value)
        check_bounds(bounds, found)
        return found

    return inner._replace(exact=Checked, check=check, is_bounded=True) if bounds else inner


def _optional(annotation: Any, arguments: tuple[Any, ...]) -> FieldType:
    others = [argument for argument in arguments if argument is not type(None)]
    if len(others) != 1 or len(arguments) != 2:
        raise UnsupportedType(f"{annotation!r} cannot be stored: only unions of one type with None can")
    inner = field_type(others[0])
    if is_enum(others[0]) and any(member.value is None for member in others[0]):
        raise UnsupportedType(f"{annotation!r} cannot be stored: one of the enum's members has the value None, too")
    encode = _or_none(inner.encode) if inner.encode else None
    copy = _or_none(inner.copy) if inner.copy else None
    return inner._replace(check=_or_none(inner.check), encode=encode, decode=_or_none(inner.decode), copy=copy)


def _or_none(convert: Convert) -> Convert:
    def convert_some(value: Any) -> Any:
        return None if value is None else convert(value)

    return convert_some


def _at(where: str, convert: Convert, value: Any) -> Any:
    try:
        return convert(value)
    except InvalidField as error:
        raise InvalidField(f"{where}: {error}") from error


def _each(convert: Convert, values: Iterable[Any]) -> list[Any]:
    """Convert all values; only after an error find the item that it belongs to."""
    try:
        return [*map(convert, values)]
    except InvalidField:
        return [_at(f"item {index}", convert, each) for index, each in enumerate(values)]


def _all_exact(item: FieldType, values: Iterable[Any]) -> bool:
    """Return True if no value needs to be checked or decoded."""
    return item.exact is not Checked and {*map(type, values)} <= {item.exact}


def _collection(kind: Any, item: FieldType, annotation: Any) -> FieldType:
    if kind is not list and not item.hashable:
        raise UnsupportedType(f"{annotation!r} cannot be stored: its items cannot be hashed")
    encode_item, copy_item = item.encode, item.copy

    def check(value: Any) -> Any:
        if not isinstance(value, kind):
            raise mismatch(kind.__name__, value)
        checked = kind(value if _all_exact(item, value) else _each(item.check, value))
        if kind is not list:
            _refuse_alike("items", checked)
        return checked

    def encode(value: Any) -> list[Any]:
        return [encode_item(each) for each in value] if encode_item else list(value)

    def decode(value: Any) -> Any:
        if type(value) is not list:
            raise mismatch("list", value)
        items = value if _all_exact(item, value) else _each(item.decode, value)
        if kind is not list:
            _refuse_alike("items", items)
        return kind(items)

    copy: Convert | None = None if kind is frozenset else kind
    if copy_item is not None:
        copy = _of_each(kind, copy_item)
    return FieldType(Checked, check, encode, decode, kind is frozenset, copy, item.is_bounded)


def _refuse_alike(what: str, values: Collection[Any]) -> None:
    """Raise `InvalidField` for values that could be stored, but would not be decoded."""
    if len(values) > MOST_ALIKE and collide(values):
        raise InvalidField(f"more than {MOST_ALIKE} of its {len(values)} {what} have the same hash; send fewer")


def _of_each(kind: Any, convert: Convert) -> Convert:
    return lambda value: kind(map(convert, value))


def _tuple(arguments: tuple[Any, ...]) -> FieldType:
    repeated = len(arguments) == 2 and arguments[1] is Ellipsis
    items = [field_type(argument) for argument in (arguments[:1] if repeated else arguments)]

    def types_for(value: Any) -> list[FieldType]:
        if repeated:
            return items * len(value)
        if len(value) != len(items):
            raise mismatch(f"{len(items)} items", value)
        return items

    def check(value: Any) -> tuple[Any, ...]:
        if not isinstance(value, tuple):
            raise mismatch("tuple", value)
        if repeated:
            return tuple(value if _all_exact(items[0], value) else _each(items[0].check, value))
        pairs = zip(types_for(value), value, strict=True)
        return tuple([_at(f"item {index}", item.check, each) for index, (item, each) in enumerate(pairs)])

    def encode(value: Any) -> list[Any]:
        return [item.encode(each) if item.encode else each for item, each in zip(types_for(value), value, strict=True)]

    def decode(value: Any) -> tuple[Any, ...]:
        if type(value) is not list:
            raise mismatch("list", value)
        if repeated:
            return tuple(value if _all_exact(items[0], value) else _each(items[0].decode, value))
        pairs = zip(types_for(value), value, strict=True)
        return tuple([_at(f"item {index}", item.decode, each) for index, (item, each) in enumerate(pairs)])

    def copy(value: Any) -> tuple[Any, ...]:
        return tuple(item.copy(each) if item.copy else each for item, each in zip(types_for(value), value, strict=True))

    changeable = any(item.copy for item in items)
    hashable = all(item.hashable for item in items)
    is_bounded = any(item.is_bounded for item in items)
    return FieldType(Checked, check, encode, decode, hashable, copy if changeable else None, is_bounded)


def _each_pair(convert_key: Convert, convert: Convert, values: dict[Any, Any]) -> dict[Any, Any]:
    """Convert the keys and values of a dictionary; an `InvalidField` names the entry."""
    try:
        return {convert_key(key): convert(value) for key, value in values.items()}
    except InvalidField:
        pairs = values.items()
        return {_at("key", convert_key, key): _at(f"[{shown(key)}]", convert, value) for key, value in pairs}


def _dict(key: FieldType, item: FieldType, annotation: Any) -> FieldType:
    if not _is_simple(typing.get_args(annotation)[0]):
        raise UnsupportedType(f"{annotation!r} cannot be stored: its keys must be of a simple type")
    encode_key, encode_item, copy_item = key.encode, item.encode, item.copy

    def check(value: Any) -> dict[Any, Any]:
        if not isinstance(value, dict):
            raise mismatch("dict", value)
        are_exact = _all_exact(key, value) and _all_exact(item, value.values())
        checked = dict(value) if are_exact else _each_pair(key.check, item.check, value)
        _refuse_alike("keys", checked)
        return checked

    def encode(value: Any) -> dict[Any, Any]:
        if encode_key is encode_item is None:
            return dict(value)
        return {encode_key(k) if encode_key else k: encode_item(v) if encode_item else v for k, v in value.items()}

    def decode(value: Any) -> dict[Any, Any]:
        if type(value) is not dict:
            raise mismatch("dict", value)
        return _each_pair(key.decode, item.decode, value)

    def copy(value: Any) -> dict[Any, Any]:
        return {k: copy_item(v) for k, v in value.items()} if copy_item else dict(value)

    return FieldType(Checked, check, encode, decode, False, copy, key.is_bounded or item.is_bounded)


def _is_simple(annotation: Any) -> bool:
    if typing.get_origin(annotation) is typing.Annotated:
        return _is_simple(typing.get_args(annotation)[0])
    return annotation in SCALARS or is_enum(annotation) or is_literal(annotation)


def _dataclass(kind: type) -> FieldType:
    if not kind.__dataclass_params__.frozen:  # type: ignore[attr-defined]
        raise UnsupportedType(f"{kind.__name__} cannot be stored: declare it with @dataclass(frozen=True)")
    schema = Schema(kind)
    _check_constructor(kind, schema.names)

    def check(value: Any) -> Any:
        if type(value) is not kind:
            raise mismatch(kind.__name__, value)
        values = {name: getattr(value, name) for name in schema.names}
        checked = schema.checked(values)
        return value if all(checked[name] is values[name] for name in values) else kind(**checked)

    def encode(value: Any) -> dict[str, Any]:
        return schema.encode({name: getattr(value, name) for name in schema.names})

    def decode(value: Any) -> Any:
        if type(value) is not dict:
            raise mismatch("dict", value)
        fields = schema.decode(value)
        try:
            return kind(**fields)
        except Exception as error:  # its own __post_init__
            raise InvalidField(f"{kind.__name__} refuses {shown(fields)}: {error}") from error

    def copy(value: Any) -> Any:
        return kind(**schema.copied({name: getattr(value, name) for name in schema.names}))

    hashable = kind.__hash__ is not None
    return FieldType(Checked, check, encode, decode, hashable, copy if schema.copies else None, bool(schema.bounded))


def _check_constructor(kind: Any, names: Iterable[str]) -> None:
    """Raise `UnsupportedType` if the class cannot be made of its fields alone, as reading does."""
    known = {field.name for field in dataclasses.fields(kind)}
    try:
        constructor = signature(kind)
        constructor.bind(**dict.fromkeys(names))
    except (TypeError, ValueError) as error:
        raise UnsupportedType(
            f"{kind.__name__} could not be read again: its constructor does not take its fields: {error}; make a "
            "computed field a property"
        ) from error
    for name in kind.__dataclass_fields__:
        if name not in known and name in constructor.parameters:
            raise UnsupportedType(
                f"{kind.__name__} could be read as another value: its InitVar {name!r} is not kept; make it a field"
            )


class Schema:
    """The declared fields of one class, by name, with their types and defaults.

    The constructor raises `UnsupportedType`, which names class and field, or NameError if an annotation cannot be
    resolved yet.
    """

    def __init__(self, cls: type, without: frozenset[str] = frozenset()) -> None:
        self.owner = cls
        annotations = typing.get_type_hints(cls, include_extras=True)
        defaults = {name: default for name, default in declared_defaults(cls, annotations) if name not in without}
        self.names = tuple(defaults)
        self.types = {name: self._type(name, annotations[name]) for name in self.names}
        self.copies = tuple((name, kind.copy) for name, kind in self.types.items() if kind.copy)
        """The fields with mutable values, each with its copy function."""
        self.bounded = tuple((name, kind.check) for name, kind in self.types.items() if kind.is_bounded)
        """The fields with bounds, of their own or of their items, each with its check."""
        made = {name: made_anew(defaults[name], kind.copy) for name, kind in self.types.items()}
        self.defaults = {name: made[name] or default for name, default in defaults.items()}
        self.with_factory = tuple(name for name, default in self.defaults.items() if isinstance(default, Factory))
        self._changeable = tuple((name, self.types[name].check) for name, _ in self.copies)
        self._checks = tuple(Converted(name, kind.exact, kind.check) for name, kind in self.types.items())
        self._encoders = tuple((name, kind.encode) for name, kind in self.types.items() if kind.encode)
        self._decoders = tuple(Converted(name, kind.exact, kind.decode) for name, kind in self.types.items())
        self.check = compiled_check(self._checks, self._check_slowly)
        """Check the fields of a dictionary, and replace values by their normal forms. Raises `InvalidField`."""
        self.decode_into = compiled_decode(self._decoders, self._default, self._decode_slowly)
        """Decode like `decode`, into an existing dictionary, the first argument."""
        self._makers: dict[tuple[str, ...], Callable[..., Any]] = {}

    def maker(self, *given: str) -> Callable[..., Any]:
        """Return a function that makes an instance of the class from plain values, and from attributes of these names,
        without its constructor. It raises `InvalidField`. It is compiled at the first call."""
        make = self._makers.get(given)
        if make is None:
            make = compiled_maker(self.owner, self._decoders, self._default, self._decode_slowly, given)
            self._makers[given] = make
        return make

    def _type(self, name: str, annotation: Any) -> FieldType:
        try:
            return field_type(without_aliases(annotation))
        except UnsupportedType as error:
            raise UnsupportedType(f"{self.owner.__qualname__}.{name}: {error}") from error

    def _check_slowly(self, values: dict[str, Any]) -> None:
        for name, exact, check in self._checks:
            value = values[name]
            if type(value) is not exact:
                try:
                    normal = check(value)
                except InvalidField as error:
                    raise self._invalid(name, error) from error
                if normal is not value:
                    values[name] = normal

    def check_changeable(self, values: dict[str, Any]) -> None:
        """Check the fields with mutable values again, and replace the values by copies. Raises `InvalidField`."""
        self._check_again(self._changeable, values)

    def check_bounded(self, values: dict[str, Any]) -> None:
        """Check the bounds of decoded values. Raises `InvalidField`."""
        self._check_again(self.bounded, values)

    def _check_again(self, checks: Iterable[tuple[str, Convert]], values: dict[str, Any]) -> None:
        for name, check in checks:
            try:
                values[name] = check(values[name])
            except InvalidField as error:
                raise self._invalid(name, error) from error

    def checked(self, values: Mapping[str, Any]) -> dict[str, Any]:
        copy = dict(values)
        self.check(copy)
        return copy

    def complete(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return ``values``, checked, with defaults for missing ones. Raises `InvalidField`."""
        unknown = values.keys() - self.defaults.keys()
        if unknown:
            raise InvalidField(f"{self.owner.__qualname__} has no field {sorted(unknown)[0]!r}; it has {self.names}")
        return self.checked({name: values[name] if name in values else self._default(name) for name in self.names})

    def encode(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return the plain values of the declared fields; ``values`` may hold more."""
        plain = {name: values[name] for name in self.names}
        for name, encode in self._encoders:
            plain[name] = encode(plain[name])
        return plain

    def names_at_default(self, values: Mapping[str, Any]) -> set[str]:
        """Return the names of the fields whose value is their default."""
        return {
            name
            for name, default in self.defaults.items()
            if default is not MISSING and values[name] == self._default(name)
        }

    def copied(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return ``values`` with copies of the mutable ones; ``values`` may hold more than the fields."""
        copies = dict(values)
        for name, copy in self.copies:
            copies[name] = copy(copies[name])
        return copies

    def decode(self, plain: Mapping[str, Any]) -> dict[str, Any]:
        """Return the fields of plain values. Unknown ones are left out, missing ones get their default."""
        values: dict[str, Any] = {}
        self.decode_into(values, plain)
        return values

    def _decode_slowly(self, values: dict[str, Any], plain: Mapping[str, Any]) -> None:
        for name, exact, decode in self._decoders:
            try:
                value = plain[name]
            except KeyError:
                value = self._default(name)
            else:
                if type(value) is not exact:
                    try:
                        value = decode(value)
                    except InvalidField as error:
                        raise self._invalid(name, error) from error
            values[name] = value

    def _default(self, name: str) -> Any:
        default = self.defaults[name]
        if default is MISSING:
            raise InvalidField(f"{self.owner.__qualname__}.{name} is missing")
        return default() if isinstance(default, Factory) else default

    def _invalid(self, name: str, error: InvalidField) -> InvalidField:
        return InvalidField(f"{self.owner.__qualname__}.{name}: {error}")
