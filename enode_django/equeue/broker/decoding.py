"""Decode the bytes of a frame into a request, within limits. No I/O."""

from __future__ import annotations

from typing import Any

import msgpack

from enode_django.equeue.broker.requests import REQUESTS
from enode_django.equeue.frames import MAX_ALL_ITEMS, MAX_ITEMS, decode_message
from enode_django.exceptions import MalformedFrame

MAX_PLAIN_FRAME = 1024 * 1024
"""Bytes of a request without messages. A request about all queues of a topic takes 0.8 MB at most."""
MAX_TEXT = 64 * 1024
"""Bytes of one text. A later check refuses names that are too long, with a better message; this limit bounds memory,
since a text takes up to four times as much memory as it has bytes."""
_HEAD = 64
"""Bytes that contain the number and the name of a request."""


def decode_request(payload: memoryview) -> Any:
    """Return the request. Raises `MalformedFrame`, after at most `_HEAD` bytes if it is too large for its name."""
    if len(payload) > MAX_PLAIN_FRAME and not _may_be_large(payload):
        raise MalformedFrame(
            f"a request of {len(payload)} bytes is above the limit of {MAX_PLAIN_FRAME} for those without messages in "
            "them; send less at once"
        )
    return decode_message(payload, MAX_ITEMS, max_all_items=MAX_ALL_ITEMS, max_text=MAX_TEXT)


def _may_be_large(payload: memoryview) -> bool:
    unpacker = msgpack.Unpacker()
    unpacker.feed(payload[:_HEAD])
    try:
        unpacker.read_array_header()
        unpacker.skip()
        request = REQUESTS.get(unpacker.unpack())
    except (ValueError, TypeError, msgpack.UnpackException):  # it has no name there
        return False
    return request is not None and request.is_large
