from __future__ import annotations

import os
from collections.abc import Collection
from math import inf
from pathlib import Path

import pytest

from enode_django.concurrency.cores import usable_cores
from enode_django.concurrency.in_flight import NOTHING_IN_FLIGHT, position_of
from enode_django.conf import make_conf
from enode_django.equeue.transports.memory import MemoryTransport
from enode_django.eventing.event_handlers import EventHandlerGroup
from enode_django.eventing.registry import subscribers
from enode_django.exceptions import PartlyUnavailable, QueueHeld, TransportUnavailable
from enode_django.processors.dead_workers import RETRY_DELAY, DeadWorkers
from enode_django.processors.statistics import Statistics, add_reports
from enode_django.processors.suspects import Hand, Overdue, Patience, Seat, found_with, hands_of
from enode_django.runtime import time_limits

MAILBOX = Seat("g", 10.0)
SUBSCRIBERS = [Seat("a", 10.0), Seat("b", 99.0), Seat("c", inf)]


def test_what_a_dead_worker_was_handling_is_told_by_queue_and_offset() -> None:
    notes = [position_of(3, 41), NOTHING_IN_FLIGHT, position_of(0, 0), position_of(3, 41)]
    seats = [MAILBOX] * 4
    assert found_with(hands_of(notes, seats), seats) == {"g": [(0, 0), (3, 41)]}
    assert found_with(hands_of([NOTHING_IN_FLIGHT], [MAILBOX]), [MAILBOX]) == {}


def test_what_a_dead_event_worker_was_handling_is_told_to_each_group() -> None:
    notes = [position_of(3, 41), 7, NOTHING_IN_FLIGHT, 3, position_of(0, 0), 0]
    assert found_with(hands_of(notes, SUBSCRIBERS), SUBSCRIBERS) == {"a": [(3, 41)], "c": [(0, 0)]}


def test_a_command_is_overdue_only_when_one_mailbox_held_it_all_the_time() -> None:
    patience = Patience([MAILBOX, MAILBOX])

    def overdue(first: int, second: int, now: float) -> Overdue | None:
        return patience.overdue([Hand(first), Hand(second)], now)

    assert overdue(5, 0, 100) is None
    assert overdue(5, 0, 110) is None
    assert overdue(5, 0, 110.1) == Overdue(MAILBOX, 0, 4)
    assert overdue(6, 0, 111) is None
    assert overdue(6, 0, 120) is None
    assert overdue(0, 6, 130) is None
    assert overdue(0, 0, 200) is None


def test_each_stream_of_a_work_has_the_whole_limit_of_its_subscriber() -> None:
    patience, busy = Patience(SUBSCRIBERS), Hand(position_of(2, 8), 1)
    assert patience.overdue([busy, busy, busy], 100) is None
    assert patience.overdue([busy._replace(step=2), busy, busy], 111) is None, "the next stream has begun"
    assert patience.overdue([busy._replace(step=2), busy, busy], 122) == Overdue(SUBSCRIBERS[0], 2, 8)
    assert patience.overdue([Hand(NOTHING_IN_FLIGHT), busy, busy], 1e9) == Overdue(SUBSCRIBERS[1], 2, 8)
    assert patience.overdue([Hand(NOTHING_IN_FLIGHT), Hand(NOTHING_IN_FLIGHT), busy], 2e9) is None, "it has no limit"


class Unreachable(MemoryTransport):
    away = True

    def bury(self, group: str, topic: str, member: str, deaths: Collection[tuple[int, int]] = ()) -> None:
        if self.away:
            raise TransportUnavailable("gone")
        super().bury(group, topic, member, deaths)


def test_the_dead_are_buried_when_the_queue_is_back() -> None:
    transport, now = Unreachable(), 100.0
    transport.create_topic("commands", 2)
    transport.acquire("g", "commands", 1, "w", 60)
    burials = DeadWorkers(transport, "commands", ["g", "h"], clock=lambda: now)
    burials.add("w", {"g": [(1, 5)]})
    burials.tick()
    transport.away = False
    burials.tick()
    with pytest.raises(QueueHeld):
        transport.acquire("g", "commands", 1, "next", 60)
    now += RETRY_DELAY
    burials.tick()
    lease = transport.acquire("g", "commands", 1, "next", 60)
    assert (lease.previous_owner, lease.deaths) == ("w", {5: 1})


