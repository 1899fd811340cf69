"""Event streams of simple values as bytes, joined from packed pieces: the parts that all events of a class share are
packed once for each class. The bytes are those of `plain.pack`, in a third of the time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import date, datetime
from decimal import Decimal
from typing import Any, NamedTuple
from uuid import UUID

import msgpack
import msgspec

from enode_django.domain.declarations import schema_of
from enode_django.domain.messages import DomainEvent, sealed_plain
from enode_django.serialization.plain import DATE, DECIMAL, UNIQUE_ID
from enode_django.serialization.registry import types

_LONGEST_TEXT = 256
"""Bytes. The text of a longer Decimal is left to `plain.pack`."""


def _heads_of_extension(code: int) -> Sequence[bytes]:
    """Return the bytes before an extension value, by its length."""
    return [msgpack.packb(msgpack.ExtType(code, bytes(length)))[:-length] for length in range(1, _LONGEST_TEXT)]


_DECIMAL_HEADS = [b"", *_heads_of_extension(DECIMAL)]
_UUID_HEAD = _heads_of_extension(UNIQUE_ID)[16 - 1]
_DATE_HEAD = _heads_of_extension(DATE)[len("2000-01-01") - 1]
_pack: Callable[[Any], bytes] = msgspec.msgpack.Encoder().encode


def _pack_decimal(value: Decimal) -> bytes:
    text = str(value).encode()
    return _DECIMAL_HEADS[len(text)] + text


def _pack_datetime(value: datetime) -> bytes:
    if value.tzinfo is None:
        raise ValueError(f"{value!r} has no time zone")
    return _pack(value)


_PACK: Mapping[type, Callable[[Any], bytes]] = {
    **dict.fromkeys((type(None), bool, int, float, str, bytes), _pack),
    Decimal: _pack_decimal,
    UUID: lambda value: _UUID_HEAD + value.bytes,
    date: lambda value: _DATE_HEAD + value.isoformat().encode(),
    datetime: _pack_datetime,
}
"""By type. `msgspec` writes other types in forms of its own, so it must not get these."""

NOT_SIMPLE = (LookupError, TypeError, ValueError, OverflowError)
"""The errors of `pack_simple_stream` for values that only `plain.pack` can write, or refuses with a better message."""


class _Layout(NamedTuple):
    """The bytes that all events of a class share: those before the fields, and the packed name of each field."""

    head: bytes
    fields: Sequence[tuple[str, bytes]]
    are_plain: bool
    """True if the values in an event's dictionary are those that are stored."""


_layouts: dict[type[DomainEvent], _Layout] = {}


def _lay_out(cls: type[DomainEvent]) -> _Layout:
    schema, packer = schema_of(cls), msgpack.Packer(autoreset=False)
    packer.pack_array_header(3)
    packer.pack(types.name_of(cls))
    packer.pack(cls.schema_version)
    packer.pack_map_header(len(schema.names))
    fields = [(name, _pack(name)) for name in schema.names]
    layout = _layouts[cls] = _Layout(packer.bytes(), fields, not any(kind.encode for kind in schema.types.values()))
    return layout


def _array_of(length: int) -> bytes:
    return msgpack.Packer().pack_array_header(length)


_STREAM_OF_ONE = _array_of(2) + _array_of(1)


def pack_simple_stream(events: Sequence[DomainEvent], result: Any) -> bytes:
    """Pack the pair of a stream's events and its result. Raises `TypeNameError` for a class without a name, and
    `NOT_SIMPLE`."""
    pack = _PACK
    pieces = [_STREAM_OF_ONE if len(events) == 1 else _array_of(2) + _array_of(len(events))]
    add = pieces.append
    for event in events:
        cls = type(event)
        head, fields, are_plain = _layouts.get(cls) or _lay_out(cls)
        values = event.__dict__ if are_plain else sealed_plain(event)
        add(head)
        for name, key in fields:
            value = values[name]
            add(key)
            add(pack[type(value)](value))
    add(pack[type(result)](result))
    return b"".join(pieces)
