"""If a handler creates rows, no other event makes a row or brings a deleted one back."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import count

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import given as given_by
from hypothesis import strategies as st

from enode_django import DomainEvent, ModelProjection, handles
from enode_django.eventing.code import rows_fingerprint
from enode_django.eventing.registry import subscribers
from enode_django.eventing.unparking import retry_parked, skip_parked
from enode_django.rebuilding.engine import InProcess
from enode_django.rebuilding.rebuild import rebuild, undo
from enode_django.testing import given
from tests.following.domain import Added, Behaviour, Closed, Noted, Opened, Opening, Openings
from tests.following.harness import Harness
from tests.rebuilding.conftest import drop_schemas
from tests.rebuilding.histories import follow, nothing

History = list[list[list[DomainEvent]]]
"""Batches of streams of events."""

events = st.sampled_from([Added(amount=1), Added(amount=20), Closed(), Noted(), Opened(owner="x"), Opened(owner="y")])
histories = st.lists(st.lists(st.lists(events, min_size=1, max_size=3), min_size=1, max_size=3), max_size=4)


@pytest.fixture
def openings(harness: Harness) -> Iterator[Harness]:
    with subscribers.only(Openings):
        yield harness
    drop_schemas()


def expected(happened: Iterable[DomainEvent]) -> tuple[str, int] | None:
    """Return the owner and the total that the row must have, or None if there must be no row."""
    row: tuple[str, int] | None = None
    for event in happened:
        if isinstance(event, Opened):
            row = (event.owner, row[1] if row else 0)
        elif isinstance(event, Added) and row:
            row = (row[0], row[1] + event.amount)
        elif isinstance(event, Closed):
            row = None
    return row


def rows() -> dict[str, tuple[str, int, int]]:
    return {row.pk: (row.owner, row.total, row.version) for row in Opening.objects.all()}


def in_scenario(happened: Sequence[DomainEvent]) -> tuple[str, int] | None:
    row = given(Openings, "scenario", *happened).row
    return row and (row.owner, row.total)


def test_any_split_of_any_history_gives_the_same_rows_and_so_does_a_rebuild(openings: Harness) -> None:
    numbers, known = count(), dict[str, tuple[str, int, int]]()
    subscription = openings.subscription(subscribers.instance(Openings))

    @settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
    @given_by(histories)
    def check(batches: History) -> None:
        id, version = f"c{next(numbers)}", 0
        for batch in batches:
            records = openings.stored(id, *batch, after=version)
            openings.deliver(subscription, records)
            openings.deliver(subscription, records[-1:])  # the last message comes a second time
            version += len(batch)
        happened = [event for batch in batches for stream in batch for event in stream]
        row = expected(happened)
        if row is not None:
            known[id] = (*row, version)
        assert rows().get(id) == known.get(id)
        assert in_scenario(happened) == row

    check()
    rebuilt = rebuild(Openings.name, InProcess(), nothing)
    assert rebuilt.comparison.is_equal
    assert rows() == known
    follow(Openings)
    undo(Openings.name, InProcess(), nothing)
    assert rows() == known


def test_events_of_several_commands_in_one_batch_delete_a_row_and_make_a_new_one(openings: Harness) -> None:
    subscription = openings.subscription(subscribers.instance(Openings))
    openings.deliver(subscription, openings.stored("c", Opened(owner="old"), Added(amount=5)))
    more = openings.stored("c", Closed(), Added(amount=7), [Opened(owner="new"), Added(amount=1)], after=2)
    openings.deliver(subscription, more)
    assert rows() == {"c": ("new", 1, 5)}


def test_events_behind_a_parked_creation_wait_for_it(openings: Harness, behaviour: Behaviour) -> None:
    behaviour.failing["c"] = 1
    subscriber = subscribers.instance(Openings)
    subscription = openings.subscription(subscriber, attempts=1)
    openings.deliver(subscription, openings.stored("c", Opened(owner="x"), Added(amount=5)))
    openings.deliver(subscription, openings.stored("c", Added(amount=2), after=2))
    assert (rows(), len(openings.parked(subscriber.name))) == ({}, 1)
    retry_parked(subscription, "c")
    assert rows() == {"c": ("x", 7, 3)}


def test_a_creation_that_is_skipped_makes_no_row_and_neither_does_what_comes_after_it(
    openings: Harness, behaviour: Behaviour
) -> None:
    behaviour.failing["c"] = 1
    subscription = openings.subscription(subscribers.instance(Openings), attempts=1)
    openings.deliver(subscription, openings.stored("c", Opened(owner="x"), Added(amount=5)))
    skip_parked(subscription, "c")
    assert rows() == {}
    openings.deliver(subscription, openings.stored("c", Opened(owner="y"), Added(amount=2), after=2))
    assert rows() == {"c": ("y", 2, 4)}


def test_which_handlers_create_rows_belongs_to_the_fingerprint_of_the_code() -> None:
    def declared(creates: bool) -> type[ModelProjection[Opening]]:
        class Rows(ModelProjection[Opening]):
            abstract = True
            name = "following.fingerprints"

            @handles(creates=creates)
            def opened(self, row: Opening, event: Opened) -> None: ...

        return Rows

    assert rows_fingerprint(declared(True)()) != rows_fingerprint(declared(False)())
