"""The version of the route that a consumer learns from its pulls, without a call of its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest

from enode_django.equeue.consumer.queue_consumer import QueueConsumer
from enode_django.equeue.messages import PulledBatch, Route
from enode_django.equeue.transport import LONG_POLL
from enode_django.equeue.transports.memory import MemoryTransport

TOPIC = "commands"


class CountsCalls(MemoryTransport):
    """Counts how often the route is asked for. ``tells``: the queues whose batches tell it."""

    asked = 0
    tells: Sequence[int] = (0, 1)

    def route(self, topic: str) -> Route:
        self.asked += 1
        return super().route(topic)

    def pull(
        self, topic: str, offsets: Mapping[int, int], *, limit: int, wait: float = LONG_POLL
    ) -> Sequence[PulledBatch]:
        pulled = super().pull(topic, offsets, limit=limit, wait=wait)
        return [batch if batch.queue in self.tells else batch._replace(route=None) for batch in pulled]


@pytest.fixture
def transport() -> CountsCalls:
    transport = CountsCalls()
    transport.create_topic(TOPIC, 2)
    return transport


@pytest.fixture
def consumer(transport: CountsCalls) -> QueueConsumer:
    consumer = QueueConsumer(transport, group="g", topic=TOPIC, owner="one", lease=60.0)
    consumer.assign(range(2))
    consumer.acquire_missing()
    return consumer


def test_a_pull_that_tells_it_saves_the_call(transport: CountsCalls, consumer: QueueConsumer) -> None:
    transport.send(TOPIC, {0: [b"a"], 1: [b"b"]})
    assert len(consumer.pull(10, 0.0)) == 2
    assert (consumer.route_version(), transport.asked) == (1, 0)
    transport.add_queues(TOPIC, 3, unordered=True)
    transport.send(TOPIC, {0: [b"c"]})
    assert len(consumer.pull(10, 0.0)) == 1
    assert (consumer.route_version(), transport.asked) == (2, 0)


@pytest.mark.parametrize("tells", [(), (0,), (1,)], ids=["none", "the first", "the second"])
def test_a_batch_that_does_not_tell_it_makes_the_consumer_ask(
    transport: CountsCalls, consumer: QueueConsumer, tells: Sequence[int]
) -> None:
    transport.tells = tells
    transport.send(TOPIC, {0: [b"a"], 1: [b"b"]})
    assert len(consumer.pull(10, 0.0)) == 2
    transport.add_queues(TOPIC, 3, unordered=True)
    assert (consumer.route_version(), transport.asked) == (2, 1)


def test_before_the_first_pull_and_after_an_empty_one_it_asks(transport: CountsCalls, consumer: QueueConsumer) -> None:
    assert (consumer.route_version(), transport.asked) == (1, 1)
    assert consumer.pull(10, 0.0) == []
    assert (consumer.route_version(), transport.asked) == (1, 2)
