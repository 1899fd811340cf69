from __future__ import annotations

import pytest

from enode_django.equeue.transports.memory import MemoryTransport


@pytest.fixture
def memory() -> MemoryTransport:
    """With the topic "orders" of two queues."""
    transport = MemoryTransport()
    transport.create_topic("orders", 2)
    return transport
