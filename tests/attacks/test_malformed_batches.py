"""Batches that no consumer can decode. Earlier versions stopped at them."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from enode_django.equeue.administration import peek
from enode_django.equeue.broker.batches import NewBatch, Stamp, lay_out
from enode_django.equeue.consumer.queue_consumer import QueueConsumer
from enode_django.equeue.dead_letters import dead_letters
from enode_django.equeue.records import MOST_RECORDS, encode_records, seal
from enode_django.equeue.retrying import Failed, Message
from enode_django.equeue.subscribing import Mode
from enode_django.equeue.transports.broker import BrokerTransport
from enode_django.exceptions import MalformedRecords
from tests.equeue.brokers import RunningBroker
from tests.equeue.consuming import Handled, consuming, eventually

SOUND = b"\x91\xc4\x01x"
"""The content of a body with one record."""
MALFORMED = {
    "a number": b"\x91\x01",
    "a text": b"\x91\xa2ab",
    "nothing": b"\x91\xc0",
    "an array": b"\x91\x90",
    "less than it says": b"\x91\xc4\x09x",
    "more than it says": b"\x91\xc4\x01xyz",
    "an extension": b"\x91\xd4\x01x",
    "one sound record of two": b"\x92\xc4\x01x\x01",
}


@pytest.mark.parametrize("content", MALFORMED.values(), ids=MALFORMED)
def test_the_broker_stores_none_that_holds_anything_but_records(content: bytes) -> None:
    count = content[0] & 0x0F
    with pytest.raises(MalformedRecords, match="queue 3 cannot be stored"):
        lay_out("topic", [NewBatch(3, count, seal(content))], lambda queue: 0, Stamp(0, 0, 0))


def test_the_broker_stores_none_with_more_records_than_consumers_should_decode_at_once() -> None:
    body = encode_records([b""] * (MOST_RECORDS + 1))
    with pytest.raises(MalformedRecords, match=f"<= {MOST_RECORDS}"):
        lay_out("topic", [NewBatch(0, MOST_RECORDS + 1, body)], lambda queue: 0, Stamp(0, 0, 0))


@pytest.fixture
def spoilt(tmp_path: Path) -> Iterator[BrokerTransport]:
    """Yield the transport of a broker with malformed batches in the topic "orders", as an earlier version stored them.
    Queue 0 has five messages: the third and the fourth are one malformed batch. Queue 1 has a malformed one only."""
    with RunningBroker(tmp_path / "data") as broker:
        with closing(broker.transport()) as transport:
            transport.create_topic("orders", 2)
            for records in ([b"one", b"two"], [b"xxxx", b"yyyy"], [b"five"]):
                transport.send("orders", {0: records})
            transport.send("orders", {1: [b"x"]})
        assert broker.stop() == 0
        spoil(tmp_path / "data", encode_records([b"xxxx", b"yyyy"]), b"\x92\x01\xc4\x09yyyyyyyyy")
        spoil(tmp_path / "data", seal(SOUND), MALFORMED["a text"])
        broker.start()
        with closing(broker.transport()) as transport:
            yield transport


def spoil(directory: Path, body: bytes, content: bytes) -> None:
    """Replace a stored body by another content of the same size, with its correct CRC."""
    (path,) = (directory / "messages").glob("*.chunk")
    stored = path.read_bytes()
    sealed = zlib.crc32(content).to_bytes(4, "little") + content
    assert len(sealed) == len(body)
    assert stored.count(body) == 1
    path.write_bytes(stored.replace(body, sealed))


def test_one_that_an_earlier_broker_has_stored_is_a_message_that_everybody_gets_past(
    spoilt: BrokerTransport, caplog: pytest.LogCaptureFixture
) -> None:
    whole = seal(b"\x92\x01\xc4\x09yyyyyyyyy")
    messages = [(0, b"one"), (1, b"two"), (3, whole), (4, b"five")]
    for offset in range(5):
        (batch,) = spoilt.pull("orders", {0: offset}, limit=10, wait=0)
        left = [message for message in messages if message[0] >= offset]
        assert list(zip(batch.offsets, batch.bodies, strict=True)) == left
    assert "orders/0, offsets 2 to 3, given as one message" in caplog.text
    assert [(one.offset, one.body) for one in peek(spoilt, "orders", 0)] == messages
    assert [one.body for one in peek(spoilt, "orders", 1)] == [seal(MALFORMED["a text"])]


def test_a_consumer_commits_past_one(spoilt: BrokerTransport) -> None:
    consumer = QueueConsumer(spoilt, group="group", topic="orders", owner="a", lease=60.0)
    consumer.assign([0, 1])
    consumer.acquire_missing()
    ends = {0: 5, 1: 1}
    while spoilt.committed("group", "orders") != ends:
        for window, offsets, _ in consumer.pull(10, 1.0):
            window.finish_many(offsets)
        consumer.commit()
    consumer.abandon()


@pytest.mark.parametrize("mode", Mode)
def test_one_is_a_dead_letter_of_the_group_and_no_handler_gets_it(
    spoilt: BrokerTransport, tmp_path: Path, mode: Mode
) -> None:
    handled = Handled()
    with consuming(spoilt, handled, mode=mode, directory=tmp_path / "offsets"):
        eventually(lambda: len(handled.messages) == 3)
        eventually(lambda: len([*letters(spoilt)]) == 2)
    assert handled.bodies == ["one", "two", "five"]
    whole = seal(b"\x92\x01\xc4\x09yyyyyyyyy")
    at_queue_0, at_queue_1 = sorted(letters(spoilt), key=lambda one: one.message.queue)
    assert at_queue_0.message == Message("orders", 0, 3, whole)
    assert at_queue_1.message == Message("orders", 1, 0, seal(MALFORMED["a text"]))
    assert at_queue_0.error.startswith(f"a malformed batch: a body of {len(whole)} bytes is not msgpack array")
    assert "retry.billing" not in spoilt.topics()


def letters(transport: BrokerTransport) -> Iterator[Failed]:
    if "dead.billing" in transport.topics():
        for letter in dead_letters(transport, "billing"):
            assert letter.failed is not None
            yield letter.failed
