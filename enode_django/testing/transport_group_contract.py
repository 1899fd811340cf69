"""The part of the transport contract about members, changes of a topic's queues, and repeated sends."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from enode_django.equeue.messages import Commit, Membership, Once, Receipt, Route, Start
from enode_django.equeue.transport import KNOWN_SENDS, MOST_PRODUCERS, PRODUCER_SECONDS, Transport
from enode_django.exceptions import QueueBacklog, QueueError, QueueHeld, StaleRoute, UnknownTopic
from enode_django.testing.transport_lease_contract import QUEUES, TransportLeaseContract, eventually, kept, messages

ALL = frozenset(range(QUEUES))


def finished(transport: Transport, topic: str, group: str = "group") -> None:
    """Let a group commit all messages of the topic."""
    for queue, end in transport.end_offsets(topic).items():
        lease = transport.acquire(group, topic, queue, "one", 60)
        assert transport.commit(group, topic, {queue: Commit(lease.epoch, end)}) == set()
        transport.release(group, topic, "one", {queue: lease.epoch})


class TransportGroupContract(TransportLeaseContract):
    # Producers

    def test_producers_are_those_that_announced_themselves(
        self, transport: Transport, another: Transport, topic: str
    ) -> None:
        assert transport.producers(topic) == {}
        transport.announce(topic, "b")
        another.announce(topic, "a")
        first = transport.producers(topic)
        assert list(first) == ["a", "b"]
        assert all(0 <= seconds < PRODUCER_SECONDS for seconds in first.values())
        eventually(lambda: transport.producers(topic)["a"] > first["a"] or None)
        transport.announce(topic, "b")
        second = another.producers(topic)
        assert list(second) == ["a", "b"]
        assert second["b"] < second["a"], "it was heard of again"

    def test_of_very_many_producers_those_are_known_that_came_last(self, transport: Transport, topic: str) -> None:
        for number in range(MOST_PRODUCERS + 1):
            transport.announce(topic, f"{number}")
        known = transport.producers(topic)
        assert len(known) == MOST_PRODUCERS
        assert f"{MOST_PRODUCERS}" in known

    # Members

    def test_first_member_shall_own_all_and_the_second_one_half(
        self, transport: Transport, another: Transport, topic: str
    ) -> None:
        first = transport.join("group", topic, "one", 60)
        assert first == Membership(first.generation, ALL, ("one",))
        second = another.join("group", topic, "two", 60)
        assert second.generation > first.generation
        assert second.members == ("one", "two")
        assert len(second.queues) == QUEUES // 2
        again = transport.join("group", topic, "one", 60)
        assert again == Membership(second.generation, ALL - second.queues, ("one", "two"))
        assert transport.join("group", topic, "one", 60) == again
        assert transport.join("other group", topic, "three", 60).queues == ALL

    def test_silent_member_is_dropped(self, transport: Transport, another: Transport, topic: str) -> None:
        transport.join("group", topic, "silent", 0.05)
        transport.join("group", topic, "one", 60)

        def alone() -> Membership | None:
            membership = another.join("group", topic, "one", 60)
            return membership if membership.members == ("one",) else None

        assert eventually(alone).queues == ALL
        assert list(another.groups(topic)["group"].members) == ["one"]

    def test_member_that_leaves_gives_its_queues_to_the_others(self, transport: Transport, topic: str) -> None:
        for member in ("one", "two", "three"):
            transport.join("group", topic, member, 60)
        before = {member: transport.join("group", topic, member, 60).queues for member in ("one", "three")}
        for _ in range(2):
            transport.leave("group", topic, "two")
        after = {member: transport.join("group", topic, member, 60).queues for member in ("one", "three")}
        assert after["one"] | after["three"] == ALL
        assert all(before[member] <= after[member] for member in before)  # nothing moved but what had to
        transport.leave("nobody's group", topic, "nobody")

    def test_more_members_than_queues_leave_some_without(self, transport: Transport, topic: str) -> None:
        names = [f"member-{number}" for number in range(QUEUES + 2)]
        for name in names:
            transport.join("group", topic, name, 60)
        shares = [transport.join("group", topic, name, 60).queues for name in names]
        assert sorted(map(len, shares)) == [0, 0, *[1] * QUEUES]
        assert frozenset().union(*shares) == ALL

    def test_members_that_join_at_once_agree(self, transport: Transport, another: Transport, topic: str) -> None:
        start = threading.Barrier(6)

        def join(number: int) -> None:
            start.wait()
            (transport, another)[number % 2].join("group", topic, f"member-{number}", 60)

        with ThreadPoolExecutor(6) as pool:
            list(pool.map(join, range(6)))
        memberships = [transport.join("group", topic, f"member-{number}", 60) for number in range(6)]
        assert {membership.generation for membership in memberships} == {memberships[0].generation}
        assert sorted(queue for membership in memberships for queue in membership.queues) == sorted(ALL)

    def test_buried_owner_is_replaced_at_once_and_named(
        self, transport: Transport, another: Transport, topic: str
    ) -> None:
        transport.join("group", topic, "one", 60)
        transport.join("group", topic, "two", 60)
        first = transport.acquire("group", topic, 0, "one", 60)
        transport.bury("group", topic, "one")
        assert another.join("group", topic, "two", 60).queues == ALL
        second = another.acquire("group", topic, 0, "two", 60)
        assert second.epoch > first.epoch
        assert (second.previous_owner, second.deaths) == ("one", {})
        assert transport.renew("group", topic, "one", {0: first.epoch}, 60) == {0}

    def test_burial_leaves_the_leases_of_others_alone(self, transport: Transport, topic: str) -> None:
        lease = transport.acquire("group", topic, 0, "two", 60)
        transport.bury("group", topic, "one")
        transport.bury("nobody's group", topic, "one")
        with pytest.raises(QueueHeld):
            transport.acquire("group", topic, 0, "three", 60)
        assert transport.renew("group", topic, "two", {0: lease.epoch}, 60) == set()

    def test_deaths_are_told_to_the_next_owners_until_the_message_is_committed(
        self, transport: Transport, another: Transport, topic: str
    ) -> None:
        transport.send(topic, {0: [b"x"] * 9})
        transport.acquire("group", topic, 0, "one", 60)
        transport.bury("group", topic, "one", [(0, 5), (0, 7), (1, 3)])
        assert another.acquire("group", topic, 0, "two", 60).deaths == {5: 1, 7: 1}
        another.bury("group", topic, "two", [(0, 7)])
        lease = transport.acquire("group", topic, 0, "three", 60)
        assert lease.deaths == {5: 1, 7: 2}
        transport.commit("group", topic, {0: Commit(lease.epoch, 6)})
        assert transport.acquire("group", topic, 0, "three", 60).deaths == {7: 2}
        transport.bury("group", topic, "three", [(0, 2)])  # committed before
        assert transport.acquire("group", topic, 0, "three", 60).deaths == {7: 2}
        assert transport.acquire("other group", topic, 0, "one", 60).deaths == {}
        transport.set_offset("group", topic, 0, 8)
        assert transport.acquire("group", topic, 0, "three", 60).deaths == {}

    def test_deaths_at_offsets_that_no_message_has_are_told_too(
        self, transport: Transport, another: Transport, topic: str
    ) -> None:
        last = (1 << 48) - 1
        transport.bury("group", topic, "one", [(0, last)])
        lease = another.acquire("group", topic, 0, "two", 60)
        assert lease.deaths == {last: 1}
        transport.send(topic, {0: [b"x"]})
        transport.commit("group", topic, {0: Commit(lease.epoch, 1)})
        assert another.acquire("group", topic, 0, "two", 60).deaths == {last: 1}

    def test_death_that_is_told_again_counts_once_whoever_has_the_queue_by_then(
        self, transport: Transport, another: Transport, topic: str
    ) -> None:
        transport.acquire("group", topic, 0, "one", 60)
        transport.bury("group", topic, "one", [(0, 5)])
        transport.bury("group", topic, "one", [(0, 5)])  # the answer to the first call was lost
        assert another.acquire("group", topic, 0, "two", 60).deaths == {5: 1}
        transport.bury("group", topic, "one", [(0, 5)])
        assert another.acquire("group", topic, 0, "two", 60).deaths == {5: 1}

    # Start offsets and changed offsets

    @pytest.mark.parametrize(("start", "expected"), [(Start.FIRST, 0), (Start.LAST, 3), (2, 2), (9, 3), (-1, 0)])
    def test_new_group_begins_where_it_says(
        self, transport: Transport, topic: str, start: Start | int, expected: int
    ) -> None:
        transport.send(topic, {0: [b"a", b"b", b"c"]})
        assert transport.acquire("group", topic, 0, "one", 60, start=start).committed == expected
        transport.send(topic, {0: [b"d"]})
        assert transport.acquire("group", topic, 0, "one", 60, start=Start.LAST).committed == expected

    def test_offset_of_a_time_has_all_that_came_later_after_it(self, transport: Transport, topic: str) -> None:
        transport.send(topic, {0: [b"early"] * 3})
        time.sleep(0.02)  # a driver counts milliseconds
        between = time.time()
        time.sleep(0.02)
        transport.send(topic, {0: [b"late"] * 2})
        assert transport.offsets_at(topic, between) == {0: 3, 1: 0, 2: 0, 3: 0}
        assert transport.offsets_at(topic, 0.0)[0] == 0
        assert transport.offsets_at(topic, time.time() + 60)[0] == 5

    def test_offset_that_is_set_takes_the_queue_from_its_owner(
        self, transport: Transport, another: Transport, topic: str
    ) -> None:
        transport.send(topic, {0: [b"x"] * 9})
        lease = transport.acquire("group", topic, 0, "one", 60)
        transport.commit("group", topic, {0: Commit(lease.epoch, 7, [Receipt(6, b"kept")], 5)})
        another.set_offset("group", topic, 0, 2)
        assert transport.commit("group", topic, {0: Commit(lease.epoch, 8)}) == {0}
        assert transport.renew("group", topic, "one", {0: lease.epoch}, 60) == {0}
        again = transport.acquire("group", topic, 0, "two", 60)
        assert (again.committed, again.previous_owner) == (2, None)
        assert again.epoch > lease.epoch
        assert kept(transport, topic) == [b"kept"]

    @pytest.mark.parametrize(("offset", "expected"), [(100, 4), (-1, 0), (3, 3)])
    def test_offset_that_is_set_stays_within_the_queue(
        self, transport: Transport, topic: str, offset: int, expected: int
    ) -> None:
        transport.send(topic, {1: [b"x"] * 4})
        transport.set_offset("new group", topic, 1, offset)
        assert transport.committed("new group", topic)[1] == expected
        assert transport.acquire("new group", topic, 1, "one", 60, start=Start.LAST).committed == expected

    # Listing and deleting

    def test_groups_show_members_owners_and_offsets(self, transport: Transport, another: Transport, topic: str) -> None:
        assert transport.groups(topic) == {}
        membership = transport.join("group", topic, "one", 60)
        lease = transport.acquire("group", topic, 2, "one", 60)
        transport.commit("group", topic, {2: Commit(lease.epoch, 5)})
        transport.join("idle group", topic, "two", 60)
        shown = another.groups(topic)
        assert set(shown) == {"group", "idle group"}
        group = shown["group"]
        assert (group.generation, dict(group.division), group.counts) == (membership.generation, {"one": ALL}, True)
        assert 0 < group.members["one"] <= 60
        claim = group.claims[2]
        assert claim[:3] == (5, lease.epoch, "one")
        assert 0 < claim.seconds <= 60
        assert (shown["idle group"].claims, shown["idle group"].counts) == ({}, False)
        transport.release("group", topic, "one", {2: lease.epoch})
        transport.retire_group("group", topic)
        assert another.groups(topic)["group"].claims[2].owner is None
        assert not another.groups(topic)["group"].counts

    def test_deleted_group_begins_anew_and_fences_its_owners(
        self, transport: Transport, another: Transport, topic: str
    ) -> None:
        transport.send(topic, {0: [b"x"] * 9})
        transport.join("group", topic, "one", 60)
        lease = transport.acquire("group", topic, 0, "one", 60)
        transport.commit("group", topic, {0: Commit(lease.epoch, 7, [Receipt(6, b"gone")], 5)})
        for _ in range(2):
            another.delete_group("group", topic)
        assert transport.groups(topic) == {}
        assert transport.commit("group", topic, {0: Commit(lease.epoch, 8)}) == {0}
        assert transport.renew("group", topic, "one", {0: lease.epoch}, 60) == {0}
        again = transport.acquire("group", topic, 0, "two", 60)
        assert (again.committed, again.previous_owner, again.deaths) == (0, None, {})
        assert again.epoch > lease.epoch  # otherwise the old owner could commit
        assert kept(transport, topic) == []
        assert transport.commit("group", topic, {0: Commit(lease.epoch, 8)}) == {0}

    def test_topics_are_listed(self, transport: Transport, another: Transport, topic: str) -> None:
        other = f"topic-{uuid.uuid4().hex}"
        transport.create_topic(other, 1)
        listed = list(another.topics())
        assert listed == sorted(listed)
        assert {topic, other} <= set(listed)

    # Changing the queues of a topic

    def test_route_names_the_queues_and_an_old_one_is_refused(
        self, transport: Transport, another: Transport, topic: str
    ) -> None:
        route = transport.route(topic)
        assert route == Route(route.version, tuple(range(QUEUES)))
        assert transport.send(topic, {0: [b"x"]}, route=route.version) == {0: 0}
        finished(transport, topic)
        assert another.add_queues(topic, QUEUES + 2) == QUEUES + 2
        with pytest.raises(StaleRoute):
            transport.send(topic, {0: [b"not stored"]}, route=route.version)
        newer = transport.route(topic)
        assert newer.version > route.version
        assert newer.queues == tuple(range(QUEUES + 2))
        assert transport.send(topic, {0: [b"y"], QUEUES + 1: [b"z"]}, route=newer.version) == {0: 1, QUEUES + 1: 0}
        assert transport.queue_count(topic) == another.queue_count(topic) == QUEUES + 2
        assert messages(transport, topic, 0) == [(0, b"x"), (1, b"y")]

    def test_a_pull_may_tell_the_version_of_the_route_that_was_in_force(self, transport: Transport, topic: str) -> None:
        """A transport that does not tell gives None; its consumers ask."""
        old = transport.route(topic).version
        transport.send(topic, {0: [b"a", b"b"]})
        (first,) = transport.pull(topic, {0: 0}, limit=1, wait=0.0)
        transport.add_queues(topic, QUEUES + 1, unordered=True)
        new = transport.route(topic).version
        transport.send(topic, {0: [b"c"], QUEUES: [b"d"]}, route=new)
        (rest,) = transport.pull(topic, {0: 1}, limit=1, wait=0.0)
        later = transport.pull(topic, {0: 2, QUEUES: 0}, limit=10, wait=0.0)
        assert first.route in (None, old)
        assert rest.route in (None, old, new)
        assert [batch.route for batch in later] in ([None, None], [new, new])

    def test_queues_are_not_added_while_a_group_has_a_backlog(self, transport: Transport, topic: str) -> None:
        version = transport.route(topic).version
        transport.send(topic, {0: [b"a", b"b"]})
        with pytest.raises(QueueBacklog):
            transport.add_queues(topic, QUEUES + 1)  # nobody has consumed them
        finished(transport, topic, "fast")
        lease = transport.acquire("slow", topic, 0, "one", 60)
        transport.commit("slow", topic, {0: Commit(lease.epoch, 1)})
        with pytest.raises(QueueBacklog, match=r"queue 0 .* 1 "):
            transport.add_queues(topic, QUEUES + 1)
        assert (transport.queue_count(topic), transport.route(topic).version) == (QUEUES, version)
        assert transport.send(topic, {1: [b"still"]}, route=version) == {1: 0}
        assert transport.add_queues(topic, QUEUES + 1, unordered=True) == QUEUES + 1
        assert transport.add_queues(topic, 2) == QUEUES + 1  # there are more

    def test_members_get_queues_that_were_added(self, transport: Transport, topic: str) -> None:
        before = transport.join("group", topic, "one", 60)
        transport.add_queues(topic, QUEUES + 2)
        after = transport.join("group", topic, "one", 60)
        assert after.queues == frozenset(range(QUEUES + 2))
        assert after.generation > before.generation
        assert transport.acquire("group", topic, QUEUES + 1, "one", 60).committed == 0

    def test_queue_hidden_from_producers_gets_no_more_messages(self, transport: Transport, topic: str) -> None:
        route = transport.route(topic)
        transport.show(topic, 1, to_producers=False)
        assert transport.route(topic).queues == (0, 2, 3)
        with pytest.raises(StaleRoute):
            transport.send(topic, {0: [b"x"]}, route=route.version)
        transport.send(topic, {0: [b"x"]})
        with pytest.raises(QueueBacklog):
            transport.show(topic, 1, to_producers=True)
        transport.show(topic, 1, to_producers=True, unordered=True)
        assert transport.route(topic).queues == (0, 1, 2, 3)
        for queue in (0, 1, 2):
            transport.show(topic, queue, to_producers=False, unordered=True)
        with pytest.raises(QueueError, match="last"):
            transport.show(topic, 3, to_producers=False, unordered=True)

    def test_queue_hidden_from_consumers_is_nobodys(self, transport: Transport, topic: str) -> None:
        transport.join("group", topic, "one", 60)
        transport.show(topic, 1, to_consumers=False)
        assert transport.join("group", topic, "one", 60).queues == ALL - {1}
        state = transport.queues(topic)[1]
        assert (state.first, state.end, state.to_producers, state.to_consumers) == (0, 0, True, False)
        transport.send(topic, {1: [b"kept"]})
        transport.show(topic, 1, to_consumers=True)
        assert transport.join("group", topic, "one", 60).queues == ALL
        assert transport.queues(topic)[1] == (0, 1, True, True)

    # Sending again

    def test_send_that_is_made_again_is_stored_once(self, transport: Transport, another: Transport, topic: str) -> None:
        producer = uuid.uuid4().hex
        bodies = {0: [b"%d" % number for number in range(1_201)], 2: [b"x"]}
        first = transport.send(topic, bodies, once=Once(producer, 1))
        transport.send(topic, {0: [b"another's"]}, once=Once(uuid.uuid4().hex, 1))
        assert transport.send(topic, bodies, once=Once(producer, 1)) == first
        assert another.send(topic, bodies, once=Once(producer, 1)) == first
        assert transport.send(topic, {0: [b"next"]}, once=Once(producer, 2)) == {0: 1_202}
        assert transport.end_offsets(topic) == {0: 1_203, 1: 0, 2: 1, 3: 0}

    def test_newest_sends_of_a_producer_are_known(self, transport: Transport, topic: str) -> None:
        producer = uuid.uuid4().hex
        for number in range(KNOWN_SENDS + 20):
            transport.send(topic, {0: [b"x"]}, once=Once(producer, number))
        for number in range(20, KNOWN_SENDS + 20):
            assert transport.send(topic, {0: [b"x"]}, once=Once(producer, number)) == {0: number}

    @pytest.mark.parametrize(
        "use",
        [
            lambda transport, topic: transport.queues(topic),
            lambda transport, topic: transport.route(topic),
            lambda transport, topic: transport.add_queues(topic, 9),
            lambda transport, topic: transport.show(topic, 0, to_producers=False),
            lambda transport, topic: transport.offsets_at(topic, 0.0),
            lambda transport, topic: transport.join("group", topic, "one", 60),
            lambda transport, topic: transport.leave("group", topic, "one"),
            lambda transport, topic: transport.bury("group", topic, "one"),
            lambda transport, topic: transport.set_offset("group", topic, 0, 1),
            lambda transport, topic: transport.groups(topic),
            lambda transport, topic: transport.delete_group("group", topic),
        ],
    )
    def test_unknown_topic_is_named_by_all(self, transport: Transport, use: Callable[[Transport, str], object]) -> None:
        with pytest.raises(UnknownTopic, match="'nowhere'"):
            use(transport, "nowhere")

    @pytest.mark.parametrize("queue", [QUEUES, -1])
    def test_queue_that_is_not_there_is_refused_by_all(self, transport: Transport, topic: str, queue: int) -> None:
        with pytest.raises(QueueError, match=repr(queue)):
            transport.show(topic, queue, to_consumers=False)
        with pytest.raises(QueueError, match=repr(queue)):
            transport.set_offset("group", topic, queue, 0)
        with pytest.raises(QueueError, match=repr(queue)):
            transport.bury("group", topic, "one", [(queue, 0)])
