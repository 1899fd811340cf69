"""Timelines of a broker's directory and of its copies."""

from __future__ import annotations

import doctest
from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from enode_django.equeue.broker.timelines import Copies, copied, run_after_copy
from enode_django.equeue.consumer import reached
from enode_django.equeue.consumer.reached import Reached
from enode_django.equeue.offsets_file import KeptOffsets

plain = st.recursive(st.none() | st.integers(0, 1 << 63) | st.text() | st.binary(), st.lists, max_leaves=20)


@given(st.lists(plain, min_size=4, max_size=4), st.text(), st.booleans(), st.lists(plain, max_size=2))
def test_a_copy_has_all_of_the_state_but_the_timeline(
    known: list[Any], timeline: str, may_lose: bool, rest: list[Any]
) -> None:
    state = msgpack.packb([*known, timeline, may_lose, *rest])
    assert msgpack.unpackb(copied(state)) == [*known, "", True, *rest]


def test_runs_of_two_copies_and_of_the_original_differ() -> None:
    runs = {run_after_copy(7) for _ in range(20)}
    assert len(runs) > 10
    assert min(runs) > 7


def test_a_timeline_says_where_the_copy_ended_and_keeps_to_it() -> None:
    assert Copies().timeline("a", "orders", 0) == "a"
    copies = Copies().begin({"orders": {0: 70}})
    assert copies.timeline("b", "orders", 0) == f"b@{copies.name}:70"
    assert copies.timeline("b", "orders", 1) == f"b@{copies.name}:0"
    assert Copies(*msgpack.unpackb(msgpack.packb(copies.plain()), strict_map_key=False)).plain() == copies.plain()
    again = copies.begin({"orders": {0: 90, 1: 5}})
    assert again.timeline("c", "orders", 0) == f"c@{again.name}:70", "who knows neither copy passes over nothing"
    assert again.name != copies.name


@pytest.mark.parametrize(
    ("known", "timeline", "offset"),
    [("a", "a", 90), ("a", "b", 80), ("a", "b@c:70", 70), ("a@c:70", "b@c:70", 80), ("a@c:70", "b@d:60", 60)],
)
def test_a_consumer_goes_back_to_where_a_copy_ended_that_it_has_not_met(known: str, timeline: str, offset: int) -> None:
    kept = KeptOffsets(offsets={0: 90}, settled={0: 80}, timelines={0: known})
    met = Reached(kept, now=0.0)
    assert met.begin(0, 90, 100, timeline) == offset
    assert met.begin(0, offset, 100, timeline) == offset


def reached_90() -> Reached:
    """Offset 90 was reached in timeline a, of which 10 is settled."""
    return Reached(KeptOffsets(offsets={0: 90}, settled={0: 10}, timelines={0: "a"}), now=0.0)


def test_what_was_confirmed_before_a_queue_began_again_never_counts_as_settled() -> None:
    met = reached_90()
    assert met.confirm({0: 90}, {0: "a"}, now=60.0) == []
    assert met.begin(0, 90, 100, "b") == 10
    assert met.confirm({0: 20}, {0: "b"}, now=120.0) == []
    assert met.begin(0, 95, 100, "c") == 10


def test_an_offset_is_not_settled_because_its_queue_begins_there() -> None:
    met = reached_90()
    assert met.begin(0, 90, 100, "a") == 90
    assert met.begin(0, 90, 100, "b") == 10


def test_a_timeline_that_is_not_told_is_remembered() -> None:
    met = reached_90()
    assert met.begin(0, 90, 100, "") == 90
    assert met.begin(0, 90, 100, "b") == 10


def test_an_offset_of_a_changed_timeline_is_not_settled_while_no_timeline_is_told() -> None:
    met = reached_90()
    assert met.confirm({0: 90}, {0: "b"}, now=60.0) == [0]
    assert met.confirm({0: 95}, {}, now=120.0) == []
    assert met.begin(0, 95, 100, "b") == 10


def test_an_offset_whose_timeline_changed_within_the_minute_is_not_settled() -> None:
    met = reached_90()
    assert met.confirm({0: 90}, {0: "a"}, now=60.0) == []
    assert met.confirm({0: 95}, {0: "b"}, now=120.0) == [0]
    assert met.begin(0, 95, 100, "b") == 10


def test_an_offset_is_settled_a_minute_after_it_was_confirmed() -> None:
    met = reached_90()
    assert met.confirm({0: 90}, {0: "a"}, now=60.0) == []
    assert met.confirm({0: 95}, {0: "a"}, now=119.0) == []
    assert met.begin(0, 95, 100, "b") == 10, "less than a minute after it was confirmed"
    met = reached_90()
    met.confirm({0: 90}, {0: "a"}, now=60.0), met.confirm({0: 95}, {0: "a"}, now=120.0)
    assert met.begin(0, 95, 100, "b") == 90


def test_the_example_holds() -> None:
    assert doctest.testmod(reached).failed == 0
