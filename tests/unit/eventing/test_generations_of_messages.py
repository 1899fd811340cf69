"""A published stream says in which generation of the store it was written."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from enode_django.bus.messages import decode_published, encode_published
from enode_django.eventstore.base import StreamRecord
from enode_django.exceptions import MalformedMessage
from enode_django.serialization.plain import pack, unpack

RECORD = StreamRecord("a", 1, "c", "bank.Account", "bank.Deposit", datetime(2026, 1, 1, tzinfo=UTC), b"e", b"m")


def test_the_generation_comes_through() -> None:
    assert decode_published(encode_published(RECORD, "inbox", 1_790_000_000)) == (RECORD, "inbox", 1_790_000_000)


def test_a_message_of_the_first_generation_is_what_older_versions_send_and_read() -> None:
    body = encode_published(RECORD, "inbox")
    assert len(unpack(body)) == 10
    assert decode_published(body) == (RECORD, "inbox", 0)


@pytest.mark.parametrize("rest", [["x"], [None], [True], [1, 2]])
def test_what_is_no_generation_is_malformed(rest: list[object]) -> None:
    with pytest.raises(MalformedMessage):
        decode_published(pack([*unpack(encode_published(RECORD)), *rest]))
