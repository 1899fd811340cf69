"""Handlers on tables that are not in use: they reach no other tables, and a failure concerns one aggregate only."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import pytest
from django.contrib.postgres import signals as postgres_types
from django.db import connection, connections, transaction

from enode_django import DomainEvent
from enode_django.eventing import checkpoints, event_types, parking, unparking
from enode_django.eventing.code import code_fingerprint
from enode_django.eventing.event_processors import FIRST_AT_ONCE
from enode_django.eventing.event_subscription import EventSubscription
from enode_django.eventing.projections import Projection
from enode_django.eventing.registry import subscribers
from enode_django.eventing.subscribers import Subscriber
from enode_django.eventstore.positions import BEGINNING
from enode_django.eventstore.scanning import Scan, scan_records
from enode_django.exceptions import ProjectionsDiffer, RebuildError
from enode_django.jobs.progress import Report
from enode_django.rebuilding.engine import InProcess, Plan
from enode_django.rebuilding.rebuild import rebuild, undo
from enode_django.rebuilding.replaying import Replayed, replayer
from enode_django.rebuilding.target import Target
from enode_django.serialization.codec import STREAM
from enode_django.serialization.plain import pack
from enode_django.serialization.registry import types
from tests.following.domain import Added, Closed
from tests.following.harness import Harness, stream_of
from tests.integration.store_sessions import database_alias
from tests.rebuilding.conftest import schemas
from tests.rebuilding.domain import Balance, Balances, Effects, Posting, Postings, Undeclared
from tests.rebuilding.histories import balances, before_the_last_step, follow, nothing, postings, some_history

BOTH = pytest.mark.parametrize("cls", [Postings, Balances])


def let_handlers(effects: Effects, call: Callable[[DomainEvent], object]) -> None:
    effects.posting = call
    effects.balance = lambda row, event: call(event)


@pytest.fixture
def followed(postings: Harness) -> Harness:
    some_history(postings, "a", "b", "c")
    follow()
    return postings


@BOTH
def test_an_event_type_that_was_removed_and_never_handled_is_passed_over(
    followed: Harness, effects: Effects, cls: type[Subscriber], monkeypatch: pytest.MonkeyPatch
) -> None:
    type("Removed", (DomainEvent,), {"type_name": "rebuilding.Removed", "__module__": __name__, "__annotations__": {}})
    for one in (Postings, Balances):
        checkpoints.subscribe("default", one.name, 0, BEGINNING)
        event_types.record("default", subscribers.instance(one))
    monkeypatch.delitem(types._classes[DomainEvent], "rebuilding.Removed")
    (record,) = followed.stored("d", Added(amount=1))
    events = STREAM + pack(([("rebuilding.Removed", 1, {})], None))
    followed.store.append([record._replace(version=2, command_id="removed", events=events)])
    follow()
    before = (postings(), balances())
    rebuild(cls.name, InProcess(), nothing)
    assert (postings(), balances()) == before
    assert parking.list_parked("default", cls.name) == []


# -- undeclared tables ------------------------------------------------------------------------------------------------


def _writes(event: DomainEvent) -> None:
    Undeclared.objects.create(text="written")


def _reads(event: DomainEvent) -> None:
    Undeclared.objects.first()


def _writes_without_a_word(event: DomainEvent) -> None:
    try:
        _writes(event)
    except Exception:
        return


@BOTH
@pytest.mark.parametrize("reach", [_writes, _reads])
def test_a_handler_that_needs_an_undeclared_table_is_refused_and_nothing_in_use_is_touched(
    followed: Harness, effects: Effects, cls: type[Subscriber], reach: Callable[[DomainEvent], object]
) -> None:
    before = (postings(), balances())
    let_handlers(effects, reach)
    began = time.monotonic()
    what = f'^{cls.name} needs what it does not declare: .*"rebuilding_undeclared"'
    with pytest.raises(RebuildError, match=what) as refused:
        rebuild(cls.name, InProcess(), nothing, accept_differences=True)
    advice = (
        "list in its models all" if issubclass(cls, Projection) else "keeps its own rows alone; make it a Projection"
    )
    assert advice in str(refused.value)
    assert time.monotonic() - began < 60, "it is not waited for"
    assert Undeclared.objects.count() == 0
    assert (postings(), balances()) == before
    assert schemas() == []


@BOTH
def test_a_handler_that_swallows_that_it_cannot_reach_a_table_writes_nothing_anywhere(
    followed: Harness, effects: Effects, cls: type[Subscriber]
) -> None:
    let_handlers(effects, _writes_without_a_word)
    with pytest.raises(RebuildError):
        rebuild(cls.name, InProcess(), nothing)
    assert Undeclared.objects.count() == 0


@pytest.fixture
def beside(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The alias of another database, as far as Django knows."""
    with database_alias("beside") as alias:
        known = connections.all
        with monkeypatch.context() as patch:
            patch.setattr(connections, "all", lambda **options: [*known(**options), connections[alias]])
            yield alias


