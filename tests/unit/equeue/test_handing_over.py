"""A queue that is handed over is not lost: the log has no warning of it."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from enode_django.equeue.consumer.queue_consumer import QueueConsumer
from enode_django.equeue.transports.memory import MemoryTransport


class RenewedMeanwhile(MemoryTransport):
    """Another thread of the consumer renews its leases after a release, before the releasing call returns."""

    consumer: QueueConsumer

    def release(self, group: str, topic: str, owner: str, epochs: Mapping[int, int]) -> None:
        super().release(group, topic, owner, epochs)
        self.consumer.renew()


@pytest.fixture
def transport() -> RenewedMeanwhile:
    transport = RenewedMeanwhile()
    transport.create_topic("commands", 2)
    transport.consumer = QueueConsumer(transport, group="g", topic="commands", owner="old", lease=10.0)
    transport.consumer.assign([0, 1])
    transport.consumer.acquire_missing()
    return transport


def test_queue_whose_lease_is_renewed_while_it_is_released_is_not_lost(
    transport: RenewedMeanwhile, caplog: pytest.LogCaptureFixture
) -> None:
    old = transport.consumer
    old.assign([0])
    old.acquire_missing()
    old.release_drained()
    assert old.owned == {0}
    assert [window.queue for window in old.open_windows] == [0]
    assert "lost" not in caplog.text


def test_queue_that_another_worker_has_taken_over_is_lost_with_its_group(
    transport: RenewedMeanwhile, caplog: pytest.LogCaptureFixture
) -> None:
    transport.bury("g", "commands", "old")
    transport.acquire("g", "commands", 0, "new", 10.0)
    transport.consumer.renew()
    assert "lost commands/0 for g: its lease has ended" in caplog.text


def test_queue_whose_lease_has_ended_by_itself_is_not_said_to_be_taken_over(
    transport: RenewedMeanwhile, caplog: pytest.LogCaptureFixture
) -> None:
    epochs = {window.queue: window.epoch for window in transport.consumer.open_windows}
    transport.release("g", "commands", "old", epochs)  # the message queue knows the leases no more, as after a restart
    assert "lost commands/0 for g: its lease has ended, by a restart of the message queue" in caplog.text
    assert "another worker has taken" not in caplog.text
