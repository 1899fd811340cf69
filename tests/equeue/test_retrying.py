from __future__ import annotations

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from enode_django.equeue.retrying import (
    ERROR_MAX,
    Failed,
    Message,
    RetryPolicy,
    Settled,
    decode,
    encode_failed,
    encode_settled,
    error_text,
)
from enode_django.exceptions import MalformedMessage

numbers = st.integers(0, 2**63)
seconds = st.floats(0, 1e12)
texts = st.text(st.characters(exclude_categories=["Cs"]))
failures = st.builds(
    Failed, st.builds(Message, texts, numbers, numbers, st.binary(), numbers), texts, seconds, seconds, st.booleans()
)


@given(failures)
def test_what_was_set_aside_is_read_as_it_was(failed: Failed) -> None:
    assert decode(encode_failed(failed)) == failed


@given(st.frozensets(numbers))
def test_notes_are_read_as_they_were(offsets: frozenset[int]) -> None:
    assert decode(encode_settled(offsets)) == Settled(offsets)


values = st.none() | st.integers(-1, 2) | st.floats() | st.just("orders") | st.binary(max_size=3) | st.just([-1])


@given(st.binary() | st.lists(values, min_size=1, max_size=11).map(msgpack.packb))
def test_other_bytes_are_malformed_and_nothing_else_is_raised(body: bytes) -> None:
    try:
        decoded = decode(body)
    except MalformedMessage:
        return
    assert isinstance(decoded, Failed | Settled)


class Unspeakable(Exception):
    def __str__(self) -> str:
        raise RuntimeError


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (ValueError("no"), "ValueError: no"),
        (Unspeakable(), "Unspeakable"),
        (ValueError("\ud800"), "ValueError: ?"),
    ],
)
def test_text_of_an_error(error: Exception, text: str) -> None:
    assert error_text(error) == text


def test_text_of_an_error_is_limited() -> None:
    assert len(error_text(ValueError("x" * 10_000))) == ERROR_MAX


@pytest.mark.parametrize("delay", [-1.0, float("inf"), float("nan")])
def test_delay_that_cannot_be_is_refused(delay: float) -> None:
    with pytest.raises(ValueError, match="a delay of a retry policy"):
        RetryPolicy(delays=(1.0, delay))
