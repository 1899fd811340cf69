"""The part of the transport contract about pausing groups, for transports that support it (see `PausesGroups`)."""

from __future__ import annotations

import pytest

from enode_django.equeue.messages import Commit
from enode_django.equeue.transport import PausesGroups, Transport
from enode_django.exceptions import QueueError, UnknownTopic
from enode_django.testing.transport_deletion_contract import delete
from enode_django.testing.transport_lease_contract import QUEUES

ALL = frozenset(range(QUEUES))
NONE = frozenset[int]()


def pause(transport: Transport, topic: str, *, paused: bool = True, group: str = "group") -> None:
    if not isinstance(transport, PausesGroups):
        pytest.skip("it pauses no groups: see PausesGroups")
    transport.pause_group(group, topic, paused=paused)


def paused_groups(transport: Transport, topic: str) -> list[str]:
    assert isinstance(transport, PausesGroups)
    return list(transport.paused_groups(topic))


class TransportPauseContract:
    def test_members_of_a_paused_group_own_nothing_until_it_is_resumed(
        self, transport: Transport, another: Transport, topic: str
    ) -> None:
        before = transport.join("group", topic, "one", 60)
        transport.join("other group", topic, "three", 60)
        pause(another, topic)
        pause(another, topic)
        assert paused_groups(transport, topic) == ["group"]
        paused = transport.join("group", topic, "one", 60)
        assert (paused.queues, paused.members) == (NONE, ("one",))
        assert paused.generation > before.generation
        assert transport.join("group", topic, "two", 60).queues == NONE
        assert another.join("group", topic, "one", 60).queues == NONE
        assert transport.join("other group", topic, "three", 60).queues == ALL
        transport.leave("group", topic, "two")
        pause(transport, topic, paused=False)
        assert paused_groups(another, topic) == []
        assert another.join("group", topic, "one", 60).queues == ALL

    def test_paused_group_commits_and_holds_back_what_it_has_not_committed(
        self, transport: Transport, topic: str
    ) -> None:
        transport.send(topic, {0: [b"a", b"b"]})
        lease = transport.acquire("group", topic, 0, "one", 60)
        pause(transport, topic)
        assert transport.renew("group", topic, "one", {0: lease.epoch}, 60) == set()
        assert transport.commit("group", topic, {0: Commit(lease.epoch, 1)}) == set()
        transport.release("group", topic, "one", {0: lease.epoch})
        transport.trim(topic)
        assert transport.queues(topic)[0].first <= 1
        assert transport.groups(topic)["group"].counts

    def test_group_or_topic_that_never_was_is_not_paused(self, transport: Transport, topic: str) -> None:
        with pytest.raises(QueueError, match="no group 'group'"):
            pause(transport, topic)
        with pytest.raises(UnknownTopic):
            pause(transport, "nowhere")
        with pytest.raises(UnknownTopic):
            paused_groups(transport, "nowhere")
        assert paused_groups(transport, topic) == []
        assert transport.groups(topic) == {}

    def test_pause_ends_with_its_group_or_its_topic(self, transport: Transport, topic: str) -> None:
        for deletes_topic in (False, True):
            transport.join("group", topic, "one", 60)
            pause(transport, topic)
            if deletes_topic:
                delete(transport, topic, force=True)
            else:
                transport.delete_group("group", topic)
        transport.create_topic(topic, QUEUES)
        assert paused_groups(transport, topic) == []
        assert transport.join("group", topic, "one", 60).queues == ALL
