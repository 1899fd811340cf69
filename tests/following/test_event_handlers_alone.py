"""An event handler follows alone unless it names a group: a failing handler neither stops nor repeats another one."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from django.db import connection, transaction

from enode_django import event_handler
from enode_django.eventing import event_handlers
from enode_django.eventing.event_subscription import EventSubscription
from tests.following.domain import Added, Opened
from tests.following.harness import Harness

calls: list[str] = []


@pytest.fixture(autouse=True)
def forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_handlers, "_groups", {})
    calls.clear()


def declare(*, group: str = "") -> None:
    """Declare a handler that sends mails, and a webhook that always fails."""

    @event_handler(name="following.mail", group=group, start="beginning")
    def mail(event: Added | Opened) -> None:
        calls.append(f"mail {event.id}")

    @event_handler(name="following.webhook", group=group, start="beginning")
    def webhook(event: Added) -> None:
        raise ConnectionRefusedError("nobody listens")


def follow_and_try_again(harness: Harness) -> Sequence[EventSubscription]:
    """Deliver two events to each handler group, and retry due events three times. Return the subscriptions."""
    subscriptions = [harness.subscription(group, attempts=2) for group in event_handlers.handler_groups()]
    records = harness.stored("c", Added(amount=1), Opened(owner="x"))
    for subscription in subscriptions:
        subscription.handle([harness.pulled(records)])
    for _ in range(3):
        harness.clock.now += 100
        for subscription in subscriptions:
            subscription.retry_due()
    return subscriptions


def test_a_webhook_that_fails_neither_blocks_another_handler_nor_calls_it_again(harness: Harness) -> None:
    declare()
    mail, webhook = follow_and_try_again(harness)
    assert calls == ["mail c/1/0", "mail c/2/0"]
    assert (mail.held_in(harness.window), webhook.held_in(harness.window)) == (0, 2)
    assert harness.checkpoint("following.mail", "c") == 2
    assert harness.checkpoint("following.webhook", "c") is None


def test_handlers_of_one_group_wait_for_each_other(harness: Harness) -> None:
    declare(group="event_handlers")
    (both,) = follow_and_try_again(harness)
    assert calls == ["mail c/1/0"] * 4
    assert both.held_in(harness.window) == 2
    assert harness.checkpoint("event_handlers", "c") is None


def test_a_handler_that_leaves_autocommit_off_is_not_called_again_and_holds_no_lock(
    harness: Harness, caplog: pytest.LogCaptureFixture
) -> None:
    """Else its checkpoint would be part of a transaction that nobody ends."""

    @event_handler(name="following.careless", start="beginning")
    def careless(event: Added) -> None:
        transaction.set_autocommit(False)
        calls.append(event.id)

    (subscription,) = [harness.subscription(group) for group in event_handlers.handler_groups()]
    records = harness.stored("c", Added(amount=1))
    for _ in range(2):
        subscription.handle([harness.pulled(records)])
    connection.close()
    assert calls == ["c/1/0"]
    assert harness.checkpoint("following.careless", "c") == 1
    assert "use transaction.atomic() instead" in caplog.text
