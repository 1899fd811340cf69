"""The part of the transport contract about leases, commits and trimming, and helpers for all parts."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import pytest

from enode_django.equeue.messages import Commit, Lease, Receipt
from enode_django.equeue.transport import Transport
from enode_django.exceptions import QueueHeld

QUEUES = 4
DEADLINE = 60.0
"""Seconds after which an expected event counts as missing."""

T = TypeVar("T")


def eventually(attempt: Callable[[], T | None]) -> T:
    """Return the first result of ``attempt`` that is not None. Raises AssertionError after `DEADLINE`."""
    deadline = time.monotonic() + DEADLINE
    while (answer := attempt()) is None:
        assert time.monotonic() < deadline, f"did not happen within {DEADLINE} seconds"
        time.sleep(0.005)
    return answer


def messages(transport: Transport, topic: str, queue: int, offset: int = 0) -> list[tuple[int, bytes]]:
    """Return all (offset, body) pairs of a queue from an offset on, in as many pulls as needed."""
    found: list[tuple[int, bytes]] = []
    while batches := transport.pull(topic, {queue: offset}, limit=1_000, wait=0):
        found += zip(batches[0].offsets, batches[0].bodies, strict=True)
        offset = found[-1][0] + 1
    return found


def acquired(transport: Transport, group: str, topic: str, owner: str) -> Lease | None:
    try:
        return transport.acquire(group, topic, 0, owner, 60)
    except QueueHeld:
        return None


def numbered(start: int, stop: int) -> list[Receipt]:
    return [Receipt(number, b"%d" % number) for number in range(start, stop)]


def kept(transport: Transport, topic: str, queue: int = 0, group: str = "group") -> list[bytes]:
    return list(transport.receipts(group, topic, queue))


def fill(transport: Transport, topic: str, queue: int, count: int) -> None:
    """Fill a queue in several sends, because a driver may delete a send only as a whole."""
    while count:
        some = min(count, 500)
        transport.send(topic, {queue: [b"x" * 200] * some})
        count -= some


class TransportLeaseContract:
    trim_keeps_at_most = 1_000
    """The most committed messages of a queue that a `trim` may leave."""

    @pytest.fixture
    def transport(self) -> Iterator[Transport]:
        raise NotImplementedError("give a fixture `transport`")

    @pytest.fixture
    def another(self, transport: Transport) -> Transport:
        """Return a second transport to the same queues, as another process has it. A driver within one process returns
        the same transport."""
        return transport

    @pytest.fixture
    def topic(self, transport: Transport) -> str:
        name = f"topic-{uuid.uuid4().hex}"
        transport.create_topic(name, QUEUES)
        return name

    # Leases

    def test_first_lease_starts_at_zero(self, transport: Transport, topic: str) -> None:
        transport.send(topic, {0: [b"a", b"b"]})
        lease = transport.acquire("group", topic, 0, "one", 60)
        assert lease.epoch > 0
        assert lease[1:] == (0, 2, None, {})

    def test_held_queue_names_its_owner(self, transport: Transport, another: Transport, topic: str) -> None:
        transport.acquire("group", topic, 0, "one", 60)
        with pytest.raises(QueueHeld, match="'one'") as held:
            another.acquire("group", topic, 0, "two", 60)
        assert held.value.owner == "one"
        assert 0 < held.value.seconds <= 60

    def test_groups_and_queues_are_leased_apart(self, transport: Transport, topic: str) -> None:
        transport.acquire("group", topic, 0, "one", 60)
        assert transport.acquire("group", topic, 1, "two", 60).previous_owner is None
        assert transport.acquire("other group", topic, 0, "two", 60).previous_owner is None

    def test_expired_lease_goes_to_another_owner_who_is_told(
        self, transport: Transport, another: Transport, topic: str
    ) -> None:
        first = transport.acquire("group", topic, 0, "one", 0.02)
        second = eventually(lambda: acquired(another, "group", topic, "two"))
        assert second.epoch > first.epoch
        assert second.previous_owner == "one"
        assert transport.renew("group", topic, "one", {0: first.epoch}, 60) == {0}

    @pytest.mark.parametrize("shows", ["renew", "commit", "release"])
    def test_an_owner_is_told_again_whose_queue_it_took_until_it_has_shown_that_it_knows(
        self, transport: Transport, another: Transport, topic: str, shows: str
    ) -> None:
        """The answer to the owner's first call may have been lost."""
        transport.acquire("group", topic, 0, "one", 0.02)
        eventually(lambda: acquired(another, "group", topic, "two"))
        again = another.acquire("group", topic, 0, "two", 60)
        assert again.previous_owner == "one"
        if shows == "renew":
            assert another.renew("group", topic, "two", {0: again.epoch}, 60) == set()
        elif shows == "commit":
            assert another.commit("group", topic, {0: Commit(again.epoch, 0)}) == set()
        else:
            another.release("group", topic, "two", {0: again.epoch})
        for _ in range(2):
            assert another.acquire("group", topic, 0, "two", 60).previous_owner is None

    def test_released_queue_goes_to_another_owner_at_once(self, transport: Transport, topic: str) -> None:
        first = transport.acquire("group", topic, 0, "one", 60)
        transport.commit("group", topic, {0: Commit(first.epoch, 5)})
        transport.release("group", topic, "one", {0: first.epoch})
        second = transport.acquire("group", topic, 0, "two", 60)
        assert second.epoch > first.epoch
        assert (second.committed, second.previous_owner) == (5, None)

    def test_acquiring_again_raises_the_epoch(self, transport: Transport, topic: str) -> None:
        first = transport.acquire("group", topic, 0, "one", 60)
        second = transport.acquire("group", topic, 0, "one", 60)
        assert second.epoch > first.epoch
        assert second.previous_owner is None
        assert transport.renew("group", topic, "one", {0: first.epoch}, 60) == {0}
        assert transport.renew("group", topic, "one", {0: second.epoch}, 60) == set()

    def test_renewing_prolongs_also_a_lease_that_ran_out(self, transport: Transport, topic: str) -> None:
        lease = transport.acquire("group", topic, 0, "one", 0.001)
        assert transport.renew("group", topic, "one", {0: lease.epoch}, 60) == set()
        with pytest.raises(QueueHeld) as held:
            transport.acquire("group", topic, 0, "two", 60)
        assert held.value.seconds > 1

    def test_released_queue_is_not_renewed(self, transport: Transport, topic: str) -> None:
        lease = transport.acquire("group", topic, 0, "one", 60)
        transport.release("group", topic, "one", {0: lease.epoch})
        assert transport.renew("group", topic, "one", {0: lease.epoch, 1: 1}, 60) == {0, 1}
        assert transport.acquire("group", topic, 0, "two", 60).previous_owner is None

    def test_late_release_leaves_the_next_owner_alone(self, transport: Transport, topic: str) -> None:
        first = transport.acquire("group", topic, 0, "one", 60)
        transport.acquire("group", topic, 0, "one", 60)
        transport.release("group", topic, "one", {0: first.epoch})
        with pytest.raises(QueueHeld):
            transport.acquire("group", topic, 0, "two", 60)

    def test_only_one_of_many_gets_a_queue(self, transport: Transport, another: Transport, topic: str) -> None:
        start = threading.Barrier(8)

        def take(number: int) -> Lease | None:
            start.wait()
            return acquired((transport, another)[number % 2], "group", topic, f"owner-{number}")

        with ThreadPoolExecutor(8) as pool:
            leases = list(pool.map(take, range(8)))
        assert len([lease for lease in leases if lease is not None]) == 1

    # Commits

    def test_commit_is_kept_per_group_and_queue(self, transport: Transport, another: Transport, topic: str) -> None:
        epochs = [transport.acquire("group", topic, queue, "one", 60).epoch for queue in (0, 1)]
        assert transport.commit("group", topic, {0: Commit(epochs[0], 3), 1: Commit(epochs[1], 4)}) == set()
        assert another.committed("group", topic) == {0: 3, 1: 4, 2: 0, 3: 0}
        assert another.committed("other group", topic) == dict.fromkeys(range(QUEUES), 0)

    def test_commit_never_goes_back(self, transport: Transport, topic: str) -> None:
        epoch = transport.acquire("group", topic, 0, "one", 60).epoch
        for offset in (10, 9):  # as numbers: "9" sorts after "10"
            assert transport.commit("group", topic, {0: Commit(epoch, offset)}) == set()
        assert transport.committed("group", topic)[0] == 10

    def test_stale_epoch_commits_nothing(self, transport: Transport, topic: str) -> None:
        stale = transport.acquire("group", topic, 0, "one", 0.001).epoch
        fresh = eventually(lambda: acquired(transport, "group", topic, "two")).epoch
        other = transport.acquire("group", topic, 1, "one", 60).epoch
        assert transport.commit("group", topic, {0: Commit(stale, 7), 1: Commit(other, 8)}) == {0}
        assert transport.commit("group", topic, {2: Commit(1, 9)}) == {2}  # never acquired
        assert transport.committed("group", topic) == {0: 0, 1: 8, 2: 0, 3: 0}
        assert transport.commit("group", topic, {0: Commit(fresh, 2)}) == set()

    def test_commit_after_the_lease_ended_counts_while_nobody_took_the_queue(
        self, transport: Transport, topic: str
    ) -> None:
        epoch = transport.acquire("group", topic, 0, "one", 60).epoch
        transport.release("group", topic, "one", {0: epoch})
        assert transport.commit("group", topic, {0: Commit(epoch, 3)}) == set()
        assert transport.acquire("group", topic, 0, "two", 60).committed == 3

    # Receipts

    def test_receipts_are_kept_per_group_and_queue_for_whoever_comes_next(
        self, transport: Transport, another: Transport, topic: str
    ) -> None:
        epochs = [transport.acquire("group", topic, queue, "one", 60).epoch for queue in (0, 1)]
        bodies = [b"", bytes(range(256))]
        first = [Receipt(0, bodies[0]), Receipt(2, bodies[1])]
        commits = {0: Commit(epochs[0], 3, first, 10), 1: Commit(epochs[1], 1, [Receipt(0, b"x")], 10)}
        assert transport.commit("group", topic, commits) == set()
        transport.commit("group", topic, {0: Commit(epochs[0], 4), 1: Commit(epochs[1], 1)})
        transport.release("group", topic, "one", {0: epochs[0]})
        epoch = another.acquire("group", topic, 0, "two", 60).epoch
        assert kept(another, topic) == bodies
        another.commit("group", topic, {0: Commit(epoch, 9, [Receipt(8, b"more")], 10)})
        assert kept(transport, topic) == [*bodies, b"more"]
        assert kept(transport, topic, 1) == [b"x"]
        assert kept(transport, topic, 2) == []
        assert kept(transport, topic, 0, "other group") == []
        assert transport.committed("group", topic) == {0: 9, 1: 1, 2: 0, 3: 0}

    def test_stale_epoch_keeps_no_receipt(self, transport: Transport, another: Transport, topic: str) -> None:
        stale = transport.acquire("group", topic, 0, "one", 60).epoch
        transport.commit("group", topic, {0: Commit(stale, 1, [Receipt(0, b"in time")], 10)})
        another.bury("group", topic, "one")
        fresh = another.acquire("group", topic, 0, "two", 60).epoch
        assert transport.commit("group", topic, {0: Commit(stale, 3_000, numbered(1, 3_000), 5_000)}) == {0}
        assert (transport.committed("group", topic)[0], kept(transport, topic)) == (1, [b"in time"])
        assert another.commit("group", topic, {0: Commit(fresh, 2, [Receipt(1, b"fresh")], 10)}) == set()
        assert kept(transport, topic) == [b"in time", b"fresh"]

    def test_only_the_newest_receipts_stay(self, transport: Transport, topic: str) -> None:
        epoch = transport.acquire("group", topic, 0, "one", 60).epoch
        transport.commit("group", topic, {0: Commit(epoch, 4, numbered(0, 4), 3)})
        assert kept(transport, topic) == [b"1", b"2", b"3"]
        transport.commit("group", topic, {0: Commit(epoch, 6, numbered(4, 6), 3)})
        assert kept(transport, topic) == [b"3", b"4", b"5"]
        transport.commit("group", topic, {0: Commit(epoch, 7, numbered(6, 7), 3)})
        assert kept(transport, topic) == [b"4", b"5", b"6"]
        transport.commit("group", topic, {0: Commit(epoch, 7, keep=1)})  # no new receipts, so none is deleted
        assert kept(transport, topic) == [b"4", b"5", b"6"]
        transport.commit("group", topic, {0: Commit(epoch, 8, numbered(7, 8), 2)})
        assert kept(transport, topic) == [b"6", b"7"]
        transport.commit("group", topic, {0: Commit(epoch, 9, numbered(8, 9), 0)})
        assert transport.committed("group", topic)[0] == 9
        assert kept(transport, topic) == []

    def test_many_receipts_of_one_commit_are_kept_in_order(self, transport: Transport, topic: str) -> None:
        epoch = transport.acquire("group", topic, 0, "one", 60).epoch
        assert transport.commit("group", topic, {0: Commit(epoch, 6_000, numbered(0, 5_000), 4_500)}) == set()
        assert kept(transport, topic) == [b"%d" % number for number in range(500, 5_000)]
        assert transport.committed("group", topic)[0] == 6_000

    def test_commit_that_is_repeated_keeps_its_receipts_once(self, transport: Transport, topic: str) -> None:
        epoch = transport.acquire("group", topic, 0, "one", 60).epoch
        for end in (3, 3, 5):  # an acknowledgement was lost, and more was finished in between
            assert transport.commit("group", topic, {0: Commit(epoch, end, numbered(0, end), 10)}) == set()
        assert kept(transport, topic) == [b"%d" % number for number in range(5)]

    # Trimming

    def test_trim_does_not_wait_for_a_retired_group(self, transport: Transport, topic: str) -> None:
        count = 2 * self.trim_keeps_at_most + 500
        fill(transport, topic, 0, count)
        for group, offset in (("live", count - 10), ("gone", 5)):
            epoch = transport.acquire(group, topic, 0, "one", 60).epoch
            transport.commit(group, topic, {0: Commit(epoch, offset)})
        transport.retire_group("gone", topic)
        transport.retire_group("gone", topic)
        transport.retire_group("never was", topic)
        transport.set_offset("gone", topic, 0, 5)
        transport.trim(topic)
        first = messages(transport, topic, 0)[0][0]
        assert 5 < count - 10 - self.trim_keeps_at_most <= first <= count - 10
        assert transport.committed("gone", topic)[0] == 5

    def test_retired_group_that_acquires_again_is_waited_for_again(self, transport: Transport, topic: str) -> None:
        count = 2 * self.trim_keeps_at_most + 500
        fill(transport, topic, 0, count)
        epochs = {group: transport.acquire(group, topic, 0, "one", 60).epoch for group in ("live", "back")}
        transport.commit("live", topic, {0: Commit(epochs["live"], count)})
        transport.retire_group("back", topic)
        assert transport.acquire("back", topic, 0, "one", 60).epoch > epochs["back"]
        transport.trim(topic)
        assert messages(transport, topic, 0)[0][0] == 0

    def test_trim_deletes_only_what_every_group_committed(self, transport: Transport, topic: str) -> None:
        count = 2 * self.trim_keeps_at_most + 500
        for queue in (0, 1):
            fill(transport, topic, queue, count)
        for group, offset in (("fast", count), ("slow", count - 400)):
            epoch = transport.acquire(group, topic, 0, "one", 60).epoch
            transport.commit(group, topic, {0: Commit(epoch, offset)})
        transport.trim(topic)
        left = [offset for offset, _ in messages(transport, topic, 0)]
        assert count - 400 - self.trim_keeps_at_most <= left[0] <= count - 400
        assert left == list(range(left[0], count))
        assert len(messages(transport, topic, 1)) == count  # nobody committed anything here

    def test_topic_without_groups_keeps_everything(self, transport: Transport, topic: str) -> None:
        transport.send(topic, {0: [b"x" * 200] * 2_000})
        transport.trim(topic)
        assert len(messages(transport, topic, 0)) == 2_000

    def test_offsets_epochs_and_waiting_go_on_after_a_trim(self, transport: Transport, topic: str) -> None:
        transport.send(topic, {0: [b"x"] * 2_000})
        first = transport.acquire("group", topic, 0, "one", 60)
        transport.commit("group", topic, {0: Commit(first.epoch, 2_000)})
        transport.trim(topic)
        before = time.monotonic()
        kept = transport.pull(topic, {0: 0}, limit=1, wait=0.1)
        assert kept or time.monotonic() - before >= 0.09
        assert transport.send(topic, {0: [b"new"]}) == {0: 2_000}
        assert messages(transport, topic, 0)[-1] == (2_000, b"new")
        second = transport.acquire("group", topic, 0, "one", 60)
        assert second.epoch > first.epoch
        assert (second.committed, second.end) == (2_000, 2_001)
