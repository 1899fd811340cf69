"""Any input gets a defined answer, and the broker stays up."""

from __future__ import annotations

import os
import socket
import struct
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from enode_django.equeue.frames import FrameDecoder, encode_frame
from enode_django.equeue.records import encode_records
from enode_django.equeue.transports.broker import MAX_SEND, BrokerTransport
from enode_django.equeue.wire import MAGIC, VERSION
from enode_django.exceptions import ConfigurationError, QueueError, UnknownTopic
from tests.equeue.brokers import DEADLINE, RunningBroker


class Raw:
    """A client that sends arbitrary bytes and messages."""

    def __init__(self, location: str, *, greet: bool = True) -> None:
        parts = urlsplit(location)
        self._socket = socket.create_connection((parts.hostname, parts.port), DEADLINE)
        self._decoder = FrameDecoder()
        self._answers: list[Any] = []
        if greet:
            assert self.ask(1, "hello", [MAGIC, VERSION, bytes(16)])[1] is True

    def send(self, data: bytes) -> None:
        self._socket.sendall(data)

    def ask(self, *message: Any) -> Any:
        self.send(b"".join(encode_frame(message)))
        return self.answer()

    def answer(self) -> Any:
        """Return the next answer, or None if the connection is closed."""
        while not self._answers:
            try:
                count = self._socket.recv_into(self._decoder.room())
            except ConnectionResetError:  # the broker closed before it had read everything
                return None
            if not count:
                return None
            self._answers += self._decoder.received(count)
        return self._answers.pop(0)

    def close(self) -> None:
        self._socket.close()


@pytest.fixture(autouse=True)
def still_up(broker: RunningBroker, transport: BrokerTransport) -> Iterator[None]:
    yield
    topic = f"after-{uuid.uuid4().hex}"
    transport.create_topic(topic, 1)
    assert transport.send(topic, {0: [b"x"]}) == {0: 0}


@pytest.fixture
def topic(transport: BrokerTransport) -> str:
    name = f"topic-{uuid.uuid4().hex}"
    transport.create_topic(name, 2)
    return name


@pytest.mark.parametrize("greeted", [True, False], ids=["after a hello", "at once"])
@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1\r\nHost: broker\r\n\r\n",
        struct.pack(">I", 2 << 30),
        struct.pack(">I", 2) + b"\xc1\xc1",
        struct.pack(">I", 1) + b"\x01",
        struct.pack(">I", 3) + b"\x92\x01\xa1",
        b"".join(encode_frame(["one", "topics", []])),
        b"".join(encode_frame([1, 2, 3])),
        b"".join(encode_frame([1, "hello"])),
    ],
    ids=["HTTP", "2 GB", "no msgpack", "number", "half a message", "named by text", "no name", "no arguments"],
)
def test_garbage_gets_an_error_and_a_closed_connection(broker: RunningBroker, data: bytes, greeted: bool) -> None:
    raw = Raw(broker.location, greet=greeted)
    raw.send(data)
    number, good, name, _, _ = raw.answer()
    assert (number, good, name) in {(0, False, "MalformedFrame"), (1, False, "MalformedFrame")}
    assert raw.answer() is None
    raw.close()


@settings(max_examples=30, deadline=None)
@given(st.binary(min_size=1, max_size=200), st.booleans())
def test_random_bytes_do_no_harm(broker: RunningBroker, data: bytes, greeted: bool) -> None:
    raw = Raw(broker.location, greet=greeted)
    raw.send(data)
    raw.close()


@pytest.mark.parametrize(
    ("name", "arguments", "says"),
    [
        ("fly", [], "fly"),
        ("queue_count", [], "takes 1"),
        ("queue_count", [1], "not a text"),
        ("queue_count", ["x" * 2_000], "not a text"),
        ("create_topic", ["t", "many"], "not a whole number"),
        ("pull", ["t", {"a": 0}, 1, 0], "numbers"),
        ("pull", ["t", [0], 1, 0], "numbers"),
        ("pull", ["t", {0: 0}, 1, float("nan")], "seconds"),
        ("pull", ["t", {0: 0}, 1, float("inf")], "seconds"),
        ("acquire", ["g", "t", 0, "o", -1, 0], "seconds"),
        ("commit", ["g", "t", {0: [1]}], "commit"),
        ("commit", ["g", "t", {0: [1, 1, [[0, "text"]], 1]}], "byte string"),
        ("send", ["t", [[0, 1, "text"]], None, bytes(16), 1], "body"),
        ("send", ["t", [[0, 0, b"x"]], None, bytes(16), 1], "0 messages"),
        ("send", ["t", [], None, b"short", 1], "16 bytes"),
        ("send", ["t", [], None, bytes(16), -1], "from 0"),
        ("receive", ["address", 1 << 63, 0], "from 0"),
        ("create_topic", ["t", 1 << 40], "too many"),
        ("add_queues", ["t", 1 << 40, True], "too many"),
        ("reply", [[["a", 1]]], "byte string"),
        ("show", ["t", 0, 1, None, False], "true"),
    ],
)
def test_wrong_arguments_are_refused(broker: RunningBroker, name: str, arguments: list[Any], says: str) -> None:
    raw = Raw(broker.location)
    number, good, error, text, _ = raw.ask(7, name, arguments)
    assert (number, good, error) == (7, False, "BadRequest")
    assert says in text
    assert raw.ask(8, "topics", [])[:2] == [8, True]
    raw.close()


