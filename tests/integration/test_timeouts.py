"""`execute_command` waits no longer than its timeout, whichever process stands still."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from enode_django.bus.command_bus import QueueCommandBus
from enode_django.equeue.producer import Producer
from enode_django.equeue.transport import Transport
from enode_django.equeue.transports.broker import BrokerTransport
from enode_django.equeue.transports.redis_streams import RedisStreamsTransport
from enode_django.exceptions import CommandTimeout
from sample_project.embedded import Broker, Redis
from tests.races.counting import Add

TRANSPORTS_OWN = 30.0
"""Seconds that the transport would wait for an answer, for each of several calls."""


def assert_given_up_early(server: Broker | Redis, make: Callable[[], Transport], *, used_before: bool) -> None:
    transport = make()
    bus = QueueCommandBus(transport, Producer(transport, queues=1), "commands")
    if used_before:
        bus.send([Add("x")])
    server.pause()
    try:
        began = time.monotonic()
        with pytest.raises(CommandTimeout, match=r"the queue has not confirmed it within 0\.5 s"):
            bus.execute(Add("x"), 0.5)
        assert time.monotonic() - began < TRANSPORTS_OWN
    finally:
        server.resume()
        bus.close()


@pytest.mark.parametrize("used_before", [False, True])
def test_a_broker_that_stands_still(private_broker: Broker, used_before: bool) -> None:
    url = private_broker.url
    assert_given_up_early(private_broker, lambda: BrokerTransport(url, timeout=TRANSPORTS_OWN), used_before=used_before)


@pytest.mark.parametrize("used_before", [False, True])
def test_a_redis_that_stands_still(private_redis: Redis, used_before: bool) -> None:
    url = private_redis.url
    assert_given_up_early(
        private_redis, lambda: RedisStreamsTransport(url, timeout=TRANSPORTS_OWN), used_before=used_before
    )
