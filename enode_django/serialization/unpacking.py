"""Reading of msgpack that may be malicious.

`msgspec` reads the same as `msgpack` in two thirds of the time. Values that `msgspec` refuses are passed to `msgpack`,
which has better messages and reads deeper nesting without running out of stack. Large values, whose items or keys must
be counted, are read by `msgpack` as well.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import msgpack
import msgspec

from enode_django.domain.hashes import MOST_ALIKE, collide
from enode_django.exceptions import MalformedMessage

MOST_VALUES = 1_000_000
"""The most values of one message from outside, in all lists and maps: decoded they take 70 times as many bytes."""
CANNOT_HARM = 1_300
"""Bytes. Too few for `MOST_ALIKE` keys of one hash."""
_CANNOT_BE_MANY = 65_536
"""Bytes. The values in so few take little memory."""


class Unpacker:
    """A thread-safe unpacker. ``from_extension`` decodes extension types: (code, bytes or memoryview) -> value."""

    def __init__(self, from_extension: Callable[[int, Any], Any]) -> None:
        self._decode = msgspec.msgpack.Decoder(ext_hook=from_extension).decode
        self._unpack: Callable[..., Any] = partial(msgpack.unpackb, ext_hook=from_extension, timestamp=3)

    def unpack(self, data: bytes, is_foreign: bool) -> Any:
        """Return the value. Raises `MalformedMessage` for bytes that are not msgpack or have maps whose keys `collide`;
        if ``is_foreign``, also for more than `MOST_VALUES` values, before they take memory."""
        if len(data) <= CANNOT_HARM:
            try:
                return self._decode(data)
            except Exception:
                return self.unpack_slowly(data)
        return self.unpack_slowly(data, is_foreign)

    def unpack_slowly(self, data: bytes, is_foreign: bool = False) -> Any:
        """Unpack like `unpack`, but by `msgpack` alone, which refuses lists as keys of maps."""
        try:
            if len(data) <= CANNOT_HARM:
                return self._unpack(data, strict_map_key=False)
            return self._counted(data) if is_foreign and len(data) > _CANNOT_BE_MANY else self._safely(data)
        except MalformedMessage:
            raise
        except (ValueError, TypeError, ArithmeticError, msgpack.UnpackException) as error:
            raise MalformedMessage(f"{len(data)} bytes are not a message of ours: {error}") from error

    def _safely(self, data: bytes) -> Any:
        """Unpack, checking the keys of maps in a second attempt only: most maps have text keys only, whose hashes are
        unpredictable."""
        try:
            return self._unpack(data, strict_map_key=True)
        except MalformedMessage:
            raise
        except ValueError:
            return self._unpack(data, strict_map_key=False, object_pairs_hook=_map_of)

    def _counted(self, data: bytes) -> Any:
        left = MOST_VALUES

        def take(values: Any) -> Any:
            nonlocal left
            left -= len(values)
            if left < 0:
                raise MalformedMessage(
                    f"{len(data)} bytes have more than {MOST_VALUES} values, as many as a message may"
                )
            return values

        def take_pairs(pairs: Sequence[tuple[Any, Any]]) -> dict[Any, Any]:
            return _map_of(take(pairs))

        limits = {"max_array_len": MOST_VALUES, "max_map_len": MOST_VALUES, "list_hook": take}
        try:
            return self._unpack(data, strict_map_key=True, object_hook=take, **limits)
        except MalformedMessage:
            raise
        except ValueError:
            left = MOST_VALUES
            return self._unpack(data, strict_map_key=False, object_pairs_hook=take_pairs, **limits)


def _map_of(pairs: Sequence[tuple[Any, Any]]) -> dict[Any, Any]:
    if len(pairs) > MOST_ALIKE and collide([key for key, _ in pairs]):
        raise MalformedMessage(f"more than {MOST_ALIKE} of {len(pairs)} keys of a map have the same hash")
    return dict(pairs)
