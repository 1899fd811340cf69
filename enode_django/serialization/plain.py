"""Plain values to msgpack and back.

Values that msgpack has no type for are written as extension types, so that they are readable without this package's
classes: aware datetimes as msgpack timestamps; Decimal, UUID, date and integers beyond 64 bits under the codes below.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import date
from decimal import Decimal
from functools import partial
from typing import Any, TypeVar
from uuid import UUID

import msgpack
import msgspec

from enode_django.domain.scalars import TooLong
from enode_django.exceptions import InvalidField, MalformedMessage, shown
from enode_django.serialization.unpacking import Unpacker

Shape = TypeVar("Shape")

DECIMAL, UNIQUE_ID, DATE, BIG_INTEGER = 1, 2, 3, 4

MOST_DIGITS = 1_000
"""The most decimal digits of a whole number in a command. Numbers of more than 4,300 cannot be written as text or JSON,
and the sum of a few numbers below that could reach it."""
MOST_BITS = (10**MOST_DIGITS).bit_length()


def _to_extension(value: Any) -> msgpack.ExtType:
    kind = type(value)
    if kind is Decimal:
        return _extension((DECIMAL, str(value).encode()))
    if kind is UUID:
        return _extension((UNIQUE_ID, value.bytes))
    if kind is date:
        return _extension((DATE, value.isoformat().encode()))
    if isinstance(value, int):
        return _extension((BIG_INTEGER, value.to_bytes(value.bit_length() // 8 + 1, "big", signed=True)))
    raise InvalidField(f"{value!r} ({kind.__name__}) cannot be stored")


# ExtType's constructor checks what is already known here, and takes as long as packing the whole value.
_extension = partial(tuple.__new__, msgpack.ExtType)


def _to_small_extension(value: Any) -> msgpack.ExtType:
    if type(value) is Decimal:  # saves a call for the most frequent type
        return _extension((DECIMAL, str(value).encode()))
    if type(value) is int and value.bit_length() > MOST_BITS:
        raise InvalidField(f"{shown(value)} cannot be sent: a number in a command has at most {MOST_DIGITS} digits")
    return _to_extension(value)


def _from_extension(code: int, data: bytes | memoryview) -> Any:
    if code == DECIMAL:
        return Decimal(str(data, "utf-8"))
    if code == UNIQUE_ID:
        return UUID(bytes=bytes(data))
    if code == DATE:
        return date.fromisoformat(str(data, "utf-8"))
    if code == BIG_INTEGER:
        return int.from_bytes(data, "big", signed=True)
    raise MalformedMessage(f"unknown extension type {code}")


def _from_extension_of_command(code: int, data: bytes | memoryview) -> Any:
    if code == DECIMAL:  # as above
        return Decimal(str(data, "utf-8"))
    found = _from_extension(code, data)
    return TooLong(found) if code == BIG_INTEGER and found.bit_length() > MOST_BITS else found


class _ThreadPacker(threading.local):
    """The packers of a thread. A packer keeps its buffer between calls, which saves a third of the time of packing a
    small value."""

    def __init__(self) -> None:
        self.pack: Callable[[Any], bytes] = msgpack.Packer(default=_to_extension, datetime=True).pack
        self.pack_small: Callable[[Any], bytes] = msgpack.Packer(default=_to_small_extension, datetime=True).pack


_packer = _ThreadPacker()


def pack(value: Any, small: bool = False) -> bytes:
    """Pack a plain value. Raises `InvalidField` for one that cannot be stored: another class, text with lone
    surrogates, too deep nesting; if ``small``, also whole numbers of more than `MOST_DIGITS`."""
    try:
        return _packer.pack_small(value) if small else _packer.pack(value)
    except InvalidField:
        raise
    except (TypeError, ValueError, OverflowError) as error:
        raise InvalidField(f"the value cannot be stored: {error}") from error


_FIXED = frozenset({type(None), bool, int, float, Decimal, UUID, date})
"""Immutable types whose every value can be packed."""


_AROUND = b"\x91" * 4
"""Arrays of one item: more levels than rows and answers put around a value (see `sent_commands`)."""


def taken(value: Any) -> Any:
    """Return a plain value as it is after packing and unpacking; it shares no mutable object with ``value``. Raises
    `InvalidField` for a value that cannot be packed, or not be unpacked, also inside of a row: packing accepts a level
    more than unpacking."""
    if type(value) in _FIXED:
        return value
    packed = pack(value)
    if type(value) is str or type(value) is bytes:
        return value
    try:
        return _any.unpack_slowly(_AROUND + packed)[0][0][0][0]
    except MalformedMessage as error:
        raise InvalidField(f"it cannot be read again: {error}") from error


_any = Unpacker(_from_extension)
_of_commands = Unpacker(_from_extension_of_command)


def unpack(data: bytes, *, is_foreign: bool = False) -> Any:
    """Unpack a plain value. Raises `MalformedMessage` for bytes that `pack` cannot have made, and for maps whose keys
    `collide`; if ``is_foreign`` (somebody else may have written them, such as a message of the queue), also for more
    than `MOST_VALUES` values, before they take memory."""
    return _any.unpack(data, is_foreign)


def unpack_command(data: bytes) -> Any:
    """Unpack foreign bytes like `unpack`. Whole numbers of more than `MOST_DIGITS` become `TooLong`, which no field
    accepts."""
    return _of_commands.unpack(data, True)


def unpacker(kind: type[Shape]) -> Callable[[bytes], Shape]:
    """Return a function that unpacks up to `unpacking.CANNOT_HARM` bytes, like `unpack`, as a type that `msgspec`
    checks meanwhile. It raises any error for other bytes: `unpack` says what is wrong with them."""
    return msgspec.msgpack.Decoder(kind, ext_hook=_from_extension).decode


def command_unpacker(kind: type[Shape]) -> Callable[[bytes], Shape]:
    """Return a function like `unpacker`, but for `unpack_command`."""
    return msgspec.msgpack.Decoder(kind, ext_hook=_from_extension_of_command).decode
