"""The part of the transport contract about the retention of a topic, for transports with one (see `RetainsByTopic`)."""

from __future__ import annotations

import pytest

from enode_django.equeue.messages import Commit
from enode_django.equeue.transport import RetainsByTopic, Transport
from enode_django.exceptions import QueueError, UnknownTopic
from enode_django.testing.transport_deletion_contract import delete
from enode_django.testing.transport_lease_contract import QUEUES, fill


def with_retention(transport: Transport) -> RetainsByTopic:
    if not isinstance(transport, RetainsByTopic):
        pytest.skip("all topics are kept equally long: see RetainsByTopic")
    return transport


class TransportRetentionContract:
    def test_retention_is_set_for_a_topic_and_ends_with_it(
        self, transport: Transport, another: Transport, topic: str
    ) -> None:
        one, other = with_retention(transport), with_retention(another)
        assert one.retention(topic) is None
        one.set_retention(topic, 3_600.0)
        assert other.retention(topic) == 3_600.0
        other.set_retention(topic, 0)
        assert one.retention(topic) == 0
        other.set_retention(topic, None)
        assert one.retention(topic) is None
        one.set_retention(topic, 5.0)
        delete(transport, topic)
        transport.create_topic(topic, QUEUES)
        assert one.retention(topic) is None

    @pytest.mark.parametrize("max_age", [-1.0, float("inf"), float("nan")])
    def test_retention_that_cannot_be_is_refused(self, transport: Transport, topic: str, max_age: float) -> None:
        with pytest.raises(QueueError, match="seconds"):
            with_retention(transport).set_retention(topic, max_age)
        assert with_retention(transport).retention(topic) is None

    def test_retention_of_a_topic_that_never_was_is_not_set(self, transport: Transport) -> None:
        with pytest.raises(UnknownTopic):
            with_retention(transport).set_retention("nowhere", 5.0)
        with pytest.raises(UnknownTopic):
            with_retention(transport).retention("nowhere")

    def test_what_is_consumed_is_kept_for_the_retention_of_its_topic(self, transport: Transport, topic: str) -> None:
        with_retention(transport).set_retention(topic, 3_600.0)
        fill(transport, topic, 0, 3_000)
        lease = transport.acquire("group", topic, 0, "one", 60)
        transport.commit("group", topic, {0: Commit(lease.epoch, 3_000)})
        transport.trim(topic)
        assert transport.queues(topic)[0].first == 0
