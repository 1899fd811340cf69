from __future__ import annotations

import struct
import tracemalloc
from contextlib import suppress
from typing import Any

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from enode_django.equeue.frames import MAX_FRAME, FrameDecoder, decode_message, encode_frame
from enode_django.exceptions import MalformedFrame

MESSAGES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(1 << 63), (1 << 64) - 1)
    | st.text()
    | st.binary()
    | st.floats(allow_nan=False),
    lambda inner: st.lists(inner) | st.dictionaries(st.integers(0, 99) | st.text(), inner),
    max_leaves=6,
)


def fed(decoder: FrameDecoder, data: bytes) -> list[Any]:
    """Return the messages that the decoder makes of the data, given in pieces as large as it has room for."""
    messages, rest = [], memoryview(data)
    while rest:
        room = decoder.room()
        assert len(room) > 0
        count = min(len(room), len(rest))
        room[:count], rest = rest[:count], rest[count:]
        del room
        messages += decoder.received(count)
    return messages


@settings(max_examples=40, deadline=None)
@given(st.lists(MESSAGES, max_size=3), st.data())
def test_messages_come_out_as_they_went_in_however_the_bytes_are_cut(messages: list[Any], data: st.DataObject) -> None:
    stream = b"".join(b"".join(encode_frame(message)) for message in messages)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=6)))
    decoder, found = FrameDecoder(), []
    for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        found += fed(decoder, stream[start:end])
    assert found == messages
    assert not decoder.is_partial


def test_large_frames_among_small_ones() -> None:
    messages = [b"x" * size for size in (1, 3_000_000, 2, 65_536, 65_531, 65_532, 1_500_000, 0)]
    stream = b"".join(b"".join(encode_frame(message)) for message in messages)
    assert fed(FrameDecoder(), stream) == messages


@settings(deadline=None)
@given(st.binary(max_size=300))
def test_random_bytes_are_refused_or_understood(data: bytes) -> None:
    with suppress(MalformedFrame):
        decode_message(data)
    decoder = FrameDecoder(limit=1_000)
    try:
        fed(decoder, data)
    except MalformedFrame:
        pass
    else:
        assert decoder.is_partial or not data or len(data) >= 5


def test_length_of_two_gigabytes_is_refused_at_once() -> None:
    with pytest.raises(MalformedFrame, match=f"2147483648 bytes is above the limit of {MAX_FRAME}"):
        fed(FrameDecoder(), struct.pack(">I", 2 << 30))


def test_what_is_announced_takes_no_memory_before_it_comes() -> None:
    decoder = FrameDecoder()
    tracemalloc.start()
    try:
        assert fed(decoder, struct.pack(">I", MAX_FRAME) + b"x" * 100_000) == []
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 1_000_000
    assert decoder.is_partial


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"\xc1",
        b"\x01\x02",  # one value, and a byte after it
        b"\x91" * 5_000 + b"\x01",
        b"\xdd\xff\xff\xff\xff",
        b"\xdf\xff\xff\xff\xff",
        b"\xdd\x00\x01\x86\xa0" * 1_000,
        b"\xc6\xff\xff\xff\xffx",
        b"\x81\x90\x01",  # a list for a key
        b"\xa1\xff",  # no UTF-8
        msgpack.packb(msgpack.ExtType(5, b"x")),
        b"\xd9",
    ],
    ids=range(12),
)
def test_broken_or_hostile_msgpack_is_refused(payload: bytes) -> None:
    with pytest.raises(MalformedFrame):
        decode_message(payload)


def test_sets_and_mappings_travel_as_lists_and_dictionaries() -> None:
    head, payload = encode_frame([frozenset({3, 1}), {2}])
    assert decode_message(payload) == [[1, 3], [2]]
    assert struct.unpack(">I", head) == (len(payload),)


def test_frame_above_the_limit_is_not_made() -> None:
    with pytest.raises(MalformedFrame, match="above the limit of 10"):
        encode_frame(b"x" * 20, limit=10)
