from __future__ import annotations

import msgpack
import pytest

from enode_django.equeue.coordination import EPOCHS_PER_RUN, Coordinator
from enode_django.equeue.messages import Commit, Membership, Receipt
from enode_django.exceptions import QueueHeld

BOUNDS = {"orders": {0: (0, 10), 1: (0, 5)}}


def busy() -> Coordinator:
    coordinator = Coordinator()
    coordinator.create_topic("orders", 2)
    for member in ("one", "two"):
        coordinator.join("g", "orders", member, 10.0, now=0.0)
    lease = coordinator.acquire("g", "orders", 0, "one", 10.0, bounds=(0, 10), now=0.0)
    coordinator.commit("g", "orders", {0: Commit(lease.epoch, 7, [Receipt(6, b"kept")], 5)})
    coordinator.acquire("g", "orders", 1, "two", 10.0, bounds=(0, 5), now=0.0)
    coordinator.bury("h", "orders", "three", [(1, 3)], now=0.0)
    coordinator.show(
        "orders", 1, to_producers=False, to_consumers=False, unordered=True, bounds={0: (0, 10), 1: (0, 5)}
    )
    return coordinator


def test_all_of_it_comes_back_from_plain_data() -> None:
    plain = msgpack.unpackb(msgpack.packb(busy().plain()), strict_map_key=False)
    restored = Coordinator.restore(plain)
    assert restored.plain() == busy().plain()
    assert restored.topics == busy().topics


def test_no_lease_outlives_a_restart_and_owners_have_time_to_come_back() -> None:
    coordinator = busy()
    before = coordinator.topics["orders"].groups["g"].claims[0].epoch
    coordinator.restarted(3, now=100.0, patience=10.0, bounds=BOUNDS)
    assert coordinator.renew("g", "orders", "one", {0: before}, 10.0, now=100.0) == {0}
    assert coordinator.commit("g", "orders", {0: Commit(before, 9)}) == {0}
    assert coordinator.commit("g", "orders", {0: Commit(0, 9)}) == {0}
    with pytest.raises(QueueHeld):
        coordinator.acquire("g", "orders", 0, "two", 10.0, bounds=(0, 10), now=109.0)
    again = coordinator.acquire("g", "orders", 0, "one", 10.0, bounds=(0, 10), now=109.0)
    assert (again.committed, again.previous_owner) == (7, None)
    assert again.epoch > 3 * EPOCHS_PER_RUN
    assert coordinator.acquire("g", "orders", 1, "one", 10.0, bounds=(0, 5), now=110.0).previous_owner == "two"


@pytest.mark.parametrize("shows", ["renew", "commit"])
def test_an_owner_that_has_shown_that_it_knows_of_the_one_before_is_not_told_again(shows: str) -> None:
    coordinator = busy()
    taken = coordinator.acquire("g", "orders", 0, "two", 10.0, bounds=(0, 10), now=10.0)
    again = coordinator.acquire("g", "orders", 0, "two", 10.0, bounds=(0, 10), now=10.0)
    assert taken.previous_owner == again.previous_owner == "one", "the first answer may have been lost"
    if shows == "renew":
        coordinator.renew("g", "orders", "two", {0: again.epoch}, 10.0, now=10.0)
    else:
        coordinator.commit("g", "orders", {0: Commit(again.epoch, 7)})
    assert coordinator.acquire("g", "orders", 0, "two", 10.0, bounds=(0, 10), now=10.0).previous_owner is None


def test_members_have_time_to_come_back_after_a_restart() -> None:
    coordinator = busy()
    coordinator.restarted(1, now=100.0, patience=10.0, bounds=BOUNDS)
    kept = coordinator.join("g", "orders", "one", 10.0, now=109.0)
    assert kept.members == ("one", "two")
    alone = coordinator.join("g", "orders", "one", 10.0, now=110.0)
    assert alone == Membership(kept.generation + 1, frozenset({0}), ("one",)), "queue 1 is hidden"


def test_offsets_behind_the_end_of_what_was_not_lost_are_set_back() -> None:
    coordinator = busy()
    coordinator.restarted(1, now=100.0, patience=10.0, bounds={"orders": {0: (0, 4), 1: (0, 0)}})
    assert coordinator.committed("g", "orders") == {0: 4, 1: 0}


def test_an_owner_that_leaves_after_a_restart_keeps_nobody_waiting() -> None:
    coordinator = busy()
    coordinator.restarted(1, now=100.0, patience=10.0, bounds=BOUNDS)
    coordinator.leave("g", "orders", "one", now=101.0)
    assert coordinator.acquire("g", "orders", 0, "two", 10.0, bounds=(0, 10), now=101.0).previous_owner == "one"


def test_deaths_before_the_offset_that_a_group_begins_at_are_not_told() -> None:
    coordinator = Coordinator()
    coordinator.create_topic("orders", 1)
    coordinator.bury("g", "orders", "one", [(0, 3), (0, 5)], now=0.0)
    lease = coordinator.acquire("g", "orders", 0, "two", 10.0, start=5, bounds=(0, 10), now=0.0)
    assert (lease.committed, lease.deaths) == (5, {5: 1})


def test_who_leaves_frees_no_lease_but_its_own_of_before_a_restart() -> None:
    coordinator = busy()
    coordinator.leave("g", "orders", "one", now=1.0)
    with pytest.raises(QueueHeld):  # it is released by its epoch, when its owner has stopped
        coordinator.acquire("g", "orders", 0, "two", 10.0, bounds=(0, 10), now=1.0)
    coordinator.restarted(3, now=100.0, patience=10.0, bounds=BOUNDS)
    coordinator.leave("g", "orders", "one", now=101.0)
    coordinator.acquire("g", "orders", 0, "two", 10.0, bounds=(0, 10), now=101.0)
    with pytest.raises(QueueHeld):
        coordinator.acquire("g", "orders", 1, "three", 10.0, bounds=(0, 5), now=101.0)


def test_deaths_count_from_the_first_message_that_is_not_committed() -> None:
    coordinator = busy()
    coordinator.bury("g", "orders", "one", [(0, 6), (0, 7)], now=1.0)
    assert coordinator.acquire("g", "orders", 0, "two", 10.0, bounds=(0, 10), now=1.0).deaths == {7: 1}
