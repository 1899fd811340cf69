"""A worker that passes over a parked aggregate, and a retry that unparks it, wait for each other."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import pytest
from django.db import connection, connections

from enode_django.eventing import parking
from enode_django.eventing.parking import Parked
from enode_django.eventing.registry import subscribers
from enode_django.eventing.subscribers import Subscriber
from enode_django.eventing.unparking import retry_parked
from tests.following.domain import Added, Behaviour, CounterRows, Entries, Kindness, TooMuch, handler_group
from tests.following.harness import Harness


@pytest.fixture(params=["rows", "entries", "handlers"])
def subscriber(request: pytest.FixtureRequest) -> Subscriber:
    every = [subscribers.instance(CounterRows), subscribers.instance(Entries), handler_group()]
    return next(one for one in every if one.name == f"following.{request.param}")


def wait_for_a_lock(worker: Future[None]) -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and not worker.done():
        with connection.cursor() as cursor:
            cursor.execute("SELECT count(*) FROM pg_locks WHERE pg_backend_pid() = ANY(pg_blocking_pids(pid))")
            if cursor.fetchone()[0]:
                return
    pytest.fail("the worker did not wait")


def and_disconnect(call: Callable[[], None]) -> None:
    try:
        call()
    finally:
        connections.close_all()


def retry_while(
    harness: Harness, subscriber: Subscriber, monkeypatch: pytest.MonkeyPatch, work: Callable[[], None]
) -> None:
    """Retry the aggregate "c", and begin ``work`` in another thread when the retry has read the store for the last
    time."""
    release = parking.release
    with ThreadPoolExecutor(1) as pool:

        def release_late(alias: str, rows: Sequence[Parked], is_behind: Callable[[], bool]) -> bool:
            def is_behind_and_late() -> bool:
                behind = is_behind()
                workers.append(pool.submit(and_disconnect, work))
                wait_for_a_lock(workers[0])
                return behind

            return release(alias, rows, is_behind_and_late)

        workers: list[Future[None]] = []
        monkeypatch.setattr(parking, "release", release_late)
        assert retry_parked(harness.subscription(subscriber), "c") is None
        workers[0].result(60)
    assert harness.parked(subscriber.name) == []
    assert not harness.window.unfinished


def test_an_event_that_comes_as_a_retry_ends_is_handled(
    harness: Harness, behaviour: Behaviour, subscriber: Subscriber, monkeypatch: pytest.MonkeyPatch
) -> None:
    behaviour.failing["c"] = 1
    harness.deliver(harness.subscription(subscriber, attempts=1), harness.stored("c", Added(amount=1)))
    retry_while(
        harness,
        subscriber,
        monkeypatch,
        lambda: harness.deliver(harness.subscription(subscriber), harness.stored("c", Added(amount=2), after=1)),
    )
    assert [call for call in behaviour.calls if call != "second"] == ["c/1/0", "c/2/0"]


def test_a_refusal_that_comes_as_a_retry_ends_is_handled(
    harness: Harness, behaviour: Behaviour, monkeypatch: pytest.MonkeyPatch
) -> None:
    subscriber = subscribers.instance(Kindness)
    behaviour.failing["c"] = 1
    harness.deliver(harness.subscription(subscriber, attempts=1), [harness.refused("c", TooMuch("no", amount=1))])
    retry_while(
        harness,
        subscriber,
        monkeypatch,
        lambda: harness.deliver(harness.subscription(subscriber), [harness.refused("c", TooMuch("no", amount=2))]),
    )
    assert [command.amount for command in harness.sent] == [1, 2]  # type: ignore[attr-defined]
