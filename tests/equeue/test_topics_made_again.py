"""Clustering consumers that did not notice that their topic was deleted and made again with fewer queues."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from typing import Any, cast

import pytest

from enode_django.equeue.consumer.queue_consumer import NOTHING_TO_PULL, QueueConsumer
from enode_django.equeue.consumer.topic_consumer import Beginner, Starts
from enode_django.equeue.messages import GroupState, Start
from enode_django.equeue.transport import DeletesTopics, Transport
from enode_django.equeue.transports.broker import BrokerTransport
from enode_django.equeue.transports.memory import MemoryTransport
from enode_django.equeue.transports.redis_streams import RedisStreamsTransport
from tests.equeue.consuming import RefusesPulls, WidensBeforeItIsAsked, eventually, texts


@pytest.fixture
def elsewhere(orders: Transport, request: pytest.FixtureRequest) -> Iterator[Transport]:
    """Return the transport of another process."""
    if isinstance(orders, MemoryTransport):
        yield orders
        return
    if isinstance(orders, BrokerTransport):
        other: BrokerTransport | RedisStreamsTransport = request.getfixturevalue("own_broker").transport()
    else:
        other = RedisStreamsTransport(
            request.getfixturevalue("redis_url"), prefix=request.getfixturevalue("prefix"), timeout=60
        )
    with closing(other):
        yield other


def make_again(transport: Transport, queues: int) -> None:
    assert isinstance(transport, DeletesTopics)
    transport.delete_topic("orders", force=True)
    transport.create_topic("orders", queues)


class Clustering:
    """The queues of one consumer, driven step by step."""

    def __init__(self, transport: Transport) -> None:
        self.queues = QueueConsumer(transport, group="billing", topic="orders", owner="one", lease=60.0)
        self.queues.join()

    def handle(self) -> list[str]:
        self.queues.acquire_missing()
        handled = []
        for window, offsets, bodies in self.queues.pull(10, 0.0):
            for offset, body in zip(offsets, bodies, strict=True):
                handled.append(bytes(body).decode())
                window.finish(offset)
        return handled

    def beat(self) -> None:
        self.queues.renew()
        self.queues.commit()
        self.queues.join()
        self.queues.acquire_missing()
        self.queues.release_drained()

    def drain(self) -> None:
        self.queues.join()
        self.queues.acquire_missing()
        self.queues.release_drained()

    def acquire(self) -> None:
        for window in self.queues.open_windows:
            window.close()
        self.queues.assign({0, 1})  # as before: the next try is due at once
        self.queues.acquire_missing()

    def look_up_receipts(self) -> None:
        assert [list(self.queues.receipts(window)) for window in self.queues.open_windows] == [[], []]


NOTICING: dict[str, Callable[[Clustering], object]] = {
    "pulling": Clustering.handle,
    "renewing": lambda consumer: consumer.queues.renew(),
    "committing": lambda consumer: consumer.queues.commit(),
    "releasing": Clustering.drain,
    "acquiring": Clustering.acquire,
    "looking up receipts": Clustering.look_up_receipts,
}


@pytest.mark.parametrize("noticed", NOTICING)
def test_the_queues_that_are_left_are_consumed(orders: Transport, elsewhere: Transport, noticed: str) -> None:
    consumer = Clustering(orders)
    consumer.handle()
    if noticed != "releasing":
        orders.send("orders", {0: texts("a"), 1: texts("b")})
        eventually(lambda handled=[]: handled.extend(consumer.handle()) or sorted(handled) == ["a", "b"])  # type: ignore[misc]
    make_again(elsewhere, 1)
    elsewhere.send("orders", {0: texts("c")})
    NOTICING[noticed](consumer)
    consumer.beat()
    consumer.beat()
    eventually(lambda: "c" in consumer.handle())
    consumer.beat()
    assert consumer.queues.owned == {0}
    assert orders.committed("billing", "orders")[0] == orders.end_offsets("orders")[0]
    orders.add_queues("orders", 2, unordered=True)
    orders.send("orders", {1: texts("d")})
    consumer.beat()
    eventually(lambda: "d" in consumer.handle())
    consumer.queues.leave()
    consumer.queues.abandon()


@pytest.mark.parametrize("noticed", NOTICING)
def test_queues_that_come_back_meanwhile_are_consumed(orders: Transport, elsewhere: Transport, noticed: str) -> None:
    consumer = Clustering(cast(Transport, WidensBeforeItIsAsked(orders)))
    consumer.handle()
    if noticed != "releasing":
        orders.send("orders", {0: texts("a"), 1: texts("b")})
        eventually(lambda handled=[]: handled.extend(consumer.handle()) or sorted(handled) == ["a", "b"])  # type: ignore[misc]
    make_again(elsewhere, 1)
    NOTICING[noticed](consumer)
    orders.add_queues("orders", 2, unordered=True)  # renewing may notice without an error
    consumer.beat()
    orders.send("orders", {0: texts("c"), 1: texts("d")})
    handled: list[str] = []
    eventually(lambda: handled.extend(consumer.handle()) or sorted(handled) == ["c", "d"])
    consumer.beat()
    assert orders.committed("billing", "orders") == orders.end_offsets("orders")


def test_pulls_that_are_refused_though_the_queue_is_there_follow_each_other_with_pauses(orders: Transport) -> None:
    queues = Clustering(cast(Transport, RefusesPulls(orders))).queues
    queues.acquire_missing()
    assert queues.pull(10, 1.0) == []  # the assignment has woken it
    began = time.monotonic()
    assert queues.pull(10, 1.0) == []
    assert time.monotonic() - began >= NOTHING_TO_PULL
    queues.leave()
    queues.abandon()


def test_a_consumer_that_stops_gives_back_what_is_left(orders: Transport, elsewhere: Transport) -> None:
    consumer = Clustering(orders)
    consumer.handle()
    make_again(elsewhere, 1)
    consumer.queues.leave()
    consumer.queues.abandon()
    assert consumer.queues.is_idle


class MadeAgainMeanwhile:
    """A transport whose topic is made again with one queue just before its groups are asked for."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def groups(self, topic: str) -> Mapping[str, GroupState]:
        make_again(self._transport, 1)
        return self._transport.groups(topic)


def test_a_new_group_begins_in_the_queues_that_are_left(orders: Transport) -> None:
    meanwhile = cast(Transport, MadeAgainMeanwhile(orders))
    Starts(meanwhile, "orders", Start.LAST, Beginner("billing", "one", 60.0)).ask()
    assert orders.groups("orders")["billing"].claims.keys() == {0}
