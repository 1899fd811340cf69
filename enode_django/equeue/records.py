"""The body of a batch, as a producer encodes and a consumer decodes it. No I/O.

A body is a CRC-32 (u32, little-endian) followed by the bytes that it covers: a msgpack array of byte strings, the
records. A record's index in the array is its offset relative to the batch's first one, so the broker stores a batch as
it came. It decodes each new one once, to check it.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Annotated, TypeAlias

import msgpack
import msgspec

from enode_django.exceptions import MalformedRecords, shown

Buffer: TypeAlias = bytes | bytearray | memoryview

MOST_RECORDS = 100_000
"""A broker refuses a batch with more records. A decoded record of two bytes takes many times as much memory."""

_encode: Callable[[Sequence[bytes]], bytes] = msgspec.msgpack.Encoder().encode
_decode: Callable[[Buffer], list[bytes]] = msgspec.msgpack.Decoder(list[bytes]).decode
_decode_new: Callable[[Buffer], list[bytes]] = msgspec.msgpack.Decoder(
    Annotated[list[bytes], msgspec.Meta(max_length=MOST_RECORDS)]
).decode
_CHECK = struct.Struct("<I")
CHECK_BYTES = _CHECK.size
_LONGEST_HEAD, _MOST_DECLARED = 5, (1 << 32) - 1
"""The most bytes of the head of an array in msgpack, and the most items that it can declare."""


def encode_records(records: Sequence[bytes]) -> bytes:
    """Encode records as a body. Raises `MalformedRecords` for no records: a batch has at least one."""
    if not records:
        raise MalformedRecords("a batch needs at least one record; send none instead")
    return seal(_encode(records))


def decode_records(body: Buffer) -> list[bytes]:
    """Decode a body. Raises `MalformedRecords` for a wrong CRC and for anything but an array of byte strings."""
    return _decoded(body, _decode)


def checked_count(body: Buffer) -> int:
    """Return the number of records in a body that is to be stored. Raises `MalformedRecords` as `decode_records` does,
    and for more than `MOST_RECORDS`, since every consumer has to decode what is stored."""
    return len(_decoded(body, _decode_new))


def _decoded(body: Buffer, decode: Callable[[Buffer], list[bytes]]) -> list[bytes]:
    if not is_whole(body):
        raise MalformedRecords(f"a body of {len(body)} bytes does not match its CRC; it was damaged on its way")
    try:
        return decode(memoryview(body)[_CHECK.size :])
    except (ValueError, RecursionError) as error:
        raise MalformedRecords(f"a body of {len(body)} bytes is not msgpack array of byte strings: {error}") from error


def record_count(body: Buffer) -> int:
    """Return the number of records that the body's first bytes declare. Raises `MalformedRecords` if they declare
    none.

    >>> record_count(encode_records([b"a", b"b"]))
    2
    """
    unpacker = msgpack.Unpacker(max_array_len=_MOST_DECLARED)
    unpacker.feed(body[_CHECK.size : _CHECK.size + _LONGEST_HEAD])
    with suppress(ValueError, msgpack.UnpackException):
        if count := int(unpacker.read_array_header()):
            return count
    raise MalformedRecords(f"a body must begin with its CRC and an array of records, got {shown(bytes(body[:12]))}")


def check_of(crc: int) -> bytes:
    """Return the bytes that `seal` puts in front of content with this CRC-32."""
    return _CHECK.pack(crc)


def seal(content: bytes) -> bytes:
    """Return the content with its CRC in front."""
    return _CHECK.pack(zlib.crc32(content)) + content


def is_whole(body: Buffer) -> bool:
    """Return True if the CRC in front matches the bytes behind it."""
    if len(body) < _CHECK.size:
        return False
    return bool(zlib.crc32(memoryview(body)[_CHECK.size :]) == _CHECK.unpack_from(body)[0])


def unseal(body: Buffer) -> bytes:
    """Return the content behind the CRC without checking it; `is_whole` checks."""
    return bytes(memoryview(body)[_CHECK.size :])
