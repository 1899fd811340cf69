"""Rows and checkpoints move together, and only forward, even if several workers handle the same events."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from django.db import connection, transaction

from enode_django import DomainEvent
from enode_django.eventing.pending import PendingAggregate
from enode_django.eventing.registry import subscribers
from tests.following.domain import Added, Behaviour, Closed, CounterRow, CounterRows, Entries, Entry, Noted, Opened
from tests.following.harness import Harness


def test_rows_move_with_their_versions(harness: Harness) -> None:
    subscription = harness.subscription(subscribers.instance(CounterRows))
    harness.deliver(subscription, harness.stored("c", Opened(owner="ann"), Added(amount=3)))
    harness.deliver(subscription, harness.stored("c", Added(amount=4), Noted(), after=2))
    assert harness.rows() == {"c": ("ann", 7, 4)}
    assert harness.checkpoint("following.rows", "c") is None


def test_an_aggregate_without_a_row_keeps_its_version_in_a_checkpoint(harness: Harness) -> None:
    subscription = harness.subscription(subscribers.instance(CounterRows))
    harness.deliver(subscription, harness.stored("c", Noted()))
    assert harness.checkpoint("following.rows", "c") == 1
    harness.deliver(subscription, harness.stored("c", Opened(owner="ann"), after=1))
    assert harness.rows() == {"c": ("ann", 0, 2)}
    assert harness.checkpoint("following.rows", "c") is None
    harness.deliver(subscription, harness.stored("c", Closed(), after=2))
    assert harness.rows() == {}
    assert harness.checkpoint("following.rows", "c") == 3


def test_a_late_message_does_not_bring_a_deleted_row_back(harness: Harness) -> None:
    subscription = harness.subscription(subscribers.instance(CounterRows))
    records = harness.stored("c", Opened(owner="ann"), Added(amount=3), Closed())
    harness.deliver(subscription, records)
    harness.deliver(subscription, records[:2])
    assert harness.rows() == {}


def test_a_row_that_is_made_and_deleted_in_one_batch_was_never_there(harness: Harness) -> None:
    subscription = harness.subscription(subscribers.instance(CounterRows))
    harness.deliver(subscription, harness.stored("c", Opened(owner="ann"), Closed(), Opened(owner="bea")))
    assert harness.rows() == {"c": ("bea", 0, 3)}
    harness.deliver(subscription, harness.stored("c", Closed(), Opened(owner="cat"), after=3))
    assert harness.rows() == {"c": ("cat", 0, 5)}


def test_a_handler_that_changes_the_id_of_its_row_fails(harness: Harness) -> None:
    class Moving(CounterRows):
        name = "following.moving_rows"
        abstract = True

        def added(self, row: CounterRow, event: Added) -> None:
            row.pk = "other"

    subscription = harness.subscription(subscribers.instance(Moving), attempts=1)
    harness.deliver(subscription, harness.stored("c", Opened(owner="ann")))
    harness.deliver(subscription, harness.stored("c", Added(amount=3), after=1))
    assert harness.rows() == {"c": ("ann", 0, 1)}
    assert "changed the id of a row from 'c' to 'other'" in harness.parked("following.moving_rows")[0].error


def test_a_handler_that_deletes_its_row_itself_is_told_how_to(harness: Harness) -> None:
    class Deleting(CounterRows):
        name = "following.deleting_rows"
        abstract = True

        def added(self, row: CounterRow, event: Added) -> None:
            row.delete()

    subscription = harness.subscription(subscribers.instance(Deleting), attempts=1)
    harness.deliver(subscription, harness.stored("c", Opened(owner="ann")))
    harness.deliver(subscription, harness.stored("c", Added(amount=3), after=1))
    assert "call self.delete(row) instead of row.delete()" in harness.parked("following.deleting_rows")[0].error


def test_a_worker_that_read_before_a_deletion_cannot_bring_the_row_back(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The slow worker has found no row when the fast one makes the row and deletes it."""
    _let_one_look_and_another_be_first(harness, monkeypatch, Opened(owner="ann"), Added(amount=1), Closed())
    assert harness.rows() == {}
    assert harness.checkpoint("following.rows", "c") == 3


