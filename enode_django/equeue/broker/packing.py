"""Pack large data piece by piece, so that other threads run between the pieces. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import msgpack

JOINED = 256 * 1024


def pieces(value: Any, depth: int) -> Iterator[bytes]:
    """Yield the msgpack of a value. Lists and dictionaries down to ``depth`` are packed item by item.

    >>> b"".join(pieces([1, {"a": [2, 3]}], depth=2)) == msgpack.packb([1, {"a": [2, 3]}])
    True
    """
    packer = msgpack.Packer()
    if depth and isinstance(value, Mapping):
        yield packer.pack_map_header(len(value))
        for key, item in value.items():
            yield packer.pack(key)
            yield from pieces(item, depth - 1)
    elif depth and isinstance(value, list | tuple):
        yield packer.pack_array_header(len(value))
        for item in value:
            yield from pieces(item, depth - 1)
    else:
        yield packer.pack(value)


class Packed:
    """A list that is packed in pieces on every iteration. An item is a value and the depth for `pieces`."""

    def __init__(self, *items: tuple[Any, int]) -> None:
        self._items = items

    def __iter__(self) -> Iterator[bytes]:
        yield msgpack.Packer().pack_array_header(len(self._items))
        for value, depth in self._items:
            yield from pieces(value, depth)


def joined(parts: Iterable[bytes], size: int = JOINED) -> Iterator[bytes]:
    """Yield the same bytes in parts of at least ``size``, but for the last one.

    >>> list(joined([b"a", b"bc", b"d", b"e"], 3))
    [b'abc', b'de']
    """
    waiting: list[bytes] = []
    length = 0
    for part in parts:
        waiting.append(part)
        length += len(part)
        if length >= size:
            yield b"".join(waiting)
            waiting, length = [], 0
    if waiting:
        yield b"".join(waiting)