JUNK = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-5, 5)
    | st.just(1 << 63)
    | st.text(max_size=3)
    | st.binary(max_size=3)
    | st.floats(),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.integers(-1, 3) | st.text(max_size=2), inner, max_size=2)
    ),
    max_leaves=6,
)


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(
        [
            *("send", "pull", "join", "leave", "bury", "acquire", "renew", "release"),
            *("commit", "set_offset", "show", "receive", "reply"),
        ]
    ),
    st.lists(JUNK, max_size=6),
)
def test_any_arguments_get_an_answer(broker: RunningBroker, name: str, arguments: list[Any]) -> None:
    raw = Raw(broker.location)
    answer = raw.ask(1, name, arguments)
    assert answer[0] == 1
    assert answer[1] or "log says why" not in answer[3]
    raw.close()


def test_body_that_was_damaged_on_its_way_is_not_stored(
    broker: RunningBroker, transport: BrokerTransport, topic: str
) -> None:
    body = encode_records([b"one", b"two"])
    damaged = body[:-1] + bytes([body[-1] ^ 1])
    raw = Raw(broker.location)
    for count, wrong in ((2, damaged), (3, body)):
        answer = raw.ask(1, "send", [topic, [[0, count, wrong]], None, bytes(16), count])
        assert answer[1:3] == [False, "MalformedRecords"]
    assert transport.end_offsets(topic) == {0: 0, 1: 0}
    raw.close()


def test_topics_are_not_made_by_sending(transport: BrokerTransport) -> None:
    with pytest.raises(UnknownTopic, match="'nowhere'"):
        transport.send("nowhere", {0: [b"x"]})
    assert "nowhere" not in transport.topics()


def test_offsets_outside_the_queue_give_what_is_there(transport: BrokerTransport, topic: str) -> None:
    transport.send(topic, {0: [b"a", b"b"]})
    (batch,) = transport.pull(topic, {0: -5}, limit=10, wait=0)
    assert (list(batch.offsets), list(batch.bodies)) == ([0, 1], [b"a", b"b"])
    assert list(transport.pull(topic, {0: 1 << 60}, limit=10, wait=0)) == []
    assert list(transport.pull(topic, {0: 2}, limit=10, wait=0)) == []


def test_send_larger_than_a_frame_names_its_size_and_the_limit(transport: BrokerTransport, topic: str) -> None:
    with pytest.raises(QueueError, match=rf"70\d\d\d\d\d\d bytes .* limit of {MAX_SEND}"):
        transport.send(topic, {0: [b"x" * 70_000_000]})


def test_message_almost_as_large_as_a_frame_passes(transport: BrokerTransport, topic: str) -> None:
    body = os.urandom(1 << 20) * 40
    assert transport.send(topic, {0: [b"before", body, b"behind"]}) == {0: 0}
    pulled: list[bytes] = []
    while len(pulled) < 3:
        (batch,) = transport.pull(topic, {0: len(pulled)}, limit=2, wait=0)
        pulled += batch.bodies
    assert pulled == [b"before", body, b"behind"]


def test_a_thousand_idle_connections_are_served(broker: RunningBroker, transport: BrokerTransport, topic: str) -> None:
    idle = [Raw(broker.location) for _ in range(1_000)]
    assert transport.send(topic, {0: [b"x"]}) == {0: 0}
    assert idle[0].ask(2, "end_offsets", [topic])[2] == idle[-1].ask(2, "end_offsets", [topic])[2] == {0: 1, 1: 0}
    for raw in idle:
        raw.close()


def test_requests_of_one_connection_are_answered_though_nobody_reads_meanwhile(
    broker: RunningBroker, transport: BrokerTransport, topic: str
) -> None:
    transport.send(topic, {0: [os.urandom(500_000)]})
    raw = Raw(broker.location)
    asked = 400
    with ThreadPoolExecutor(1) as pool:  # the broker stops reading when its answers are not read
        request = b"".join(encode_frame([5, "pull", [topic, {0: 0}, 1, 0]]))
        sending = pool.submit(raw.send, request * asked)
        assert transport.end_offsets(topic) == {0: 1, 1: 0}
        decoder, answers = FrameDecoder(), 0
        while answers < asked:
            answers += len(decoder.received(raw._socket.recv_into(decoder.room())))
        sending.result(DEADLINE)
    raw.close()


