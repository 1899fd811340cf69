"""Events that change several rows: all of them exactly once, or none."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from datetime import date
from itertools import pairwise
from typing import Any

import pytest
from django.db import models
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from enode_django import DomainEvent, MultiProjection, WaitFor, execute_command, handles
from enode_django.conf.groups import IMMEDIATE
from enode_django.eventing import checkpoints
from enode_django.eventing.event_keys import MOST_KEYS
from enode_django.eventing.event_subscription import EventSubscription
from enode_django.eventing.multi_processor import MultiProcessor
from enode_django.eventing.registry import subscribers
from enode_django.eventing.unparking import retry_parked
from enode_django.eventstore.base import StreamRecord
from enode_django.ids import new_id
from enode_django.runtime import close_bus
from tests.following.harness import Harness, shuffled, stream_of
from tests.following.stays import Book, Booked, Night, Nights, Rated, Stay, booked, cancelled, found, nights, trouble
from tests.following.test_multi_projections import in_threads

NAME = Nights.name


def following(harness: Harness, cls: type[Any] = Nights, **options: Any) -> EventSubscription:
    return harness.subscription(subscribers.instance(cls), **options)


def stored(harness: Harness, id: str, *events: DomainEvent, after: int = 0) -> list[StreamRecord]:
    records = [stream_of(id, version, [event], Stay) for version, event in enumerate(events, after + 1)]
    harness.store.append(records)
    return records


def test_an_event_changes_the_row_of_each_of_its_keys_once(stays: Harness) -> None:
    records = [
        *stored(stays, "a", booked(0, 1, 2), cancelled(2)),
        *stored(stays, "b", booked(1, 2), booked(0, hotel="i"), Rated(hotel="h", day=1)),
    ]
    stays.deliver(following(stays), records)
    stays.deliver(following(stays), records)
    assert found() == {("h", 1): (1, ["a"]), ("h", 2): (2, ["a", "b"]), ("h", 3): (1, ["b"]), ("i", 1): (1, ["b"])}
    assert Night.objects.get(hotel="h", day=date(2026, 1, 2)).ratings == 1
    assert (stays.checkpoint(NAME, "a"), stays.checkpoint(NAME, "b")) == (2, 3)


def test_an_event_without_keys_changes_no_row_and_is_handled(stays: Harness) -> None:
    stays.deliver(following(stays), stored(stays, "a", booked(), booked(3)))
    assert found() == {("h", 4): (1, ["a"])}
    assert stays.checkpoint(NAME, "a") == 2


def test_a_key_that_comes_twice_is_taken_once(stays: Harness) -> None:
    stays.deliver(following(stays), stored(stays, "a", booked(1, 0, 1)))
    assert found() == {("h", 1): (1, ["a"]), ("h", 2): (1, ["a"])}


def test_rows_are_created_by_creating_handlers_only_and_deleted_one_by_one(stays: Harness) -> None:
    subscription = following(stays)
    stays.deliver(subscription, stored(stays, "a", booked(1, 2), cancelled(2, 3), cancelled(2)))
    assert found() == {("h", 2): (1, ["a"])}
    stays.deliver(subscription, stored(stays, "a", cancelled(1), booked(3), after=3))
    assert found() == {("h", 4): (1, ["a"])}


def test_a_handler_that_fails_for_one_key_leaves_all_rows_of_the_event_as_they_were(stays: Harness) -> None:
    def fail(row: Night, event: DomainEvent) -> None:
        if event.aggregate_root_id == "b" and event.version == 2 and row.day.day == 3:
            raise RuntimeError("told to fail")

    trouble.happens = fail
    subscription = following(stays, attempts=1)
    records = [one for id in "abc" for one in stored(stays, id, booked(0, 1), booked(1, 2, 3), booked(9))]
    stays.deliver(subscription, records)
    assert [(one.aggregate_root_id, one.version) for one in stays.parked(NAME)] == [("b", 2)]
    assert stays.checkpoint(NAME, "b") == 1
    assert found() == {
        ("h", 1): (3, ["a", "b", "c"]),
        ("h", 2): (5, ["a", "b", "c"]),
        ("h", 3): (2, ["a", "c"]),
        ("h", 4): (2, ["a", "c"]),
        ("h", 10): (2, ["a", "c"]),
    }
    trouble.happens = lambda row, event: None
    assert retry_parked(subscription, "b") is None
    stays.deliver(subscription, records)
    assert {key: guests for key, (guests, _) in found().items()} == {
        ("h", 1): 3,
        ("h", 2): 6,
        ("h", 3): 3,
        ("h", 4): 3,
        ("h", 10): 3,
    }
    assert stays.parked(NAME) == []


def test_an_event_that_is_delivered_many_times_in_any_order_counts_once(stays: Harness) -> None:
    records = [one for id in "abc" for one in stored(stays, id, booked(0, 1, 2), cancelled(0, 1), booked(1))]
    for seed in range(3):
        subscription = following(stays)
        for record in shuffled(records, seed):
            stays.deliver(subscription, [record])
    assert {key: guests for key, (guests, _) in found().items()} == {("h", 2): 3, ("h", 3): 3}


# -- what are no keys -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("keys", "text"),
    [
        (lambda event: event.hotel, r"keys returns 'h' for .*; let it return a list of keys"),
        (lambda event: None, "keys returns None for .*; let it return a list of keys"),
        (lambda event: [*nights(event), None], "leave None out, which is the key of no row"),
        (
            lambda event: (event.hotel, date(2026, 1, 1)),
            "the key 'h' must be a tuple with a value for each of hotel, day",
        ),
        (lambda event: [("h", None)], "must be a tuple with a value for each of hotel, day"),
        (lambda event: [("h", "no day")], "does not fit following.Night.day"),
        (lambda event: iter(lambda: ("h", date(2026, 1, 1)), None), "keys returns more than 1,000 keys for"),
    ],
)
def test_what_are_no_keys_parks_the_aggregate(stays: Harness, keys: Callable[[Any], Any], text: str) -> None:
    class Wrong(MultiProjection[Night]):
        name = "following.wrong_nights"
        abstract = True
        key_field = ("hotel", "day")

        @handles(keys=keys)
        def booked(self, row: Night, event: Booked) -> None: ...

    stays.deliver(following(stays, Wrong, attempts=1), stored(stays, "a", booked(1)))
    with pytest.raises(AssertionError, match=text):
        raise AssertionError(stays.parked(Wrong.name)[0].error)
    assert found() == {}


def test_an_event_has_up_to_so_many_keys(stays: Harness) -> None:
    subscription = following(stays, attempts=1)
    stays.deliver(subscription, stored(stays, "a", booked(*range(MOST_KEYS))))
    assert Night.objects.aggregate(models.Sum("guests"))["guests__sum"] == MOST_KEYS
    stays.deliver(subscription, stored(stays, "b", booked(*range(MOST_KEYS + 1))))
    assert [one.aggregate_root_id for one in stays.parked(NAME)] == ["b"]
    assert Night.objects.aggregate(models.Sum("guests"))["guests__sum"] == MOST_KEYS


def test_batches_have_fewer_events_while_these_have_many_rows(stays: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MultiProcessor, "rows_at_once", 40)
    subscription = following(stays)
    processor = subscription.runner.processor
    stays.deliver(subscription, [one for id in "ab" for one in stored(stays, id, booked(*range(20), hotel=id))])
    assert processor.limit == 2
    stays.deliver(subscription, stored(stays, "c", booked(1)))
    assert processor.limit == 8, "at most fourfold at a time"


# -- any split --------------------------------------------------------------------------------------------------------

DAYS = st.lists(st.integers(0, 3), max_size=4)
EVENTS = st.one_of(
    st.builds(lambda days: booked(*days), DAYS),
    st.builds(lambda days: cancelled(*days), DAYS),
    st.builds(lambda day: Rated(hotel="h", day=day), st.integers(0, 3)),
)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(history=st.lists(EVENTS, min_size=2, max_size=12), cuts=st.sets(st.integers(1, 11)))
def test_any_split_of_a_history_into_batches_gives_the_same_rows(
    stays: Harness, history: list[DomainEvent], cuts: set[int]
) -> None:
    """Rows of one aggregate are made, deleted and made again, several by one event."""
    rows = []
    for places in [[0, len(history)], sorted({0, len(history), *(cut for cut in cuts if cut < len(history))})]:
        Night.objects.all().delete()
        subscription = following(stays)
        id = new_id()  # an aggregate of its own: nothing of it is handled
        records = [stream_of(id, version, [event], Stay) for version, event in enumerate(history, 1)]
        for start, end in pairwise(places):
            stays.deliver(subscription, records[start:end])
        assert stays.checkpoint(NAME, id) == len(history)
        rows.append(sorted(Night.objects.values_list("day", "guests", "ratings")))
    assert rows[0] == rows[1]


# -- at the same time -------------------------------------------------------------------------------------------------


def test_workers_whose_events_meet_in_several_rows_lose_nothing_and_do_not_deadlock(stays: Harness) -> None:
    """Each event names the same ten nights, in an order of its own. All rows are new. A deadlock would raise."""
    ids = [f"s{number}" for number in range(30)]
    records = {
        id: stored(stays, id, *[booked(*(days if place % 2 else reversed(days))) for place in range(3)])
        for number, id in enumerate(ids)
        for days in [[(number * 7 + day * 3) % 10 for day in range(10)]]
    }
    checkpoints.make("default", NAME, ids)

    def work(some: Sequence[str]) -> None:
        harness = Harness()
        subscription = following(harness)
        for start in range(0, len(some), 3):
            harness.deliver(subscription, [one for id in some[start : start + 3] for one in records[id]])

    in_threads(lambda: work(ids[:20]), lambda: work(ids[:9:-1]), lambda: work(ids[5:25]))
    assert found() == {("h", day): (90, sorted(ids)) for day in range(1, 11)}


def test_counts_of_workers_are_those_of_one_worker(stays: Harness) -> None:
    """Random histories of several aggregates, which three workers handle, each in another order."""
    events = [booked(0, 1), booked(2), cancelled(1), booked(1, 3, 4), cancelled(0, 2)]
    records = [
        one for number in range(12) for one in stored(stays, f"s{number}", *events[number % 5 :], *events[: number % 5])
    ]
    expected: Counter[int] = Counter()
    for event in events * 12:
        expected.update(dict.fromkeys(event.days, 1 if isinstance(event, Booked) else -1))

    class Kept(Nights):
        """A night whose first event is a cancellation has a row, too, and none is deleted: the order is any."""

        name = "following.kept_nights"
        abstract = True

        @handles(Booked)
        def booked(self, row: Night, event: Booked) -> None:
            row.guests += event.guests

        def cancelled(self, row: Night, event: Any) -> None:
            row.guests -= event.guests

    def work(seed: int) -> None:
        harness = Harness()
        subscription = following(harness, Kept)
        mixed = shuffled(records, seed)
        for start in range(0, len(mixed), 7):
            harness.deliver(subscription, mixed[start : start + 7])

    checkpoints.make("default", Kept.name, [f"s{number}" for number in range(12)])
    in_threads(*(lambda seed=seed: work(seed) for seed in range(3)))  # type: ignore[misc]
    rows = {row.day.day - 1: row.guests for row in Night.objects.all()}
    assert rows == expected


# -- immediate mode ---------------------------------------------------------------------------------------------------


def test_in_immediate_mode_a_command_waits_for_all_rows_of_its_event(stays: Harness, settings: Any) -> None:
    settings.ENODE = {"QUEUE": {"BACKEND": IMMEDIATE}}
    close_bus()
    with subscribers.only(Nights):
        execute_command(Book("a", hotel="h", nights=3), wait_for=WaitFor.subscriber(Nights))
    close_bus()
    assert found() == {("h", day): (1, ["a"]) for day in (1, 2, 3)}
