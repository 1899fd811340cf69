"""Frames between the broker and its clients: a length (u32, big-endian) and so many bytes of msgpack. No I/O.

Whatever the other side sends, a frame costs no more memory than has arrived of it, rounded up, and what it decodes to
is bounded by its length: lists of more than `MAX_ITEMS` items, extension types and broken msgpack are refused.
"""

from __future__ import annotations

import struct
from typing import Any

import msgpack

from enode_django.exceptions import MalformedFrame

MAX_FRAME = 64 * 1024 * 1024
MAX_ITEMS = 100_000
"""Of one list or dictionary: a few bytes can say that a list has many items, and lists can lie in lists."""

_LENGTH = struct.Struct(">I")
_SMALL = 64 * 1024


def encode_frame(message: Any, limit: int = MAX_FRAME) -> tuple[bytes, bytes]:
    """The two parts of a frame, to be sent one after the other. Raises `MalformedFrame` above the limit."""
    payload = msgpack.packb(message, default=_plain)
    if len(payload) > limit:
        raise MalformedFrame(f"a frame of {len(payload)} bytes is above the limit of {limit}; send less at once")
    return _LENGTH.pack(len(payload)), payload


def decode_message(payload: bytes | bytearray | memoryview, max_items: int = MAX_ITEMS) -> Any:
    """Raises `MalformedFrame` for anything but one whole msgpack value without extension types."""
    items = min(len(payload), max_items)
    try:
        return msgpack.unpackb(
            payload,
            raw=False,
            strict_map_key=False,
            ext_hook=_refuse,
            max_array_len=items,
            max_map_len=items,
        )
    except (ValueError, TypeError, RecursionError, MemoryError, msgpack.UnpackException) as error:
        raise MalformedFrame(
            f"a frame of {len(payload)} bytes is no message: {error or type(error).__name__}"
        ) from None


class FrameDecoder:
    """Takes bytes as they arrive: receive into `room`, then call `received`. ``limit`` may be raised later.

    A buffer of up to ``kept`` bytes is kept for the next frame.
    """

    def __init__(self, limit: int = MAX_FRAME, *, max_items: int = MAX_ITEMS, kept: int = 1024 * 1024) -> None:
        self.limit = limit
        self._kept = kept
        self._max_items = max_items
        self._buffer = bytearray(_SMALL)
        self._filled = 0

    @property
    def is_partial(self) -> bool:
        """Whether a frame has begun and not ended."""
        return self._filled > 0

    def room(self) -> memoryview:
        """Where the next bytes go; never empty."""
        return memoryview(self._buffer)[self._filled :]

    def received(self, count: int) -> list[Any]:
        """The messages that are whole now that ``count`` more bytes lie in `room`. Raises `MalformedFrame`; then the
        decoder is of no more use, since nobody knows where the next frame begins."""
        self._filled += count
        messages = []
        start, needed = 0, _LENGTH.size
        while self._filled - start >= needed:
            (length,) = _LENGTH.unpack_from(self._buffer, start)
            if length > self.limit:
                raise MalformedFrame(f"a frame of {length} bytes is above the limit of {self.limit}")
            needed = _LENGTH.size + length
            if self._filled - start >= needed:
                payload = memoryview(self._buffer)[start + _LENGTH.size : start + needed]
                messages.append(decode_message(payload, self._max_items))
                start, needed = start + needed, _LENGTH.size
        self._make_room(start, needed)
        return messages

    def _make_room(self, start: int, needed: int) -> None:
        """Move what is left to the front, of a buffer that is larger where that is needed, yet not much larger than
        what has come."""
        rest = self._filled - start
        size = len(self._buffer)
        if rest == size or (not rest and size > self._kept):
            size = max(_SMALL, min(needed, 2 * rest))
            buffer = bytearray(size)
            buffer[:rest] = memoryview(self._buffer)[start : self._filled]
            self._buffer = buffer
        elif start and rest:
            self._buffer[:rest] = self._buffer[start : self._filled]
        self._filled = rest


def _plain(value: object) -> Any:
    if isinstance(value, frozenset | set):
        return sorted(value)
    if hasattr(value, "items"):
        return dict(value.items())
    raise TypeError(f"{type(value).__name__} does not travel in frames")


def _refuse(code: int, data: bytes) -> None:
    raise ValueError(f"it has an extension type ({code})")
