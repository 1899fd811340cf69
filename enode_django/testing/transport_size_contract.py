"""The part of the transport contract about large sends and receipts."""

from __future__ import annotations

import pytest

from enode_django.equeue.messages import Commit, Receipt
from enode_django.equeue.producer import Producer
from enode_django.equeue.transport import ROOM_AROUND, Transport
from enode_django.exceptions import MessageTooLarge, QueueError
from enode_django.testing.transport_lease_contract import QUEUES, messages

MEGABYTE = 1 << 20
RECEIPTS, RECEIPT = 10_000, bytes(8_192)
STREAMS, STREAM = 500, bytes(140_000)


class TransportSizeContract:
    def test_a_send_above_the_transports_own_limit_is_refused_for_good(self, transport: Transport, topic: str) -> None:
        body = bytes(MEGABYTE)
        with pytest.raises(QueueError, match="at once") as refused:
            transport.send(topic, {0: [b"not stored"], 1: [body] * (transport.max_send // MEGABYTE + 1)})
        assert not refused.value.retriable
        assert set(transport.end_offsets(topic).values()) == {0}

    def test_the_largest_send_is_taken(self, transport: Transport, topic: str) -> None:
        left = transport.max_send % MEGABYTE
        bodies = [bytes(MEGABYTE)] * (transport.max_send // MEGABYTE)
        assert transport.send(topic, {0: bodies, 1: [bytes(left)]}) == {0: 0, 1: 0}
        assert transport.end_offsets(topic)[0] == len(bodies)

    def test_a_producer_divides_what_is_too_much_for_one_send(self, transport: Transport, topic: str) -> None:
        sent = Producer(transport).send_batch(topic, [(f"key {n}", b"%d " % n + STREAM) for n in range(STREAMS)])
        stored = {queue: messages(transport, topic, queue) for queue in range(QUEUES)}
        assert sum(map(len, stored.values())) == STREAMS
        assert all(stored[one.queue][one.offset] == (one.offset, b"%d " % n + STREAM) for n, one in enumerate(sent))
        numbers = [[int(body.split()[0]) for _, body in bodies] for bodies in stored.values()]
        assert numbers == [sorted(some) for some in numbers]

    def test_a_message_that_no_send_takes_is_refused_before_anything_is_sent(
        self, transport: Transport, topic: str
    ) -> None:
        largest = transport.max_send - ROOM_AROUND
        with pytest.raises(MessageTooLarge, match=f"{largest + 1} bytes"):
            Producer(transport).send_batch(topic, [("key", b"not stored"), ("key", bytes(largest + 1))])
        assert set(transport.end_offsets(topic).values()) == {0}
        assert Producer(transport).send(topic, "key", bytes(largest)).offset == 0

    def test_receipts_come_back_however_many_and_large_they_are(self, transport: Transport, topic: str) -> None:
        lease = transport.acquire("group", topic, 0, "owner", 60)
        receipts = [Receipt(number, b"%d " % number + RECEIPT) for number in range(RECEIPTS)]
        transport.send(topic, {0: [b"x"] * RECEIPTS})
        assert transport.commit("group", topic, {0: Commit(lease.epoch, RECEIPTS, receipts, RECEIPTS)}) == set()
        found = transport.receipts("group", topic, 0)
        assert [int(body.split()[0]) for body in found] == list(range(RECEIPTS))
        assert sum(map(len, found)) == sum(len(receipt.body) for receipt in receipts)
        assert transport.committed("group", topic)[0] == RECEIPTS