class UnreachableForA(MemoryTransport):
    """The server of the group ``a`` is away."""

    def __init__(self) -> None:
        super().__init__()
        self.away = True
        self.told: list[tuple[str, str]] = []

    def bury(self, group: str, topic: str, member: str, deaths: Collection[tuple[int, int]] = ()) -> None:
        if group == "a" and self.away:
            raise PartlyUnavailable("a server is away")
        super().bury(group, topic, member, deaths)
        self.told.append((group, member))


def test_the_dead_are_buried_in_the_other_groups_while_the_server_of_one_is_away(
    caplog: pytest.LogCaptureFixture,
) -> None:
    transport, now = UnreachableForA(), 100.0
    transport.create_topic("events", 1)
    burials = DeadWorkers(transport, "events", ["a", "b"], clock=lambda: now)
    burials.add("w", {})
    burials.tick()
    assert transport.told == [("b", "w")]
    assert "answers again" not in caplog.text
    transport.away = False
    for _ in range(2):
        now += RETRY_DELAY
        burials.tick()
    assert transport.told == [("b", "w"), ("a", "w")]


def test_who_dies_last_is_buried_at_once_in_the_other_groups_while_the_server_of_one_is_away() -> None:
    transport = UnreachableForA()
    transport.create_topic("events", 1)
    burials = DeadWorkers(transport, "events", ["a", "b"], clock=lambda: 100.0)
    for member in ("w", "v"):
        burials.add(member, {})
        burials.tick()  # at a shutdown, no other follows the last death
    assert transport.told == [("b", "w"), ("b", "v")]


def test_a_burial_that_can_never_be_told_keeps_no_other_waiting(caplog: pytest.LogCaptureFixture) -> None:
    transport = MemoryTransport()
    burials = DeadWorkers(transport, "commands", ["g"])
    burials.add("w", {"g": [(1, 5)]})
    burials.add("v", {"g": [(0, 5)]})
    transport.create_topic("commands", 1)
    burials.tick()
    assert "no queue 1" in caplog.text
    assert transport.acquire("g", "commands", 0, "next", 60).deaths == {5: 1}


@pytest.mark.parametrize(
    ("limit", "cores"),
    [
        ("100000 100000", 1), ("50000 100000", 1), ("100000000 100000", None), ("max 100000", None), ("", None),
        ("nonsense", None), ("a b", None),
    ],
)  # fmt: skip
def test_cores_honour_the_quota_of_the_cgroup(tmp_path: Path, limit: str, cores: int | None) -> None:
    file = tmp_path / "cpu.max"
    file.write_text(limit)
    everything = len(os.sched_getaffinity(0))
    assert usable_cores(file) == (everything if cores is None else cores)
    assert usable_cores(tmp_path / "missing") == everything


def test_reports_add_up() -> None:
    one, other = Statistics(), Statistics()
    one.count_batch(5, 1)
    one.count_batch(2, 0)
    one.count_published(6)
    other.count_batch(9, 0)
    total = add_reports([one.report(), other.report(), {"workers": 1}])
    assert (total["finished"], total["batches"], total["largest_batch"]) == (16, 3, 9)
    assert (total["conflicts"], total["published"], total["workers"]) == (1, 6, 1)
    assert total["peak_memory"] >= one.report()["peak_memory"] > 1_000_000
    assert add_reports([]) == {}


def test_reports_add_up_for_each_subscriber() -> None:
    one, other = Statistics(), Statistics()
    one.set_subscriber("a", 3, 1)
    one.set_subscriber("a", 5, 1)
    one.set_subscriber("b", 2, 0)
    other.set_subscriber("b", 4, 2)
    total = add_reports([one.report(), Statistics().report(), other.report()])
    assert (total["handled"], total["parked"]) == (11, 3)
    assert {name: one["handled"] for name, one in total["subscribers"].items()} == {"a": 5, "b": 6}


def test_gauges_are_asked_when_a_report_is_made() -> None:
    statistics = Statistics()
    statistics.gauges["cached_aggregates"] = lambda: cached
    cached = 7
    assert statistics.report()["cached_aggregates"] == 7


def test_subscribers_have_the_limit_of_the_settings_or_one_of_their_own() -> None:
    quick, usual = EventHandlerGroup("quick"), EventHandlerGroup("usual")
    quick.time_limit = 5.0
    with subscribers.only(quick, usual):
        limits = time_limits(make_conf({"SUBSCRIBERS": {"TIME_LIMIT": 70.0}}))
    assert (limits["quick"], limits["usual"]) == (5.0, 70.0)
