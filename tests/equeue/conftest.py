from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from enode_django.equeue.transports.broker import BrokerTransport
from enode_django.equeue.transports.memory import MemoryTransport
from tests.equeue.brokers import RunningBroker


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBroker]:
    """One for the tests of a module that leave it as it was."""
    with RunningBroker(tmp_path_factory.mktemp("broker") / "data") as broker:
        yield broker
        assert broker.stop() == 0


@pytest.fixture
def transport(broker: RunningBroker) -> Iterator[BrokerTransport]:
    transport = broker.transport()
    yield transport
    transport.close()


@pytest.fixture
def own_broker(tmp_path: Path) -> Iterator[RunningBroker]:
    """One that the test may kill."""
    with RunningBroker(tmp_path / "data") as broker:
        yield broker


@pytest.fixture
def memory() -> MemoryTransport:
    """With the topic "orders" of two queues."""
    transport = MemoryTransport()
    transport.create_topic("orders", 2)
    return transport
