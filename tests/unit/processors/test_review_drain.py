from __future__ import annotations

from collections.abc import Mapping

from enode_django.conf import Conf
from enode_django.equeue.transports.memory import MemoryTransport
from enode_django.eventstore.memory import MemoryEventStore
from enode_django.exceptions import TransportUnavailable
from enode_django.processors.pipeline import Pipeline
from enode_django.processors.statistics import Statistics


class CannotRelease(MemoryTransport):
    def release(self, group: str, topic: str, owner: str, epochs: Mapping[int, int]) -> None:
        raise TransportUnavailable("gone")


def test_worker_that_cannot_give_its_queues_back_says_that_it_has_not_drained() -> None:
    transport = CannotRelease()
    conf = Conf(COMMAND_MAILBOXES=1)
    transport.create_topic(conf.COMMAND_TOPIC, 1)
    pipeline = Pipeline(conf, transport, MemoryEventStore(), owner="w", notes=[[0]], statistics=Statistics())
    pipeline.start()
    assert pipeline.drain(1.0) is False
