"""A published stream says in which generation of the store it was written."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from enode_django.bus.messages import decode_published, encode_published
from enode_django.eventing.pending import PendingAggregate
from enode_django.eventstore.base import StreamRecord
from enode_django.exceptions import MalformedMessage
from enode_django.serialization.plain import pack, unpack

RECORD = StreamRecord("a", 1, "c", "bank.Account", "bank.Deposit", datetime(2026, 1, 1, tzinfo=UTC), b"e", b"m")


def test_the_generation_comes_through() -> None:
    assert decode_published(encode_published(RECORD, "inbox", 1_790_000_000)) == (RECORD, "inbox", 1_790_000_000)


def test_a_message_does_not_say_that_it_is_of_the_first_generation() -> None:
    body = encode_published(RECORD, "inbox")
    assert len(unpack(body)) == 10
    assert decode_published(body) == (RECORD, "inbox", 0)


@pytest.mark.parametrize("rest", [["x"], [None], [True], [1, 2]])
def test_what_is_no_generation_is_malformed(rest: list[object]) -> None:
    with pytest.raises(MalformedMessage):
        decode_published(pack([*unpack(encode_published(RECORD)), *rest]))


def pending(version: int, generation: int) -> PendingAggregate:
    work = PendingAggregate("a", "bank.Account")
    work.add(RECORD._replace(version=version), generation)
    return work


def test_of_a_stream_of_an_older_generation_than_others_only_the_version_counts() -> None:
    work = pending(1, generation=5)
    work.add(RECORD._replace(version=2), 4)
    assert (list(work.streams), work.until, work.generation) == ([1], 2, 5)


@pytest.mark.parametrize("is_newer_first", [True, False])
def test_joined_works_have_only_the_streams_of_the_newer_generation(is_newer_first: bool) -> None:
    works = [pending(1, generation=5), pending(2, generation=4)]
    work, other = works if is_newer_first else reversed(works)
    work.merge(other)
    assert (list(work.streams), work.until, work.generation) == ([1], 2, 5)