def test_silence_before_a_hello_or_within_a_frame_ends_the_connection(tmp_path: Path) -> None:
    with RunningBroker(tmp_path / "data", handshake_timeout=10.0, frame_timeout=1.0, checkpoint_interval=0.1) as broker:
        silent, half, idle = Raw(broker.location, greet=False), Raw(broker.location), Raw(broker.location)
        half.send(struct.pack(">I", 100) + b"half")
        for raw, says in ((silent, "no hello"), (half, "half a frame")):
            _, good, error, text, _ = raw.answer()
            assert (good, error) == (False, "MalformedFrame")
            assert says in text
            assert raw.answer() is None
        assert idle.ask(2, "topics", [])[:2] == [2, True]


def test_flood_is_held_back_and_what_is_refused_is_not_stored(tmp_path: Path) -> None:
    with RunningBroker(tmp_path / "data", flush_interval=3_600.0, max_unflushed=100_000) as broker:
        transport = broker.transport()
        transport.create_topic("t", 1)
        raw = Raw(broker.location)
        body = encode_records([os.urandom(60_000)])
        for sequence in range(20):
            raw.send(b"".join(encode_frame([sequence, "send", ["t", [[0, 1, body]], None, bytes(16), sequence]])))
        answers = [raw.answer() for _ in range(20)]
        assert {name for _, good, name, *_ in answers if not good} <= {"QueueFull"}
        assert transport.end_offsets("t") == {0: sum(good for _, good, *_ in answers)}
        raw.close()
        transport.close()


def test_what_a_flood_was_refused_can_be_sent_again(tmp_path: Path) -> None:
    with RunningBroker(tmp_path / "data", flush_interval=3_600.0, max_unflushed=1) as broker:
        transport = broker.transport()
        transport.create_topic("t", 1)
        raw = Raw(broker.location)

        def request(sequence: int) -> list[Any]:
            body = encode_records([b"%d" % sequence])
            return [sequence, "send", ["t", [[0, 1, body]], None, bytes(16), sequence]]

        raw.send(b"".join(part for sequence in range(1, 21) for part in encode_frame(request(sequence))))
        answers = [raw.answer() for _ in range(20)]
        refused = [sequence for sequence, good, *_ in answers if not good]
        assert {name for _, good, name, *_ in answers if not good} == {"QueueFull"}
        for sequence in refused:
            assert raw.ask(*request(sequence))[1] is True
        assert transport.end_offsets("t") == {0: 20}
        raw.close()
        transport.close()


@pytest.mark.parametrize("location", ["redis://localhost", "tcp://", "tcp://host/path", "tcp://host:port", "host:1"])
def test_location_that_is_none_is_refused(location: str) -> None:
    with pytest.raises(ConfigurationError, match="like 'tcp://"):
        BrokerTransport(location)


def test_huge_messages_of_several_queues_come_one_after_the_other(transport: BrokerTransport, topic: str) -> None:
    """Together they would exceed the size of a frame."""
    transport.send(topic, {0: [b"small"]})
    body = bytes(35 << 20)
    for queue in (0, 1):
        transport.send(topic, {queue: [body]})
    offsets = {0: 0, 1: 0}
    sizes: dict[int, list[int]] = {0: [], 1: []}
    while offsets != {0: 2, 1: 1}:
        for batch in transport.pull(topic, offsets, limit=10, wait=0):
            sizes[batch.queue] += map(len, batch.bodies)
            offsets[batch.queue] = batch.offsets[-1] + 1
    assert sizes == {0: [5, len(body)], 1: [len(body)]}


def test_requests_that_come_together_are_answered_in_their_order_up_to_the_one_that_is_none(
    broker: RunningBroker, topic: str
) -> None:
    """Small and large answers are due, more than may be under way at once. Then the connection is closed."""
    record = encode_records([b"x" * 40_000])
    raw = Raw(broker.location)
    frames, expected = bytearray(), []
    for number in range(2, 202):
        send = ["send", [topic, [[0, 1, record]], None, bytes(16), number]]
        pull = ["pull", [topic, {0: number // 2 - 1}, 1, 0]]
        frames += b"".join(encode_frame([number, *(pull if number % 2 else send)]))
        expected.append(number)
    raw.send(bytes(frames + b"".join(encode_frame(["none", "topics", []]))))
    answers = [raw.answer() for _ in expected]
    assert [(number, is_good) for number, is_good, _ in answers] == [(number, True) for number in expected]
    assert [answer[2] for answer in answers[::2]] == [{0: offset} for offset in range(100)]
    assert [answer[2][0][1][0][1] for answer in answers[1::2]] == [record] * 100
    assert raw.answer()[1] is False
    assert raw.answer() is None
    raw.close()
