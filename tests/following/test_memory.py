"""An aggregate that is set aside keeps nothing else in memory."""

from __future__ import annotations

import gc
import logging

import pytest

from enode_django.eventing.pending import PendingAggregate
from enode_django.eventing.registry import subscribers
from enode_django.eventing.subscribers import Subscriber
from tests.following.domain import Added, Behaviour, CounterRows, Entries, handler_group
from tests.following.harness import Harness


@pytest.fixture(params=["rows", "entries", "handlers"])
def subscriber(request: pytest.FixtureRequest) -> Subscriber:
    every = [subscribers.instance(CounterRows), subscribers.instance(Entries), handler_group()]
    return next(one for one in every if one.name == f"following.{request.param}")


def test_what_is_set_aside_lets_go_of_its_batch(
    harness: Harness, behaviour: Behaviour, subscriber: Subscriber, caplog: pytest.LogCaptureFixture
) -> None:
    """An exception refers to the frames that it passed, and these to their local variables."""
    caplog.set_level(logging.CRITICAL, logger="enode_django.subscribers")  # captured records would keep the error
    behaviour.failing["c"] = 10
    subscription = harness.subscription(subscriber)
    harness.deliver(subscription, [*harness.stored("c", Added(amount=1)), *harness.stored("mate", Added(amount=1))])
    assert subscription.next_retry is not None
    gc.collect()
    kept = [
        one.aggregate_root_id for one in gc.get_objects() if type(one) is PendingAggregate
    ]  # isinstance() would raise for a dead proxy
    assert "mate" not in kept
