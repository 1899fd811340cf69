"""Frames between the broker and its clients: a length (u32, big-endian) and that many bytes of msgpack. No I/O.

A frame never takes more memory than has arrived of it, rounded up. A one-byte item can take 70 bytes when decoded, so
the items of each list, and those of the whole frame, are limited. Numbers can be chosen so that a dictionary with them
as keys takes seconds to make, so keys are limited, too. Extension types and broken msgpack are refused.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import Any

import msgpack

from enode_django.exceptions import MalformedFrame, shown

MAX_FRAME = 64 * 1024 * 1024
MAX_ITEMS = 100_000
"""The most items of one list or dictionary. A few bytes can claim that a list has many items."""
MAX_ALL_ITEMS = 500_000
"""The most items of all lists and dictionaries of a request together. A send has four for each of its batches, at most
65,535; a commit has six for each queue."""
MAX_KEY = (1 << 16) - 1
"""The largest number that is a key of a dictionary in a request: that of the last queue that a topic can have."""

_LENGTH = struct.Struct(">I")
_SMALL = 64 * 1024
_CANNOT_COLLIDE = 8 * 1024
"""Bytes. The keys in so few cannot slow down a dictionary."""


def encode_frame(message: Any, limit: int = MAX_FRAME) -> tuple[bytes, bytes]:
    """Return the two parts of a frame, to be sent one after the other. Raises `MalformedFrame` above the limit."""
    payload = msgpack.packb(message, default=_plain)
    if len(payload) > limit:
        raise MalformedFrame(f"a frame of {len(payload)} bytes is above the limit of {limit}; send less at once")
    return _LENGTH.pack(len(payload)), payload


def decode_message(
    payload: bytes | bytearray | memoryview,
    max_items: int = MAX_ITEMS,
    *,
    max_all_items: int | None = None,
    max_text: int = MAX_FRAME,
) -> Any:
    """Decode one whole msgpack value without extension types. Raises `MalformedFrame` for anything else.
    ``max_all_items`` limits all lists and dictionaries together, and the keys to texts and numbers up to `MAX_KEY`
    (None: no limit); ``max_text`` limits the bytes of a text."""
    items = min(len(payload), max_items)
    take, take_pairs = _hooks(len(payload), max_all_items)
    try:
        return msgpack.unpackb(
            payload,
            raw=False,
            strict_map_key=False,
            ext_hook=_refuse,
            max_array_len=items,
            max_map_len=items,
            max_str_len=max_text,
            list_hook=take,
            object_pairs_hook=take_pairs,
        )
    except (ValueError, TypeError, RecursionError, MemoryError, msgpack.UnpackException) as error:
        raise MalformedFrame(
            f"a frame of {len(payload)} bytes is not a message: {error or type(error).__name__}"
        ) from None


_Pairs = Sequence[tuple[Any, Any]]


def _hooks(size: int, most: int | None) -> tuple[Callable[[list[Any]], Any] | None, Callable[[_Pairs], Any] | None]:
    """Return the hooks that limit the items and keys of a frame. They get each complete list and dictionary, inner ones
    first. A small frame needs none, and most frames are small."""
    if most is None or size <= _CANNOT_COLLIDE:
        return None, None
    left = most

    def count(items: int) -> None:
        nonlocal left
        left -= items
        if left < 0:
            raise ValueError(f"its lists and dictionaries have more than {most} items together")

    def take(items: list[Any]) -> list[Any]:
        count(len(items))
        return items

    def take_pairs(pairs: _Pairs) -> dict[Any, Any]:
        count(2 * len(pairs))
        for key, _ in pairs:
            if type(key) is not str and not (type(key) is int and 0 <= key <= MAX_KEY):
                raise ValueError(f"a key in it is neither a text nor the number of a queue: {shown(key)}")
        return dict(pairs)

    return (take if size > _SMALL else None), take_pairs


class FrameDecoder:
    """Decodes bytes as they arrive: receive into `room`, then call `received`. ``limit`` may be raised later.

    A buffer of up to ``kept`` bytes is kept for the next frame. ``decode`` turns the bytes behind a length into a
    message, or raises `MalformedFrame`.
    """

    def __init__(
        self, limit: int = MAX_FRAME, *, decode: Callable[[memoryview], Any] = decode_message, kept: int = 1024 * 1024
    ) -> None:
        self.limit = limit
        self._decode = decode
        self._kept = kept
        self._buffer = bytearray(_SMALL)
        self._filled = 0

    @property
    def is_partial(self) -> bool:
        """Return True if a frame is incomplete."""
        return self._filled > 0

    def room(self) -> memoryview:
        """Return the buffer for the next bytes; never empty."""
        return memoryview(self._buffer)[self._filled :]

    def received(self, count: int) -> list[Any]:
        """Return the messages completed by ``count`` more bytes in `room`. Raises `MalformedFrame`; the decoder is
        unusable afterwards, since the start of the next frame is unknown."""
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
                messages.append(self._decode(payload))
                start, needed = start + needed, _LENGTH.size
        self._make_room(start, needed)
        return messages

    def _make_room(self, start: int, needed: int) -> None:
        """Move the rest to the front of the buffer. Enlarge it if needed, at most to twice the bytes that arrived."""
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
