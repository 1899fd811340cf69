"""Rows that events change several at a time are rebuilt, compared and checked like others."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from enode_django import DomainEvent, handles
from enode_django.eventing.registry import subscribers
from enode_django.eventing.unparking import retry_parked
from enode_django.exceptions import ProjectionsDiffer, RebuildError
from enode_django.rebuilding import checking
from enode_django.rebuilding.engine import InProcess
from enode_django.rebuilding.rebuild import rebuild
from enode_django.rebuilding.replaying import Replayed, replayer
from enode_django.rebuilding.target import Target
from tests.following.harness import Harness
from tests.following.stays import Booked, Night, Nights, booked, cancelled, found, trouble
from tests.following.test_several_keys import stored
from tests.integration.store_sessions import Call
from tests.rebuilding.conftest import drop_schemas
from tests.rebuilding.histories import follow, nothing

NAME = Nights.name
IDS = [f"s{number}" for number in range(12)]


@pytest.fixture
def hotel(stays: Harness) -> Iterator[Harness]:
    """Stays of three nights each, of which the last was cancelled."""
    with subscribers.only(Nights):
        for number, id in enumerate(IDS):
            stored(stays, id, booked(number, number + 1, number + 2), cancelled(number + 2))
        follow(Nights)
        yield stays
    drop_schemas()


def test_rows_are_rebuilt_without_a_difference(hotel: Harness) -> None:
    before = found()
    assert len(before) == 13
    rebuilt = rebuild(NAME, InProcess(), nothing)
    assert rebuilt.is_swapped
    assert rebuilt.comparison.is_equal
    assert rebuilt.comparison.is_whole
    assert rebuilt.comparison.compared == 12
    assert found() == before
    stored(hotel, "s0", booked(0, 20), after=2)
    follow(Nights)
    assert (found()["h", 1][0], found()["h", 21]) == (2, (1, ["s0"]))


def test_a_wrong_row_among_those_of_an_event_is_reported_by_its_key(hotel: Harness) -> None:
    Night.objects.filter(day="2026-01-02").update(guests=99)
    with pytest.raises(ProjectionsDiffer, match="following_night of h, 2026-01-02: guests: rebuilt 2, in use 99"):
        rebuild(NAME, InProcess(), nothing)


def test_processes_that_meet_in_several_rows_build_them_together(hotel: Harness) -> None:
    """Each replays some of the aggregates into the shadow tables, and one part twice."""
    before = found()
    target = Target.of(NAME)
    record, shadow = target.begin()
    records = [one for id in IDS for one in hotel.store.load(id)]
    parts = [records[:8], records[8:16], records[16:], records[8:16]]

    def replay(part: int) -> Replayed:
        with replayer(shadow) as replaying:
            return replaying.replay(parts[part])

    calls = [Call(lambda part=part: replay(part)) for part in range(4)]
    assert [call.result().aggregates for call in calls] == [4, 4, 4, 4]
    with shadow.opened():
        assert found() == before
    target.abandon(record)


class Doublings(Nights):
    name = "following.doubled_nights"
    abstract = True

    @handles(Booked, creates=True)
    def booked(self, row: Night, event: Booked) -> None:
        row.guests = row.guests * 2 + int(event.aggregate_root_id[1:])


def test_the_sample_finds_handlers_that_depend_on_the_order_of_aggregates(hotel: Harness) -> None:
    with subscribers.only(Doublings), pytest.raises(RebuildError, match="replayed in another order"):
        rebuild(Doublings.name, InProcess(), nothing, accept_differences=True)


def test_an_aggregate_that_fails_in_one_row_is_parked_and_retried_after_the_swap(
    hotel: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checking, "LOOKS", 1)
    before = found()

    def fail(row: Night, event: DomainEvent) -> None:
        if event.aggregate_root_id == "s4" and row.day.day == 6:
            raise RuntimeError("told to fail")

    trouble.happens = fail
    rebuilt: Any = rebuild(NAME, InProcess(), nothing, accept_differences=True, accept_uncompared=True)
    assert rebuilt.replayed.parked == ("s4",)
    assert all("s4" not in stays for _, stays in found().values())
    trouble.happens = lambda row, event: None
    assert retry_parked(hotel.subscription(subscribers.instance(Nights)), "s4") is None
    assert found() == before
