"""How often a subscriber waits for its database to handle one event: round trips are most of the time that it takes."""

from __future__ import annotations

from typing import Any

import pytest

from enode_django.eventing.registry import subscribers
from tests.following.domain import Added, Behaviour, CounterRows, Entries, handler_group
from tests.following.harness import Harness
from tests.integration.exchanges import exchanges


@pytest.mark.parametrize(
    ("kind", "most"),
    [
        # begin, lock and read, write, commit
        (CounterRows, 4),
        # begin, lock and read, insert, move the checkpoint, commit
        (Entries, 5),
        # read, begin, move the checkpoint, commit
        (None, 4),
    ],
    ids=["ModelProjection", "Projection", "event handlers"],
)
def test_an_event_of_a_known_aggregate(harness: Harness, behaviour: Behaviour, kind: Any, most: int) -> None:
    subscriber = handler_group() if kind is None else subscribers.instance(kind)
    subscription = harness.subscription(subscriber)
    first, second = harness.stored("c", Added(amount=1), Added(amount=2))
    harness.deliver(subscription, [first])
    with exchanges() as counted:
        harness.deliver(subscription, [second])
    assert counted == [most]
