"""Event streams in the events topic whose values would take many times the memory of their bytes."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from enode_django.admin.readable import readable
from enode_django.bus.messages import decode_published, encode_published
from enode_django.eventing.registry import subscribers
from enode_django.eventstore.base import StreamRecord
from enode_django.exceptions import MalformedMessage
from enode_django.serialization.codec import REFUSAL, STREAM
from enode_django.serialization.plain import pack
from enode_django.serialization.unpacking import MOST_VALUES
from tests.following.domain import CounterRows, Kindness, Opened
from tests.following.harness import Harness

MANY = [[None] * (MOST_VALUES // 2)] * 2
LONG = "x" * (MOST_VALUES + 1)


def record(version: int | None, events: bytes, kind: str = "following.Counter", metadata: bytes = b"") -> StreamRecord:
    return StreamRecord("a", version, "c", kind, "following.Do", datetime(2026, 1, 1, tzinfo=UTC), events, metadata)


def forged(version: int, fields: object, kind: str = "following.Counter") -> StreamRecord:
    return record(version, STREAM + pack(([("following.Opened", 1, fields)], None)), kind)


def test_a_stream_that_may_have_too_many_values_comes_without_them() -> None:
    for heavy in (forged(1, {"owner": MANY}), forged(1, {"owner": LONG}), record(1, b"\x01", metadata=pack(MANY))):
        came = decode_published(encode_published(heavy, "inbox", 7))
        assert came == (heavy._replace(events=b"", metadata=b""), "inbox", 7)


def test_the_admin_shows_where_to_look_for_one() -> None:
    kind, text = readable(encode_published(forged(1, {"owner": LONG})))
    assert kind == "an event stream"
    assert '"aggregate_root_id": "a"' in text
    assert "too large to be decoded here" in text


def test_a_refusal_is_malformed_with_too_many_values_and_not_with_a_long_one() -> None:
    for heavy in (
        record(None, REFUSAL + pack(("following.TooMuch", 1, "no", {"amount": MANY}))),
        record(None, REFUSAL + pack(("following.TooMuch", 1, "no", {})), metadata=pack(MANY)),
    ):
        with pytest.raises(MalformedMessage, match=f"more than {MOST_VALUES} values"):
            decode_published(encode_published(heavy))
    long = record(None, REFUSAL + pack(("following.TooMuch", 1, LONG, {})), metadata=pack({}))
    assert decode_published(encode_published(long)).record == long


@pytest.mark.parametrize("fields", [{"owner": MANY}, {"owner": LONG}], ids=["many", "long"])
def test_what_is_in_the_store_is_handled_in_its_place(harness: Harness, fields: object) -> None:
    harness.stored("a", Opened(owner="ada"))
    subscription = harness.subscription(subscribers.instance(CounterRows))
    harness.deliver(subscription, [forged(1, fields)], reply_to="inbox")
    assert harness.rows() == {"a": ("ada", 0, 1)}
    assert [notice.aggregate_root_id for _, notice in harness.notices] == ["a"]
    assert harness.window.unfinished == 0


def test_one_of_an_unknown_type_is_left_to_the_sweep(harness: Harness) -> None:
    harness.deliver(harness.subscription(subscribers.instance(Kindness)), [forged(1, {"owner": MANY}, "gone.Thing")])
    assert harness.parked("following.Kindness") == []
    assert harness.window.unfinished == 0