@BOTH
@pytest.mark.parametrize("swallows", [False, True])
def test_a_handler_reaches_no_other_database(
    followed: Harness, effects: Effects, beside: str, cls: type[Subscriber], swallows: bool
) -> None:
    def reach(event: DomainEvent) -> None:
        try:
            Undeclared.objects.using(beside).create(text="written")
        except Exception:
            if not swallows:
                raise

    let_handlers(effects, reach)
    before = (postings(), balances())
    with pytest.raises(RebuildError, match=f"^{cls.name} needs what it does not declare: the database 'beside'"):
        rebuild(cls.name, InProcess(), nothing)
    assert Undeclared.objects.count() == 0
    assert (postings(), balances()) == before


class OnNewConnection(InProcess):
    """Reads over a connection that is opened when the first stream is read, as tasks in other processes do. Django then
    asks the server for types."""

    def replay(self, plan: Plan, report: Report) -> Replayed:
        ((_, horizon),) = plan.horizon.items()
        postgres_types.get_hstore_oids.cache_clear()
        postgres_types.get_citext_oids.cache_clear()
        with replayer(plan.shadow) as replaying:
            return replaying.replay(scan_records(Scan("beside", horizon=horizon, types=plan.types)))


def test_the_batches_of_a_replay_grow_as_those_of_a_worker_do(postings: Harness) -> None:
    target = Target.of(Postings.name)
    record, shadow = target.begin()
    with replayer(shadow) as replaying:
        replaying.replay([stream_of("a", 1, [Added(amount=1)]), stream_of("b", 1, [Added(amount=1)])])
        assert replaying.runner.processor.limit > FIRST_AT_ONCE
    target.abandon(record)


@BOTH
@pytest.mark.usefixtures("beside")
def test_reading_may_open_a_connection_while_handlers_may_not(followed: Harness, cls: type[Subscriber]) -> None:
    before = (postings(), balances())
    assert rebuild(cls.name, OnNewConnection(), nothing).is_swapped
    assert (postings(), balances()) == before


@BOTH
def test_what_handlers_register_for_the_end_of_a_transaction_does_not_run(
    followed: Harness, effects: Effects, cls: type[Subscriber]
) -> None:
    ran: list[str] = []

    def register(event: DomainEvent) -> None:
        transaction.on_commit(lambda: ran.append(event.id))

    let_handlers(effects, register)
    followed.stored("d", Added(amount=1))
    rebuild(cls.name, InProcess(), nothing)
    assert ran == []
    followed.stored("e", Added(amount=1))
    follow(cls)
    assert len(ran) == 1, "it does after the swap"


def test_the_orm_of_a_model_projection_sees_the_rows_of_its_own_generation(followed: Harness, effects: Effects) -> None:
    """The ORM sees copied rows, and no rows in use."""
    seen: list[set[str]] = []

    def look(row: Balance, event: DomainEvent) -> None:
        if event.aggregate_root_id == "c":
            seen.append(set(Balance.objects.values_list("aggregate_root_id", flat=True)))

    effects.balance = look
    rebuild(Balances.name, InProcess(), nothing, sample=0)
    assert balances()["c"] == (12, 2, 3)
    assert all(ids <= {"a", "b", "c"} for ids in seen)
    assert {"a", "b"} <= seen[-1]


def test_a_handler_sees_how_far_its_row_has_come_as_it_does_in_use(postings: Harness, effects: Effects) -> None:
    def note(row: Balance, event: DomainEvent) -> None:
        row.total = row.total * 10 + row.version

    effects.balance = note
    postings.stored("a", Added(amount=0), Added(amount=0), Added(amount=0))
    postings.stored("gone", Added(amount=0), Closed(), Added(amount=0))
    follow()
    assert balances()["a"][0] == 12
    assert rebuild(Balances.name, InProcess(), nothing).comparison.is_equal


# -- failures ---------------------------------------------------------------------------------------------------------


def _fail_at_version(version: int, *ids: str) -> Callable[[DomainEvent], None]:
    def fail(event: DomainEvent) -> None:
        if event.aggregate_root_id in ids and event.version == version:
            raise ValueError(f"no version {version}, please")

    return fail


