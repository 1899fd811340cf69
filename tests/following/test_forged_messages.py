"""Forged messages of the events topic have the effects that the page on threats names."""

from __future__ import annotations

from enode_django.eventing.registry import subscribers
from tests.following.domain import Added, CounterRows, Opened
from tests.following.harness import Harness, stream_of


def test_the_next_version_is_believed_and_the_real_one_counts_as_handled(harness: Harness) -> None:
    subscription = harness.subscription(subscribers.instance(CounterRows))
    harness.deliver(subscription, harness.stored("c", Opened(owner="ann")))
    harness.deliver(subscription, [stream_of("c", 2, [Added(amount=1_000)])])
    assert harness.rows() == {"c": ("ann", 1_000, 2)}
    assert [record.version for record in harness.store.load("c")] == [1]
    harness.deliver(subscription, harness.stored("c", Added(amount=3), after=1))
    assert harness.rows() == {"c": ("ann", 1_000, 2)}


def test_a_later_version_is_held_against_the_store(harness: Harness) -> None:
    subscription = harness.subscription(subscribers.instance(CounterRows))
    harness.deliver(subscription, harness.stored("c", Opened(owner="ann")))
    harness.deliver(subscription, [stream_of("c", 9, [Added(amount=1_000)])])
    assert harness.rows() == {"c": ("ann", 0, 1)}
