"""A new projection is built by a rebuild: minutes for a large store, where one sweeping worker takes hours."""

from __future__ import annotations

import pytest

from enode_django.eventing.registry import subscribers
from enode_django.eventing.subscribers import Subscriber
from enode_django.rebuilding.engine import InProcess
from enode_django.rebuilding.rebuild import rebuild
from tests.following.domain import Added, CounterRows, Entries, Opened
from tests.following.harness import Harness


def nothing(stage: str, **figures: object) -> None: ...


def see(harness: Harness, cls: type[Subscriber]) -> object:
    return harness.rows() if cls is CounterRows else harness.entries("a")


@pytest.mark.parametrize("cls", [CounterRows, Entries])
def test_a_projection_that_never_ran_is_built_and_swapped_in(projections: Harness, cls: type[Subscriber]) -> None:
    projections.stored("a", Opened(owner="Ada"), Added(amount=10))
    projections.stored("b", Opened(owner="Bob"))
    rebuilt = rebuild(cls.name, InProcess(), nothing)
    assert rebuilt.is_swapped
    assert (rebuilt.replayed.streams, rebuilt.replayed.aggregates) == (3, 2)
    assert see(projections, cls) == ({"a": ("Ada", 10, 2), "b": ("Bob", 0, 1)} if cls is CounterRows else [(2, 10)])


@pytest.mark.parametrize("cls", [CounterRows, Entries])
def test_event_workers_that_start_afterwards_go_on_from_there(projections: Harness, cls: type[Subscriber]) -> None:
    projections.stored("a", Opened(owner="Ada"), Added(amount=10))
    rebuild(cls.name, InProcess(), nothing)
    before = see(projections, cls)
    subscription = projections.subscription(subscribers.instance(cls))
    projections.deliver(subscription, projections.stored("a", Added(amount=5), after=2))
    assert see(projections, cls) != before
    from enode_django.runtime import replay

    assert replay(cls.name) == {cls.name: 0}, "nothing was missing"
