"""The machine of a Redis crashes, and the commands of a process manager are lost with its last second."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import TypeVar

import pytest

from enode_django.bus.command_bus import QueueCommandBus
from enode_django.concurrency.backoff import within
from enode_django.equeue.transports.redis_streams import RedisStreamsTransport
from enode_django.eventing.effects import EffectProcessor
from enode_django.eventing.registry import subscribers
from enode_django.eventing.resender import Resender
from enode_django.eventing.retry_decisions import RetryPolicy
from enode_django.eventing.runner import Runner
from enode_django.eventing.sweep import SweepingSubscription
from enode_django.runtime import make_producer
from enode_django.serialization.codec import decode_command
from sample_project.embedded import Redis
from tests.following.domain import Kindness, Opened
from tests.following.harness import Harness
from tests.redis_logs import crash, written_log

DEADLINE = 60.0
Value = TypeVar("Value")


@pytest.fixture
def transport(private_redis: Redis) -> Iterator[RedisStreamsTransport]:
    transport = RedisStreamsTransport(private_redis.url, timeout=DEADLINE)
    transport.create_topic("events", 1)
    transport.create_topic("commands", 1)
    yield transport
    transport.close()


def ids(transport: RedisStreamsTransport) -> list[str]:
    """Return the ids of the commands in the queue."""
    pulled = transport.pull("commands", {0: 0}, limit=100, wait=0)
    return [decode_command(body).id for batch in pulled for body in batch.bodies]


def until(condition: Callable[[], bool], step: Callable[[], None]) -> None:
    deadline = time.monotonic() + DEADLINE
    while not condition():
        assert time.monotonic() < deadline
        step()


def test_commands_that_a_crash_of_redis_has_lost_are_sent_again(
    harness: Harness, private_redis: Redis, transport: RedisStreamsTransport
) -> None:
    bus = QueueCommandBus(transport, make_producer(transport), "commands")
    processor = EffectProcessor(subscribers.instance(Kindness), harness.store, bus.forward)
    resender = Resender(
        processor, harness.store, transport, topic="commands", group="g", interval=1.0, clock=harness.clock
    )
    subscription = SweepingSubscription(
        Runner(processor, within(DEADLINE)),
        policy=RetryPolicy(1, 1.0),
        notify=harness.notices.extend,
        transport=transport,
        topic="events",
        interval=1.0,
        clock=harness.clock,
        new_resender=lambda shard: resender,
    )
    subscription.begin()
    resender.tick()
    log = written_log(private_redis)

    def step() -> None:
        harness.clock.now += 1.0
        subscription.tick(frozenset({0}))

    harness.stored("c", Opened(owner="ann"))
    resender.next_step = harness.clock.now + 1e6  # it does not look before the commands are lost
    until(lambda: len(ids(transport)) == 2, step)
    sent = ids(transport)

    crash(private_redis, log)
    assert within(DEADLINE)(partial(ids, transport)) == []
    resender.next_step = harness.clock.now
    until(lambda: len(ids(transport)) == 2, step)
    assert ids(transport) == sent
    bus.close()
