"""Several workers at work on the processes of one process manager at once."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from functools import partial
from typing import Any, cast

import pytest
from django.db import connection, transaction
from django.db.models.functions import Now

from enode_django.concurrency.in_flight import NOTHING_IN_FLIGHT, InFlightMarker
from enode_django.eventing import process_rows
from enode_django.eventing.in_flight import InFlight
from enode_django.eventing.registry import subscribers
from enode_django.eventstore.base import StreamRecord
from enode_django.models import ProcessState
from tests.following.harness import Harness
from tests.following.processes import Finished, Paid, Placed, Sales
from tests.following.test_processes import order, payment, row, state, subscription
from tests.integration.store_sessions import wait_until
from tests.outbox.harness import another_thread, holds_somebody_up


def test_two_workers_with_events_of_one_key_lose_none(harness: Harness) -> None:
    """Each aggregate has a payment for each of two orders, and the workers go through them in opposite directions."""
    harness.deliver(
        subscription(harness), [r for key in ("o1", "o2") for r in order(harness, key, Placed(price=10**9))]
    )
    records = [
        payment(harness, f"p{n:02}", *(Paid(order=f"o{1 + (n + m) % 2}", amount=1) for m in range(4)))
        for n in range(20)
    ]
    barrier = threading.Barrier(2)

    def work(some: Sequence[list[StreamRecord]]) -> None:
        own = Harness()
        going = subscription(own)
        barrier.wait(60)
        for start in range(0, len(some), 3):
            own.deliver(going, [r for one in some[start : start + 3] for r in one])

    with ThreadPoolExecutor(2) as pool:
        for one in [pool.submit(_and_disconnect, partial(work, some)) for some in (records, records[::-1])]:
            one.result(60)
    for key in ("o1", "o2"):
        payments = cast("list[str]", state(key)["payments"])
        assert (state(key)["paid"], len(set(payments)), row(key).version) == (40, 40, 41)
        for n in range(20):  # in order for each aggregate
            of_one = [one for one in payments if one.startswith(f"p{n:02}")]
            assert of_one == sorted(of_one)


@pytest.mark.parametrize("are_there", [True, False])
def test_a_worker_that_waits_for_a_process_keeps_no_later_one_locked(harness: Harness, are_there: bool) -> None:
    """So workers never wait for each other in a circle. A batch names its keys in any order."""
    keys = [f"o{number:02}" for number in range(20)]

    def lock(some: Sequence[str]) -> None:
        with transaction.atomic():
            process_rows.lock("default", Sales.name, some)

    if are_there:
        lock(keys)
    with another_thread() as elsewhere:
        with transaction.atomic():
            process_rows.lock("default", Sales.name, keys[:1])
            locking = elsewhere(lambda: lock(keys[::-1]))
            wait_until(holds_somebody_up)
            connection.cursor().execute("SET LOCAL lock_timeout = 200")
            process_rows.lock("default", Sales.name, keys)  # nobody has to be waited for
        locking.result(60)


def _and_disconnect(call: Callable[[], object]) -> None:
    try:
        call()
    finally:
        connection.close()


def test_two_workers_with_the_first_event_of_one_key_wait_for_each_other(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second one comes while the first one's row is not committed yet."""
    early, first = payment(harness, "p1", Paid(order="o1", amount=4)), order(harness, "o1", Placed(price=4))
    locked = threading.Event()
    real, main = process_rows.save, threading.current_thread()

    def save(*arguments: Any) -> None:
        if threading.current_thread() is not main:
            locked.set()
            _until_somebody_waits_for_a_lock()
        real(*arguments)

    monkeypatch.setattr(process_rows, "save", save)
    slow, fast = Harness(), harness
    with ThreadPoolExecutor(1) as pool:
        late = pool.submit(_and_disconnect, lambda: slow.deliver(subscription(slow), early))
        assert locked.wait(60)
        fast.deliver(subscription(fast), first)
        late.result(60)
    assert [one.paid for one in (*slow.sent, *fast.sent)] == [4]  # type: ignore[attr-defined]
    assert state()["payments"] == ["p1/1/0"]


def _until_somebody_waits_for_a_lock() -> None:
    deadline = time.monotonic() + 60
    waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
    with connection.cursor() as cursor:
        while True:
            cursor.execute("SELECT pg_stat_clear_snapshot()")
            cursor.execute(waiting)
            if cursor.fetchone() != (0,):
                return
            assert time.monotonic() < deadline, "nobody waits for a lock"


def test_processes_are_locked_in_the_order_of_their_keys(transactional_db: None) -> None:
    """So two workers do not deadlock: one that waits for the first process holds none of the others."""
    with ThreadPoolExecutor(1) as pool:
        with transaction.atomic():
            process_rows.lock("default", "s", ["a"])
            waiting = pool.submit(_and_disconnect, partial(_locked, ["c", "b", "a"]))
            _until_somebody_waits_for_a_lock()
            process_rows.lock("default", "s", ["b", "c"])
        waiting.result(60)


def _locked(keys: Sequence[str]) -> None:
    with transaction.atomic():
        process_rows.lock("default", "s", keys)


def test_the_deletion_of_old_processes_waits_for_no_worker(harness: Harness) -> None:
    going = subscription(harness)
    for key in ("busy", "ended"):
        harness.deliver(going, order(harness, key, Placed(price=1), Finished()))
    ProcessState.objects.update(ended_at=Now() - timedelta(days=31))
    with ThreadPoolExecutor(1) as pool, transaction.atomic():
        process_rows.lock("default", "processes.sales", ["busy"])
        pool.submit(_and_disconnect, going.runner.processor.tidy).result(30)
        assert list(ProcessState.objects.values_list("key", flat=True)) == ["busy"]


def test_waiting_for_another_worker_is_nobodys_fault(harness: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    """The supervisor would kill a worker whose note says for too long that a handler runs."""
    note: InFlightMarker = [NOTHING_IN_FLIGHT, 0]
    noted = []
    real = process_rows.lock

    def lock(*arguments: Any) -> Any:
        noted.append(note[0])
        return real(*arguments)

    monkeypatch.setattr(process_rows, "lock", lock)
    going = harness.subscription(subscribers.instance(Sales), in_flight=InFlight(note))
    harness.deliver(going, order(harness, "o1", Placed(price=1)))
    assert noted == [NOTHING_IN_FLIGHT]
