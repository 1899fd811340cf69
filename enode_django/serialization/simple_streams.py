"""Event streams of simple values as bytes, joined from packed pieces: the parts that all events of a class share are
packed once for each class. The bytes are those of `plain.pack`, in a third of the time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import date, datetime
from decimal import Decimal
from typing import Any, NoReturn
from uuid import UUID

import msgpack
import msgspec

from enode_django.domain.declarations import schema_of
from enode_django.domain.messages import DomainEvent, sealed_plain
from enode_django.domain.scalars import check_decimal
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


_AddPieces = Callable[[DomainEvent, Callable[[Iterable[bytes]], None]], None]
"""Passes the packed pieces of an event to a function."""
_compiled: dict[type[DomainEvent], _AddPieces] = {}

_FUNCTION = """
def add_pieces(event, add):
    values = {values}
    {steps}
    add(({pieces}))
"""
_STEP = "value{n} = values[{name!r}]"
_PIECES = "before{n}, pack[type(value{n})](value{n})"
_DECIMAL_STEP = _STEP + "; text{n} = str(value{n}).encode() if type(value{n}) is Decimal else refuse(value{n})"
_DECIMAL_PIECES = "before{n}, heads[len(text{n})], text{n}"


def _compile(cls: type[DomainEvent]) -> _AddPieces:
    """Compile a function that does what a loop over the fields would do, in two thirds of the time."""
    schema, packer = schema_of(cls), msgpack.Packer(autoreset=False)
    packer.pack_array_header(3)
    packer.pack(types.name_of(cls))
    packer.pack(cls.schema_version)
    packer.pack_map_header(len(schema.names))
    known: dict[str, Any] = {"heads": _DECIMAL_HEADS, "pack": _PACK, "Decimal": Decimal, "refuse": _refuse}
    steps, pieces, before = [], [], packer.bytes()
    for n, name in enumerate(schema.names):
        is_decimal = schema.types[name].decode is check_decimal
        steps.append((_DECIMAL_STEP if is_decimal else _STEP).format(n=n, name=name))
        pieces.append((_DECIMAL_PIECES if is_decimal else _PIECES).format(n=n))
        known[f"before{n}"] = before + _pack(name)
        before = b""
    text = _FUNCTION.format(
        values="sealed_plain(event)" if any(kind.encode for kind in schema.types.values()) else "event.__dict__",
        steps="\n    ".join(steps),
        pieces=", ".join(pieces or ["before"]) + ",",
    )
    known |= {"before": before, "sealed_plain": sealed_plain}
    exec(text, known)  # noqa: S102  (names are quoted)
    compiled: _AddPieces = known["add_pieces"]
    _compiled[cls] = compiled
    return compiled


def _refuse(value: object) -> NoReturn:
    raise TypeError(f"{value!r} is not a Decimal")


def _array_of(length: int) -> bytes:
    return msgpack.Packer().pack_array_header(length)


_STREAM_OF_ONE = _array_of(2) + _array_of(1)


def pack_simple_stream(events: Sequence[DomainEvent], result: Any) -> bytes:
    """Pack the pair of a stream's events and its result. Raises `TypeNameError` for a class without a name, and
    `NOT_SIMPLE`."""
    pieces = [_STREAM_OF_ONE if len(events) == 1 else _array_of(2) + _array_of(len(events))]
    for event in events:
        (_compiled.get(type(event)) or _compile(type(event)))(event, pieces.extend)
    pieces.append(_PACK[type(result)](result))
    return b"".join(pieces)
