from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from enode_django.equeue.broker.batches import ALIGNMENT, Header, decode_header, encode_header

LONG = st.integers(0, 2**63)
HEADERS = st.builds(
    Header,
    topic=st.text(st.characters(codec="utf-8"), min_size=1, max_size=40),
    queue=st.integers(0, 2**31),
    first_offset=LONG,
    messages=st.integers(1, 2**31),
    position=LONG,
    body_length=st.integers(0, 2**31),
    time=LONG,
    flushed=LONG,
    producer=st.binary(min_size=16, max_size=16),
    sequence=LONG,
    part=st.just(2),
    parts=st.integers(3, 2**16 - 1),
)


@given(HEADERS, st.binary(max_size=20))
def test_a_header_comes_back_whatever_follows_it(header: Header, body: bytes) -> None:
    encoded = encode_header(header)
    assert decode_header(encoded + body, header.position) == header
    assert header.body_position == header.position + len(encoded)
    assert 0 <= header.end - header.body_position - header.body_length < ALIGNMENT


@given(HEADERS, st.data())
def test_a_changed_or_short_header_is_none(header: Header, data: st.DataObject) -> None:
    encoded = bytearray(encode_header(header))
    assert decode_header(encoded[: data.draw(st.integers(0, len(encoded) - 1))], header.position) is None
    encoded[data.draw(st.integers(0, len(encoded) - 1))] ^= data.draw(st.integers(1, 255))
    assert decode_header(encoded, header.position) is None


@given(HEADERS)
def test_a_header_at_another_position_is_none(header: Header) -> None:
    assert decode_header(encode_header(header), header.position + ALIGNMENT) is None


@given(st.binary(max_size=200))
def test_random_bytes_are_no_header(data: bytes) -> None:
    assert decode_header(data, 0) is None
    assert decode_header(b"EQB1" + data, 0) is None