@BOTH
def test_an_aggregate_that_fails_is_parked_in_the_rebuilt_projection_and_goes_on_when_it_is_let(
    postings: Harness, effects: Effects, cls: type[Subscriber]
) -> None:
    let_handlers(effects, _fail_at_version(2, "b"))
    some_history(postings, "a", "b", "c")
    _park_as_in_use(postings, cls)
    rebuilt = rebuild(cls.name, InProcess(), nothing)
    assert rebuilt.replayed.parked == ("b",)
    (parked,) = parking.list_parked("default", cls.name)
    assert (parked.aggregate_root_id, parked.version, parked.error_type) == ("b", 2, "ValueError")
    assert parked.aggregate_root_type == "following.Counter"
    assert parked.next_try_at is not None, "it is tried again by itself"
    assert parked.fingerprint == code_fingerprint(subscribers.instance(cls))
    assert "no version 2, please" in parked.error
    let_handlers(effects, lambda event: None)
    assert unparking.retry_parked(postings.subscription(subscribers.instance(cls)), "b") is None
    assert _amounts(cls) == {"a": 10, "b": 11, "c": 12}


@BOTH
def test_what_was_parked_and_is_not_any_more_is_free_until_the_rebuild_is_undone(
    postings: Harness, effects: Effects, cls: type[Subscriber]
) -> None:
    let_handlers(effects, _fail_at_version(3, "b", "c"))
    some_history(postings, "a", "b", "c")
    _park_as_in_use(postings, cls)
    before = parking.list_parked("default", cls.name)
    assert {one.aggregate_root_id for one in before} == {"b", "c"}
    foreign = before[0]._replace(aggregate_root_id="x", aggregate_root_type="unknown.Here", subscriber=cls.name)
    parking.park("default", foreign)
    let_handlers(effects, _fail_at_version(2, "c"))
    with pytest.raises(ProjectionsDiffer, match=r"c: rebuilt up to version (0|1), in use up to version 2: it failed"):
        rebuild(cls.name, InProcess(), nothing)
    assert len(parking.list_parked("default", cls.name)) == 3
    rebuild(cls.name, InProcess(), nothing, accept_differences=True)
    parked = {one.aggregate_root_id: one.version for one in parking.list_parked("default", cls.name)}
    assert parked == {"c": 2, "x": foreign.version}
    assert _amounts(cls)["b"] == 11
    _as_before_the_upgrade()
    undo(cls.name, InProcess(), nothing)
    parked = {one.aggregate_root_id: one.version for one in parking.list_parked("default", cls.name)}
    assert parked == {"b": 3, "c": 3, "x": foreign.version}
    assert _amounts(cls)["b"] == 1


def _as_before_the_upgrade() -> None:
    """Drop the newer columns of the tables of parked events beside tables that are kept for an undo."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT schemaname FROM pg_tables WHERE tablename = 'enode_django_parkedevent' AND schemaname <> 'public'"
        )
        for (schema,) in cursor.fetchall():
            cursor.execute(f'ALTER TABLE "{schema}".enode_django_parkedevent DROP next_try_at, DROP fingerprint')


def test_a_constraint_that_waits_for_the_end_of_the_transaction_parks_the_aggregate_that_violates_it(
    postings: Harness, effects: Effects, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This holds in the replay, in a catch-up, and in the transaction of the swap."""

    def take(event: DomainEvent) -> None:
        if isinstance(event, Added):
            Posting.objects.filter(account=event.aggregate_root_id).update(once=f"{event.amount}")

    def store_two(stage: str, **figures: object) -> None:
        if stage == "compare":
            postings.stored("c", Added(amount=7))
            postings.stored("d", Added(amount=8))

    effects.posting = take
    postings.stored("a", Added(amount=7))
    postings.stored("b", Added(amount=7))
    before_the_last_step(
        monkeypatch, lambda: [postings.stored("e", Added(amount=8)), postings.stored("f", Added(amount=9))]
    )
    rebuild(Postings.name, InProcess(), store_two)
    assert {one.aggregate_root_id: one.version for one in postings.parked(Postings.name)} == {"b": 1, "c": 1, "e": 1}
    assert dict(Posting.objects.values_list("account", "once")) == {"a": "7", "d": "8", "f": "9"}


def _park_as_in_use(harness: Harness, cls: type[Subscriber]) -> None:
    subscription: EventSubscription = harness.subscription(subscribers.instance(cls), attempts=1)
    for id in ("a", "b", "c"):
        subscription.follow(harness.store.load(id))
    while subscription.next_retry is not None:
        harness.clock.now += 100
        subscription.retry_due()


def _amounts(cls: type[Subscriber]) -> dict[str, int]:
    if cls is Balances:
        return {id: total for id, (total, _, _) in balances().items()}
    return {id: sum(amounts) for id, amounts in postings().items()}
