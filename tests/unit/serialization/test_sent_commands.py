from __future__ import annotations

from typing import Any

import pytest

from enode_django.exceptions import MalformedMessage
from enode_django.serialization.codec import STREAM, encode_stream, read_stored, sent_with, stored_events
from enode_django.serialization.plain import pack, unpack
from enode_django.serialization.sent_commands import SENT
from tests.races.counting import Created

SOME = [("x", b"one"), ("y", b"two")]


@pytest.mark.parametrize("result", [None, 7, "sent", {"a": [1]}, SENT, {SENT: 1}, {SENT: ["r", [["x", b"c"]], SENT]}])
@pytest.mark.parametrize("sent", [[], SOME])
def test_a_stream_gives_back_its_result_and_what_was_sent_with_it(result: Any, sent: list[tuple[str, bytes]]) -> None:
    stored = encode_stream([Created()], result, sent)
    found: Any = read_stored(stored)
    assert (found.result, list(found.sent)) == (result, sent)
    assert list(sent_with(stored)) == sent


def test_a_stream_with_which_nothing_is_sent_has_the_bytes_that_it_always_had() -> None:
    assert encode_stream([Created()], 7) == STREAM + pack(([("races.Created", 1, {})], 7))


@pytest.mark.parametrize("count", [1, 500])
def test_a_reader_that_knows_no_sent_commands_takes_them_for_the_result(count: int) -> None:
    stored = encode_stream([Created()], 7, [("x", b"one")] * count)
    events, result = unpack(stored[1:])
    assert events == [["races.Created", 1, {}]]
    assert list(result) == [SENT]
    assert list(stored_events(stored)) == events


@pytest.mark.parametrize(
    "value", [1, [], [1, 2], [1, 2, 3], [1, [["x", 2]], SENT], [1, [[3, b""]], SENT], [1, ["xy", b"z"], 1]]
)
def test_sent_commands_of_another_shape_are_malformed(value: Any) -> None:
    with pytest.raises(MalformedMessage, match="sent commands have another shape"):
        read_stored(STREAM + pack(([], {SENT: value})))
