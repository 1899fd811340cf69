"""A rebuild swaps tables between a failure and its parking, or during a retry."""

from __future__ import annotations

import logging
from collections.abc import Callable

import pytest
from django.db import transaction

from enode_django.eventing import checkpoints
from enode_django.eventing.registry import subscribers
from enode_django.eventing.unparking import retry_parked
from tests.following.domain import Added, Behaviour, CounterRow, CounterRows, Entries
from tests.following.harness import Harness


class WhenLogged(logging.Handler):
    """Calls ``action`` once, when a message with ``text`` is logged."""

    def __init__(self, text: str, action: Callable[[], None]) -> None:
        super().__init__()
        self._text = text
        self._actions = [action]

    def emit(self, record: logging.LogRecord) -> None:
        if self._text in record.getMessage() and self._actions:
            self._actions.pop()()


def test_nothing_is_parked_that_the_new_tables_have_handled(harness: Harness, behaviour: Behaviour) -> None:
    subscriber = subscribers.instance(Entries)
    subscription = harness.subscription(subscriber, attempts=1)
    records = harness.stored("c", Added(amount=1), Added(amount=2))
    behaviour.failing["c"] = 1
    swap = WhenLogged("failed at version 1", lambda: checkpoints.save("default", subscriber.name, {"c": 1}))
    logger = logging.getLogger("enode_django.subscribers")
    logger.addHandler(swap)
    try:
        harness.deliver(subscription, records)
    finally:
        logger.removeHandler(swap)
    assert not harness.parked(subscriber.name)
    assert behaviour.calls == ["c/2/0"]
    assert harness.window.unfinished == 0


def test_what_the_new_tables_have_not_handled_stays_parked_until_it_is(
    harness: Harness, behaviour: Behaviour, monkeypatch: pytest.MonkeyPatch
) -> None:
    subscriber = subscribers.instance(CounterRows)
    subscription = harness.subscription(subscriber, attempts=1)
    behaviour.failing["c"] = 1
    harness.deliver(subscription, harness.stored("c", Added(amount=1), Added(amount=2)))
    assert harness.parked(subscriber.name)
    handle, swaps = behaviour.handle, [CounterRow.objects.filter(pk="c").delete]

    def handled(event: Added) -> None:
        handle(event)
        if swaps:
            transaction.on_commit(swaps.pop())

    monkeypatch.setattr(behaviour, "handle", handled)
    assert retry_parked(subscription, "c") is None
    assert harness.rows() == {"c": ("", 3, 2)}
