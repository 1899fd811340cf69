"""Swaps of generations while others read, write, alter and rebuild the same tables."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
from django.db import connection
from django.db.migrations.recorder import MigrationRecorder

from enode_django import DomainEvent
from enode_django.eventing.registry import subscribers
from enode_django.eventing.subscribers import Subscriber
from enode_django.exceptions import RebuildError, RebuildOvertaken, TablesInUse
from enode_django.models import Rebuild
from enode_django.rebuilding import swapping
from enode_django.rebuilding.engine import InProcess
from enode_django.rebuilding.rebuild import rebuild, undo
from enode_django.rebuilding.swapping import Swap
from enode_django.rebuilding.target import Target
from tests.following.domain import Added
from tests.following.harness import Harness
from tests.integration.store_sessions import Call, bare_session, wait_until
from tests.rebuilding.conftest import schemas
from tests.rebuilding.domain import Balances, Effects, Postings
from tests.rebuilding.histories import (
    amounts,
    balances,
    before_the_last_step,
    follow,
    nothing,
    versions,
)
from tests.rebuilding.histories import (
    postings as posted,
)
from tests.rebuilding.tables import TABLES, someone_waits_for, sql

BOTH = pytest.mark.parametrize("cls", [Postings, Balances])


# -- live writers -----------------------------------------------------------------------------------------------------


@BOTH
def test_a_worker_in_the_middle_of_its_transaction_is_waited_for(
    followed: Harness, effects: Effects, cls: type[Subscriber]
) -> None:
    """The worker has read its checkpoints, and has not written yet."""
    inside, go_on = threading.Event(), threading.Event()
    worker: list[int] = []

    def pause(event: DomainEvent) -> None:
        if threading.get_ident() in worker:
            inside.set()
            assert go_on.wait(60)

    effects.posting = pause
    effects.balance = lambda row, event: pause(event)
    more = followed.stored("a", Added(amount=100), after=3)
    subscription = followed.subscription(subscribers.instance(cls))

    def deliver() -> None:
        worker.append(threading.get_ident())
        followed.deliver(subscription, more)

    late = Call(deliver)
    assert inside.wait(60)
    rebuilding = Call(lambda: rebuild(cls.name, InProcess(), nothing))
    wait_until(lambda: someone_waits_for(cls, "ExclusiveLock"))
    go_on.set()
    late.result()
    assert rebuilding.result().is_swapped
    assert amounts(cls, "a") == (110, 3)
    followed.deliver(followed.subscription(subscribers.instance(cls)), more)
    assert amounts(cls, "a") == (110, 3)


@BOTH
def test_a_worker_that_waits_for_the_swap_goes_on_with_the_tables_that_are_in_use_then(
    followed: Harness, cls: type[Subscriber], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The worker has two events, and the new tables already have one of them."""
    late: list[Call] = []

    def store_one_and_let_a_worker_wait() -> None:
        (first,) = followed.stored("a", Added(amount=100), after=3)
        (second,) = followed.stored("new", Added(amount=1))
        late.append(Call(lambda: followed.deliver(followed.subscription(subscribers.instance(cls)), [first, second])))
        wait_until(lambda: someone_waits_for(cls, "RowExclusiveLock", "RowShareLock"))

    def store_another(stage: str, **figures: object) -> None:
        if stage == "swap":
            assert figures["aggregates"] == 2
            more = Call(lambda: followed.stored("a", Added(amount=1000), after=4))
            late.append(Call(lambda: followed.deliver(followed.subscription(subscribers.instance(cls)), more.result())))

    before_the_last_step(monkeypatch, store_one_and_let_a_worker_wait)
    rebuild(cls.name, InProcess(), store_another)
    for call in late:
        call.result()
    assert amounts(cls, "a") == (1110, 4)
    assert amounts(cls, "new") == (1, 1)
    if cls is Postings:
        assert versions("a", "new") == {"a": 5, "new": 1}


# -- readers ----------------------------------------------------------------------------------------------------------


