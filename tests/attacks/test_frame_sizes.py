"""Frames that would take far more memory and time than their size in bytes suggests."""

from __future__ import annotations

import struct
import tracemalloc

import msgpack
import pytest

from enode_django.equeue.broker.requests import MAX_PLAIN_FRAME, MAX_TEXT, MOST_QUEUES, decode_request
from enode_django.equeue.frames import MAX_ALL_ITEMS, decode_message
from enode_django.exceptions import MalformedFrame

MOST_BATCHES = 0xFFFF
LARGEST_ITEM = 500
"""The bytes of memory that one item may take: a small map takes the most."""


def frame(name: str, argument: bytes) -> memoryview:
    return memoryview(b"\x93\x01" + msgpack.packb(name) + b"\x91" + argument)


def array(*items: bytes) -> bytes:
    return b"\xdd" + struct.pack(">I", len(items)) + b"".join(items)


MANY_EMPTY = array(*[array(*[b"\x90"] * 1_000)] * 1_500)
SHAPES = {
    "lists": MANY_EMPTY,
    "maps": array(*[array(*[b"\x80"] * 1_000)] * 100),
    "numbers": array(*[array(*[b"\xcd\xff\xff"] * 1_000)] * 100),
    "small maps": array(*[b"\x81\xa2ab\xa2cd"] * 50_000),
}


@pytest.mark.parametrize("argument", SHAPES.values(), ids=SHAPES)
def test_a_frame_takes_memory_for_so_many_items_and_no_more(argument: bytes) -> None:
    payload = frame("send", argument)
    tracemalloc.start()
    try:
        with pytest.raises(MalformedFrame, match="more than 20000 items together"):
            decode_message(payload, max_all_items=20_000)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 20_000 * LARGEST_ITEM


def test_a_send_may_not_have_any_number_of_items() -> None:
    with pytest.raises(MalformedFrame, match=f"more than {MAX_ALL_ITEMS} items together"):
        decode_request(frame("send", MANY_EMPTY))


@pytest.mark.parametrize("name", ["topics", "pull", "acquire", "what is not a request", "n" * 70])
def test_a_request_without_messages_in_it_is_small_or_not_even_decoded(name: str) -> None:
    with pytest.raises(MalformedFrame, match=f"limit of {MAX_PLAIN_FRAME} for those without messages"):
        decode_request(frame(name, MANY_EMPTY))


@pytest.mark.parametrize("payload", [b"\xc1", b"\x01", b"\x93\x01\x90", b"\x90", b"\xdd\xff\xff\xff\xff"])
def test_a_large_frame_that_names_no_request_is_not_decoded(payload: bytes) -> None:
    with pytest.raises(MalformedFrame, match="without messages"):
        decode_request(memoryview(payload + bytes(MAX_PLAIN_FRAME)))


def test_a_text_is_no_longer_than_names_need() -> None:
    text = "x" * (MAX_TEXT + 1)
    with pytest.raises(MalformedFrame, match="not a message"):
        decode_request(frame("send", msgpack.packb(text)))
    assert decode_request(frame("send", msgpack.packb(text[1:])))[2] == [text[1:]]


@pytest.mark.parametrize(
    "request_",
    [
        (1, "send", ["topic", [(0, 1, b"")] * MOST_BATCHES, 1, bytes(16), 1]),
        (1, "commit", ["group", "topic", {queue: (1, 1 << 40, [], 0) for queue in range(MOST_QUEUES)}]),
        (1, "pull", ["topic", dict.fromkeys(range(MOST_QUEUES), 1 << 40), 1, 1.0]),
        (1, "renew", ["group", "topic", "owner", dict.fromkeys(range(MOST_QUEUES), 1 << 40), 1.0]),
        (1, "reply", [[("a" * 32, b"")] * 10_000]),
    ],
    ids=lambda value: value[1],
)
def test_what_clients_send_at_most_is_within_the_limits(request_: tuple[object, ...]) -> None:
    assert decode_request(memoryview(msgpack.packb(request_)))[:2] == list(request_[:2])


@pytest.mark.parametrize("key", [MOST_QUEUES, -1, 1 << 63, 1.0, None, True, b"x"], ids=repr)
def test_a_larger_frame_has_no_dictionary_whose_numbers_could_be_chosen_to_collide(key: object) -> None:
    # Numbers of 28 bits can be chosen so that a dictionary of 60,000 of them takes seconds to make.
    payload = msgpack.packb((1, "pull", ["topic", {**dict.fromkeys(range(10, 5_000), 7), key: 7}, 1, 1.0]))
    with pytest.raises(MalformedFrame, match="neither a text nor the number of a queue"):
        decode_request(memoryview(payload))


def test_any_key_is_taken_in_a_frame_so_small_that_it_cannot_take_long() -> None:
    payload = msgpack.packb((1, "what is not a request", [{1.0: 7, None: 7}]))
    assert decode_request(memoryview(payload))[2] == [{1.0: 7, None: 7}]
