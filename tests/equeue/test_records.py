from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from enode_django.equeue.records import decode_records, encode_records, is_whole, record_count, seal, unseal
from enode_django.exceptions import MalformedRecords

RECORDS = st.lists(st.binary(max_size=50), min_size=1, max_size=40)


@given(RECORDS)
def test_records_come_back_as_they_were(records: list[bytes]) -> None:
    body = encode_records(records)
    assert decode_records(body) == records
    assert decode_records(memoryview(body)) == records
    assert record_count(body) == len(records)


@pytest.mark.parametrize("count", [1, 15, 16, 65_535, 65_536])
def test_the_count_is_read_without_decoding(count: int) -> None:
    assert record_count(encode_records([b""] * count)) == count


@given(RECORDS, st.data())
def test_a_flipped_byte_is_noticed(records: list[bytes], data: st.DataObject) -> None:
    body = bytearray(encode_records(records))
    place = data.draw(st.integers(0, len(body) - 1))
    body[place] ^= data.draw(st.integers(1, 255))
    assert not is_whole(body)
    with pytest.raises(MalformedRecords, match="CRC"):
        decode_records(body)


@given(st.binary(max_size=60))
def test_any_bytes_are_records_or_malformed(content: bytes) -> None:
    for body in (content, seal(content)):
        with contextlib.suppress(MalformedRecords):
            assert all(isinstance(record, bytes) for record in decode_records(body))
        with contextlib.suppress(MalformedRecords):
            assert record_count(body) > 0


def test_a_batch_without_records_is_refused() -> None:
    with pytest.raises(MalformedRecords, match="at least one"):
        encode_records([])
    with pytest.raises(MalformedRecords):
        record_count(seal(b"\x90"))


def test_sealed_bytes_come_back() -> None:
    assert is_whole(seal(b"state"))
    assert unseal(seal(b"state")) == b"state"
    assert unseal(seal(b"")) == b""