def test_a_worker_that_read_before_a_row_was_made_leaves_no_checkpoint_beside_it(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    _let_one_look_and_another_be_first(harness, monkeypatch, Opened(owner="ann"), Added(amount=1))
    assert harness.rows() == {"c": ("ann", 1, 2)}
    assert harness.checkpoint("following.rows", "c") is None


def _let_one_look_and_another_be_first(harness: Harness, monkeypatch: pytest.MonkeyPatch, *events: DomainEvent) -> None:
    """Let a slow worker look for a row that does not exist. Before it goes on, a fast one handles all events."""
    records = harness.stored("c", *events)
    slow = harness.subscription(subscribers.instance(CounterRows))
    table = slow.runner.processor._table  # type: ignore[attr-defined]
    rows_in = table.rows_in
    looked = threading.Event()
    done = threading.Event()
    gave_up: list[bool] = []
    main = threading.current_thread()

    def look_slowly(found: Sequence[Any]) -> dict[str, CounterRow]:
        rows: dict[str, CounterRow] = rows_in(found)
        if threading.current_thread() is not main and not looked.is_set():
            looked.set()
            assert not rows
            gave_up.append(not done.wait(60))
        return rows

    monkeypatch.setattr(table, "rows_in", look_slowly)
    with ThreadPoolExecutor(1) as pool:
        late = pool.submit(_and_disconnect, lambda: slow.catch_up([PendingAggregate("c", "following.Counter", 2)]))
        assert looked.wait(60)
        harness.deliver(harness.subscription(subscribers.instance(CounterRows)), records)
        done.set()
        late.result(60)
    assert gave_up == [False], "the slow one did not wait for the fast one"


@pytest.mark.parametrize("projection", [CounterRows, Entries])
def test_two_workers_on_one_queue_handle_each_event_once(
    harness: Harness, behaviour: Behaviour, projection: type[CounterRows] | type[Entries]
) -> None:
    records = [
        record
        for number in range(20)
        for record in harness.stored(f"c{number:02}", Opened(owner="ann"), *(Added(amount=n) for n in range(1, 10)))
    ]
    barrier = threading.Barrier(2)

    def work() -> None:
        # Each worker has its own window with the same messages.
        own = Harness()
        subscription = own.subscription(subscribers.instance(projection))
        barrier.wait(60)
        for start in range(0, len(records), 7):
            own.deliver(subscription, records[start : start + 7])

    with ThreadPoolExecutor(2) as pool:
        for one in [pool.submit(_and_disconnect, work) for _ in range(2)]:
            one.result(60)
    if projection is Entries:
        assert Entry.objects.count() == 20 * 9
        assert {tuple(harness.entries(f"c{n:02}")) for n in range(20)} == {tuple((n + 1, n) for n in range(1, 10))}
    else:
        assert set(harness.rows().values()) == {("ann", 45, 10)}
        assert len(harness.rows()) == 20


def _and_disconnect(call: Callable[[], object]) -> None:
    try:
        call()
    finally:
        connection.close()


def test_a_row_the_database_refuses_holds_up_its_own_aggregate_only(harness: Harness) -> None:
    subscription = harness.subscription(subscribers.instance(CounterRows), attempts=1)
    good = [r for n in range(7) for r in harness.stored(f"c{n}", Opened(owner="ann"))]
    bad = harness.stored("bad", Added(amount=1), Opened(owner="a name that is too long"), Added(amount=2))
    harness.deliver(subscription, [*good[:3], *bad, *good[3:]])
    assert len([id for id in harness.rows() if id != "bad"]) == 7
    harness.clock.now += 100
    subscription.retry_due()
    (parked,) = harness.parked("following.rows")
    assert (parked.aggregate_root_id, parked.version, parked.error_type) == ("bad", 2, "DataError")
    assert harness.rows()["bad"] == ("", 1, 1)


def test_a_constraint_that_fails_at_commit_is_found_to_be_one_aggregates(harness: Harness) -> None:
    with connection.cursor() as cursor:
        cursor.execute(
            "ALTER TABLE following_entry ADD CONSTRAINT one_amount UNIQUE (amount) DEFERRABLE INITIALLY DEFERRED"
        )
    try:
        subscription = harness.subscription(subscribers.instance(Entries), attempts=1)
        records = [r for n in range(1, 8) for r in harness.stored(f"c{n}", Added(amount=n))]
        clash = harness.stored("clash", Added(amount=3))
        harness.deliver(subscription, [*records, *clash])
        assert Entry.objects.count() == 7
        (parked,) = harness.parked("following.entries")
        assert "During handling of the above exception" not in parked.error, "the batch's, or that of a half of it"
    finally:
        with connection.cursor() as cursor:
            cursor.execute("ALTER TABLE following_entry DROP CONSTRAINT one_amount")


def test_what_a_failing_handler_wrote_is_rolled_back_and_the_others_commit(
    harness: Harness, behaviour: Behaviour
) -> None:
    behaviour.failing["c1"] = 100
    subscription = harness.subscription(subscribers.instance(Entries))
    harness.deliver(subscription, [r for n in range(3) for r in harness.stored(f"c{n}", Added(amount=n))])
    assert [harness.entries(f"c{n}") for n in range(3)] == [[(1, 0)], [], [(1, 2)]]
    assert harness.checkpoint("following.entries", "c0") == 1
    assert harness.checkpoint("following.entries", "c1") == 0
    assert harness.window.unfinished == 1


def test_a_handler_that_swallows_a_database_error_spoils_only_its_own_aggregate(
    harness: Harness, behaviour: Behaviour, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = behaviour.handle

    def swallow(event: object) -> None:
        original(event)  # type: ignore[arg-type]
        if getattr(event, "aggregate_root_id", "") == "c1":
            try:
                with connection.cursor() as cursor:
                    cursor.execute("SELECT 1 / 0")
            except Exception:
                pass

    monkeypatch.setattr(behaviour, "handle", swallow)
    subscription = harness.subscription(subscribers.instance(Entries), attempts=1)
    harness.deliver(subscription, [r for n in range(3) for r in harness.stored(f"c{n}", Added(amount=n))])
    assert [harness.entries(f"c{n}") for n in range(3)] == [[(1, 0)], [], [(1, 2)]]
    assert [parked.aggregate_root_id for parked in harness.parked("following.entries")] == ["c1"]


def test_inside_a_transaction_of_somebody_else_all_is_rolled_back_together(harness: Harness) -> None:
    subscription = harness.subscription(subscribers.instance(Entries))
    records = harness.stored("c", Added(amount=1))

    class Stop(Exception):
        pass

    def follow_and_fail() -> None:
        with transaction.atomic():
            subscription.follow(records)
            assert harness.entries("c") == [(1, 1)]
            raise Stop

    with pytest.raises(Stop):
        follow_and_fail()
    assert harness.entries("c") == []
    assert harness.checkpoint("following.entries", "c") is None
    subscription.follow(records)
    assert harness.entries("c") == [(1, 1)]


@pytest.mark.parametrize("count", [1, 3])
def test_writes_that_a_handler_has_marked_to_be_rolled_back_are_not_taken_as_done(
    harness: Harness, behaviour: Behaviour, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    original = behaviour.handle

    def mark(event: object) -> None:
        original(event)  # type: ignore[arg-type]
        if getattr(event, "aggregate_root_id", "") == "c0":
            transaction.set_rollback(True)

    monkeypatch.setattr(behaviour, "handle", mark)
    subscription = harness.subscription(subscribers.instance(Entries), attempts=1)
    harness.deliver(subscription, [r for n in range(count) for r in harness.stored(f"c{n}", Added(amount=n))])
    assert [parked.aggregate_root_id for parked in harness.parked("following.entries")] == ["c0"]
    assert harness.checkpoint("following.entries", "c0") == 0
    assert [harness.entries(f"c{n}") for n in range(1, count)] == [[(1, n)] for n in range(1, count)]
