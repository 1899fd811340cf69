"""Only errors that a retry can resolve are retried without limit."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TypeVar

import pytest
from django.db import connection

from enode_django.concurrency import backoff
from enode_django.concurrency.outages import outages
from enode_django.eventing.registry import subscribers
from enode_django.exceptions import EnodeError, Retry, StoreUnavailable
from tests.following.domain import Added, Behaviour, CounterRows, Entries, Opened
from tests.following.harness import Harness
from tests.following.test_sweeping import Sweep
from tests.rebuilding.tables import sql

Value = TypeVar("Value")


def three_times(call: Callable[[], Value]) -> Value:
    for _ in range(2):
        try:
            return call()
        except EnodeError as error:
            if not error.retriable:
                raise
    return call()


def test_a_handler_that_uses_a_closed_cursor_parks_its_aggregate(
    harness: Harness, behaviour: Behaviour, monkeypatch: pytest.MonkeyPatch
) -> None:
    def handle(event: Added) -> None:
        with connection.cursor() as cursor:
            cursor.execute("SELECT 1")
        cursor.fetchone()

    monkeypatch.setattr(behaviour, "handle", handle)
    subscription = harness.subscription(subscribers.instance(Entries), attempts=1, persist=three_times)
    harness.deliver(subscription, harness.stored("c", Added(amount=1)))
    assert [parked.error_type for parked in harness.parked("following.entries")] == ["InterfaceError"]


def test_a_handler_that_wants_to_be_called_again_is_no_outage_of_the_subscriber(
    harness: Harness, behaviour: Behaviour, monkeypatch: pytest.MonkeyPatch
) -> None:
    def handle(event: Added) -> None:
        raise Retry

    monkeypatch.setattr(behaviour, "handle", handle)
    subscription = harness.subscription(subscribers.instance(Entries), attempts=1, persist=three_times)
    harness.deliver(subscription, harness.stored("c", Added(amount=1)))
    assert subscription.next_retry == harness.clock.now + 1.0
    assert harness.parked("following.entries") == []


def test_a_handler_that_executes_what_no_session_has_prepared_holds_up_its_own_aggregate_alone(
    harness: Harness, behaviour: Behaviour, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its error passes if a pooler has changed the session, so it is tried again for a minute before it is parked."""

    def handle(event: Added) -> None:
        if event.aggregate_root_id == "c":
            sql("EXECUTE unknown")

    monkeypatch.setattr(behaviour, "handle", handle)
    subscription = harness.subscription(subscribers.instance(Entries), attempts=1, persist=three_times)
    harness.deliver(subscription, [*harness.stored("c", Added(amount=1)), *harness.stored("d", Added(amount=1))])
    assert harness.entries("d") == [(1, 1)]
    while subscription.next_retry is not None:
        harness.clock.now = subscription.next_retry
        subscription.retry_due()
    assert [(one.aggregate_root_id, one.attempts) for one in harness.parked("following.entries")] == [("c", 7)]


def test_a_subscriber_that_lacked_a_column_is_said_to_go_on(
    harness: Harness, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Its database has answered all the time."""

    def migrate(seconds: float) -> None:
        sql("ALTER TABLE following_counterrow RENAME later TO total")

    outages.forget()
    monkeypatch.setattr(backoff, "pause", migrate)
    subscription = harness.subscription(subscribers.instance(CounterRows), persist=backoff.within(60.0))
    sql("ALTER TABLE following_counterrow RENAME total TO later")
    harness.deliver(subscription, harness.stored("c", Opened(owner="ann"), Added(amount=1)))
    begun, ended = (one.getMessage() for one in caplog.records if one.name == "enode_django.outages")
    assert re.match(r"following.rows cannot go on: column .*total.* does not exist .*; run manage.py migrate", begun)
    assert ended.startswith("following.rows goes on, after 1 failed tries of up to 1 callers in ")
    assert harness.rows() == {"c": ("ann", 1, 2)}


def test_a_sweep_goes_on_where_the_store_was_away(
    harness: Harness, behaviour: Behaviour, monkeypatch: pytest.MonkeyPatch
) -> None:
    harness.stored("c", Added(amount=1))
    sweep = Sweep(harness, subscribers.instance(Entries))
    monkeypatch.setattr(sweep.subscription.runner, "_persist", three_times)
    settled = harness.store.settled

    def away_once(*arguments: int, **options: int) -> object:
        monkeypatch.setattr(harness.store, "settled", settled)
        raise StoreUnavailable("away")

    monkeypatch.setattr(harness.store, "settled", away_once)
    sweep.run(10)
    assert behaviour.calls == ["c/1/0"]