@BOTH
def test_readers_do_not_wait_while_the_last_events_are_caught_up_with(
    followed: Harness, cls: type[Subscriber], monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[int] = []

    def look() -> None:
        with bare_session() as session:
            session.execute("SET lock_timeout = '60s'")
            (count,) = session.execute(f"SELECT count(*) FROM {TABLES[cls]}").fetchone() or (0,)
            read.append(count)

    before_the_last_step(monkeypatch, look)
    rebuild(cls.name, InProcess(), nothing)
    assert read == [len(balances()) if cls is Balances else sum(map(len, posted().values()))]


def test_deferred_constraints_are_checked_before_readers_are_locked_out(
    followed: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of the rows that the last events have made."""
    before_the_last_step(monkeypatch, lambda: followed.stored("a", Added(amount=5), after=3))
    lock = Swap._lock

    def alter_and_lock(swap: Swap, mode: str) -> None:
        if mode == "ACCESS EXCLUSIVE":  # PostgreSQL refuses to alter a table while a check of its rows is deferred
            sql(f'ALTER TABLE "{swap.incoming.schema}".rebuilding_postingline SET (fillfactor = 100)')
            sql(f'ALTER TABLE "{swap.incoming.schema}".rebuilding_postingline RESET (fillfactor)')
        lock(swap, mode)

    monkeypatch.setattr(Swap, "_lock", alter_and_lock)
    rebuild(Postings.name, InProcess(), nothing)
    assert posted()["a"] == [0, 10, 5]


@BOTH
def test_a_transaction_that_will_not_let_go_of_the_tables_is_told_of(
    followed: Harness, cls: type[Subscriber], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(swapping, "ATTEMPTS", 2)
    monkeypatch.setattr(swapping, "LOCK_TIMEOUT", "50ms")
    before = (posted(), balances())
    with bare_session() as session:
        session.execute(f"SELECT count(*) FROM {TABLES[cls]}")
        with pytest.raises(TablesInUse, match=f"the tables of {cls.name} could not be locked in 2 attempts of 50ms"):
            rebuild(cls.name, InProcess(), nothing)
    assert (posted(), balances()) == before


@pytest.mark.parametrize(
    ("limit", "step", "access"),
    [
        ("WRITERS_LOCKED_OUT", "_check", "INSERT INTO {0} SELECT * FROM {0} WHERE false"),
        ("READERS_LOCKED_OUT", "_exchange", "SELECT count(*) FROM {0}"),
    ],
    ids=["writers", "readers"],
)
def test_a_swap_that_stands_still_lets_go_of_the_tables(
    followed: Harness, monkeypatch: pytest.MonkeyPatch, limit: str, step: str, access: str
) -> None:
    """Such as one whose machine has lost its power: nobody tells the database, which keeps its session."""
    go_on, usual, had_access = getattr(Swap, step), getattr(swapping, limit), []
    monkeypatch.setattr(swapping, limit, "100ms")

    def stand_still(swap: Swap, *arguments: Any) -> Any:
        if not had_access:
            with bare_session() as other:
                other.execute("SET lock_timeout = '60s'")
                other.execute(access.format(TABLES[Postings]))
            had_access.append(True)
            monkeypatch.setattr(swapping, limit, usual)
        return go_on(swap, *arguments)

    monkeypatch.setattr(Swap, step, stand_still)
    assert rebuild(Postings.name, InProcess(), nothing).is_swapped
    assert had_access
    assert amounts(Postings, "a") == (10, 2)


# -- changes of the tables by others ----------------------------------------------------------------------------------

ALTERED = {
    "ALTER TABLE rebuilding_posting ADD added integer": ("columns", "ALTER TABLE rebuilding_posting DROP added"),
    "CREATE INDEX added ON rebuilding_posting (amount)": ("indexes", "DROP INDEX added"),
    "GRANT SELECT ON rebuilding_posting TO PUBLIC": ("grants", "REVOKE SELECT ON rebuilding_posting FROM PUBLIC"),
    "CREATE VIEW added AS SELECT 1 FROM rebuilding_posting": ("the view added reads from it", "DROP VIEW added"),
    "CREATE TABLE added (one bigint CONSTRAINT points REFERENCES rebuilding_posting)": (
        "the foreign key points of added points to it",
        "DROP TABLE added",
    ),
}


@pytest.mark.parametrize("statement", ALTERED)
def test_what_was_done_to_a_table_while_it_was_rebuilt_is_not_lost(followed: Harness, statement: str) -> None:
    told, back = ALTERED[statement]

    def alter(stage: str, **figures: object) -> None:
        if stage == "compare":
            sql(statement)

    before = posted()
    try:
        with pytest.raises(RebuildError, match=told):
            rebuild(Postings.name, InProcess(), alter, accept_differences=True)
        assert posted() == before
        assert schemas() == []
    finally:
        sql(back)


@pytest.mark.parametrize("statement", ALTERED)
def test_what_was_done_to_a_table_after_it_was_rebuilt_is_not_lost_by_undoing_that(
    followed: Harness, statement: str
) -> None:
    told, back = ALTERED[statement]
    rebuild(Postings.name, InProcess(), nothing)
    sql(statement)
    try:
        with pytest.raises(RebuildError, match=told):
            undo(Postings.name, InProcess(), nothing)
    finally:
        sql(back)
    assert undo(Postings.name, InProcess(), nothing).is_swapped


def test_a_rebuild_is_not_undone_once_migrations_moved_on(followed: Harness) -> None:
    rebuild(Postings.name, InProcess(), nothing)
    generation = Target.of(Postings.name).generation()
    migration = MigrationRecorder.Migration.objects.create(app="rebuilding", name="0002_more")
    try:
        with pytest.raises(RebuildError, match="cannot be undone: migrations of its app were applied or taken back"):
            undo(Postings.name, InProcess(), nothing)
    finally:
        migration.delete()
    assert Target.of(Postings.name).generation() == generation
    assert undo(Postings.name, InProcess(), nothing).is_swapped


@BOTH
def test_tables_that_wait_for_an_undo_are_not_in_the_way_of_migrations_of_our_own(
    followed: Harness, cls: type[Subscriber]
) -> None:
    rebuild(cls.name, InProcess(), nothing)
    undo(cls.name, InProcess(), nothing)
    rebuild(cls.name, InProcess(), nothing)
    with bare_session() as session:  # its transaction is rolled back
        session.execute("ALTER TABLE enode_django_checkpoint ALTER version TYPE numeric")
        session.execute("ALTER TABLE enode_django_parkedevent ALTER attempts TYPE numeric")
    assert undo(cls.name, InProcess(), nothing).is_swapped


# -- concurrent rebuilds ----------------------------------------------------------------------------------------------


@BOTH
@pytest.mark.parametrize("stage", ["replay", "catch up", "check a sample", "compare"])
def test_of_two_rebuilds_the_newer_wins_and_the_older_says_so(
    followed: Harness, cls: type[Subscriber], stage: str
) -> None:
    newer: list[bool] = []

    def begin_another(at: str, **figures: object) -> None:
        if at == stage and not newer:
            newer.append(True)
            assert Call(lambda: rebuild(cls.name, InProcess(), nothing)).result().is_swapped

    def more(at: str, **figures: object) -> None:
        if at == "replay":
            followed.stored("a", Added(amount=100), after=3)  # the catch-up needs an event
        begin_another(at, **figures)

    with pytest.raises(
        RebuildOvertaken, match=f"another rebuild of {cls.name} has begun meanwhile: nothing is swapped"
    ):
        rebuild(cls.name, InProcess(), more)
    assert Target.of(cls.name).generation() == 2
    assert len(schemas()) == 1, "of the generation that was replaced"
    follow(cls)
    assert amounts(cls, "a")[0] == 110


def test_a_rebuild_that_was_overtaken_at_the_very_last_moment_does_not_swap(
    followed: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    before_the_last_step(monkeypatch, lambda: Target.of(Postings.name).begin())
    before = posted()
    with pytest.raises(RebuildOvertaken):
        rebuild(Postings.name, InProcess(), nothing)
    assert Target.of(Postings.name).generation() == 0
    assert posted() == before


def test_rebuilds_that_begin_at_the_same_time_begin_one_after_the_other(followed: Harness) -> None:
    barrier = threading.Barrier(3)

    def begin() -> int:
        barrier.wait(60)
        return Target.of(Postings.name).begin()[0].generation

    calls = [Call(begin) for _ in range(3)]
    assert sorted(call.result() for call in calls) == [1, 2, 3]
    states = dict(Rebuild.objects.values_list("generation", "state"))
    assert states == {1: "abandoned", 2: "abandoned", 3: "building"}
    assert len(schemas()) == 1


def test_who_drops_what_is_not_needed_keeps_what_a_rebuild_that_begins_meanwhile_makes(followed: Harness) -> None:
    """The older rebuild fails and drops its tables at the moment at which the newer one makes its own."""
    target = Target.of(Postings.name)
    older, _ = target.begin()
    made: list[str] = []

    def begin() -> None:
        newer, shadow = Target.of(Postings.name).begin()
        made.extend([shadow.schema, Target.of(Postings.name).make_scratch(newer).schema])

    def begin_another(execute: Callable[..., Any], statement: str, *rest: Any) -> Any:
        found = execute(statement, *rest)
        if "enode_django_rebuild" in statement and not connection.in_atomic_block and not made:
            Call(begin).result()
        return found

    with connection.execute_wrapper(begin_another):
        target.abandon(older)
    assert len(made) == 2
    assert sorted(schemas()) == sorted(made)


def test_who_drops_what_is_not_needed_keeps_what_an_undo_needs(followed: Harness) -> None:
    older, _ = Target.of(Postings.name).begin()
    rebuild(Postings.name, InProcess(), nothing)
    Target.of(Postings.name).abandon(older)
    undo(Postings.name, InProcess(), nothing)
    assert Target.of(Postings.name).generation() == 0


def test_an_undone_rebuild_that_is_overtaken_says_so(followed: Harness) -> None:
    rebuild(Postings.name, InProcess(), nothing)
    followed.stored("a", Added(amount=100), after=3)

    def begin_another(stage: str, **figures: object) -> None:
        if stage == "catch up":
            Call(lambda: Target.of(Postings.name).begin()).result()

    with pytest.raises(RebuildOvertaken):
        undo(Postings.name, InProcess(), begin_another)
    assert Target.of(Postings.name).generation() == 1
