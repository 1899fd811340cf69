"""Unique values in PostgreSQL: races of threads, two shards, transactions of callers, and the rebuild."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from io import StringIO
from threading import Barrier
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.db import connections, transaction
from pytest_django import DjangoDbBlocker

from enode_django import ValueTaken, execute_command
from enode_django.bus.results import CommandStatus
from enode_django.commanding.uniqueness import Uniqueness
from enode_django.eventstore import postgres_unique_values
from enode_django.eventstore.postgres import PostgresEventStore
from enode_django.eventstore.postgres_unique_values import PostgresUniqueValues
from enode_django.eventstore.sharding import ShardedEventStore
from enode_django.eventstore.unique_values import Change, Claim, Confirmed, Owner, UniqueKey
from enode_django.eventstore.unique_values import UniqueValue as UniqueValueRow
from enode_django.exceptions import ConfigurationError, StoreUnavailable
from enode_django.models import OperatorAction, UniqueValue
from enode_django.processors.housekeeping import store_duties
from enode_django.repository.loading import AggregateLoader
from enode_django.testing import inline
from tests.integration.sharded import ALIASES, empty, id_in, opened, shard_databases, sharded_settings, sharded_store
from tests.races.harness import Worker
from tests.unique.customers import Customer, Move, Register
from tests.unique.domain import ChangeEmail, Join, Leave, Wave, emails, handlers
from tests.unique.test_claims import taken
from tests.unique.test_crashes import AT_ONCE, NEVER

pytestmark = pytest.mark.django_db(transaction=True)
REFUSED, SUCCESS = CommandStatus.REFUSED, CommandStatus.SUCCESS
ROUNDS = 300
"""``python -m benchmarks unique`` races for ten times as many."""


def test_two_workers_that_race_for_each_of_many_values_have_one_winner_each() -> None:
    start = Barrier(2)

    def race(racer: str) -> set[int]:
        store = PostgresEventStore()
        worker = Worker(store, table=handlers, max_recent=2 * ROUNDS)
        won: set[int] = set()
        for first in range(0, ROUNDS, 100):
            values = range(first, first + 100)
            # One begins where the other ends, so that they meet.
            order = values if racer == "a" else reversed(values)
            start.wait()
            results = worker.run(*(Join(f"{racer}-{value}", email=f"mail {value}") for value in order))
            won |= {int(result.aggregate_root_id[2:]) for result in results if result.status is SUCCESS}
            assert {result.status for result in results} <= {SUCCESS, REFUSED}
        connections["default"].close()
        return won

    with ThreadPoolExecutor(2) as pool:
        one, other = pool.map(race, "ab")
    assert one & other == set()
    assert one | other == set(range(ROUNDS))
    assert UniqueValue.objects.filter(claims={}, releases=[]).count() == ROUNDS


def test_value_that_is_given_free_between_the_claim_and_the_look_at_its_owner_is_claimed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Otherwise the claim would count, and there would be no row of it."""
    values, key, owner = PostgresUniqueValues(), UniqueKey("n", b"d"), Owner("b", 1, "c2", "t")
    values.claim(Owner("a", 1, "c1", "t"), [key], [])
    read = postgres_unique_values._read

    def given_free(*arguments: Any) -> list[UniqueValueRow]:
        for row in read(*arguments):
            values.free(row)
        return read(*arguments)

    with monkeypatch.context() as meanwhile:
        meanwhile.setattr(postgres_unique_values, "_read", given_free)
        assert values.claim(owner, [key], []) == []
    assert [row.aggregate_root_id for row in values.rows()] == ["b"]


def test_a_stalled_stream_whose_claim_was_taken_is_refused_by_the_index() -> None:
    store = PostgresEventStore()
    slow = Worker(store, table=handlers)
    slow.send(Join("a", email="x", id="late"), Wave("a", id="wave"), Join("c", email="z", id="fine"))
    slow.handle()
    (won,) = Worker(store, table=handlers, claim_deadline=AT_ONCE).run(Join("b", email="x"))
    slow.settle()
    assert won.status is SUCCESS
    assert taken(slow.answers["late"], "email")
    assert slow.answers["fine"].status is SUCCESS
    assert emails(store, "a", "b", "c") == {"b": "x", "c": "z"}


def test_a_crash_after_the_release_was_stored_frees_the_value() -> None:
    store = PostgresEventStore()
    Worker(store, table=handlers).run(Join("a", email="x"))
    dead = Worker(store, table=handlers)
    dead.send(Leave("a"))
    dead.handle()
    dead.commit()
    assert UniqueValue.objects.get().releases == [2]
    (won,) = Worker(store, table=handlers, claim_deadline=NEVER).run(Join("b", email="x"))
    assert won.status is SUCCESS
    row = UniqueValue.objects.get()
    assert (row.aggregate_root_id, row.claims, row.releases, row.version) == ("b", {}, [], 1)


def test_the_worker_that_owns_the_first_queue_settles_old_claims() -> None:
    from enode_django.conf import conf

    store = PostgresEventStore()
    dead = Worker(store, table=handlers)
    dead.send(Join("a", email="x"))
    dead.handle()
    UniqueValue.objects.update(changed_at="2026-01-01T00:00Z")

    class Owner:
        owned = ()

    owner = Owner()
    interval, settle = store_duties(conf(), owner, store, [])[0]  # type: ignore[arg-type]
    assert interval == conf().COMMANDS.CLAIM_DEADLINE
    settle()
    assert UniqueValue.objects.count() == 1
    owner.owned = (0,)  # type: ignore[assignment]
    settle()
    assert UniqueValue.objects.count() == 0


def test_claims_and_confirmations_of_the_same_values_in_opposite_orders_do_not_deadlock() -> None:
    """A claim locks also the rows of others that it finds."""
    keys = [UniqueKey("name", bytes([n]) * 32) for n in range(60)]
    begin = Barrier(2)

    def work(racer: str) -> None:
        values = PostgresUniqueValues()
        order = keys if racer == "a" else keys[::-1]
        begin.wait(60)
        for version in range(1, 25):
            owners = [Owner(f"{racer}{n}", version, f"{racer}{n}{version}", "T") for n in range(len(keys))]
            changes = [Change([key], [order[n - 1]]) for n, key in enumerate(order)]
            values.claim_all([Claim(owner, change) for owner, change in zip(owners, changes, strict=True)])
            values.confirm(
                [
                    Confirmed(owner.aggregate_root_id, owner.command_id, version, *change)
                    for owner, change in zip(owners, changes, strict=True)
                ]
            )
        connections["default"].close()

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(work, "ab"))


# -- a caller's transaction -------------------------------------------------------------------------------------------


def test_a_rollback_of_the_caller_undoes_the_claim_with_the_events() -> None:
    with inline(PostgresEventStore()):
        with transaction.atomic():
            execute_command(Register("customer-ada", email="x"))
            transaction.set_rollback(True)
        assert UniqueValue.objects.count() == 0
        execute_command(Register("customer-bob", email="x"))
        with pytest.raises(ValueTaken), transaction.atomic():
            execute_command(Register("customer-ada", email="X"))


# -- values of stored aggregates --------------------------------------------------------------------------------------


def rebuild() -> str:
    out = StringIO()
    call_command("enode", "unique", "rebuild", "--reason", "the address is unique now", stdout=out)
    return out.getvalue()


def test_a_rebuild_claims_what_was_stored_before_the_field_was_unique() -> None:
    with inline(PostgresEventStore()):
        execute_command(Register("customer-ada", email="x"))
        execute_command(Register("customer-bob", email="y"))
        UniqueValue.objects.all().delete()
        execute_command(Move("customer-bob", email="z"))
        assert rebuild() == "looked into 2 aggregates, freed 0 values\n"
        with pytest.raises(ValueTaken):
            execute_command(Register("customer-cyd", email="X"))
        execute_command(Move("customer-ada", email="w"))
        execute_command(Register("customer-cyd", email="x"))
    done = OperatorAction.objects.get()
    assert (done.action, done.object_type, done.reason) == ("rebuild", "unique values", "the address is unique now")
    assert done.details == "2 aggregates, 0 values freed, 0 duplicates"


def test_a_rebuild_frees_what_nobody_has_and_tells_of_duplicates() -> None:
    with inline(PostgresEventStore()):
        execute_command(Register("customer-ada", email="x"))
        UniqueValue.objects.all().delete()
        execute_command(Register("customer-bob", email="x"))  # not known to be taken
        execute_command(Register("customer-cyd", email="y"))
        UniqueValue.objects.filter(aggregate_root_id="customer-cyd").update(digest=b"of a former normalize")
        out = StringIO()
        with pytest.raises(CommandError, match="1 values have two aggregates"):
            call_command("enode", "unique", "rebuild", stdout=out)
        assert out.getvalue().splitlines() == [
            "customers.Customer:email: freed what customer-cyd does not have any more",
            "customers.Customer:email: customer-ada has the value of customer-bob",
            "looked into 3 aggregates, freed 1 values",
        ]
        execute_command(Move("customer-ada", email="z"))
        assert rebuild() == "looked into 3 aggregates, freed 0 values\n"
    assert UniqueValue.objects.values("aggregate_root_id").distinct().count() == UniqueValue.objects.count() == 3


def test_a_rebuild_names_the_aggregate_whose_value_cannot_be_normalised(monkeypatch: pytest.MonkeyPatch) -> None:
    with inline(PostgresEventStore()):
        execute_command(Register("customer-ada", email="x"))
        monkeypatch.setattr(Customer.unique, "normalize", lambda email: email.split("@")[1])
        with pytest.raises(CommandError, match="'customer-ada' cannot be looked into: list index out of range"):
            rebuild()


# -- two shards -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def databases(django_db_setup: None, django_db_blocker: DjangoDbBlocker) -> Iterator[dict[str, str]]:
    with django_db_blocker.unblock(), shard_databases() as names:
        yield names


@pytest.fixture
def sharded(databases: dict[str, str], transactional_db: None) -> Iterator[ShardedEventStore]:
    with opened(databases), sharded_settings():
        empty()
        yield sharded_store()


FIRST, SECOND, OTHER = id_in(0), id_in(1), id_in(1, "b")


def test_values_are_unique_over_shards(sharded: ShardedEventStore) -> None:
    one, other, refused, free = Worker(sharded, table=handlers).run(
        Join(FIRST, email="x"), Join(SECOND, email="y"), ChangeEmail(SECOND, email="X"), ChangeEmail(FIRST, email="z")
    )
    assert [one.status, other.status, free.status] == [SUCCESS] * 3
    assert taken(refused, "email")
    assert [UniqueValue.objects.using(alias).count() for alias in ALIASES] == [2, 0]
    (won,) = Worker(sharded, table=handlers).run(ChangeEmail(SECOND, email="x"))
    assert won.status is SUCCESS


def test_a_stalled_stream_of_the_other_shard_is_fenced_there(sharded: ShardedEventStore) -> None:
    slow = Worker(sharded, table=handlers)
    slow.send(Join(SECOND, email="x", id="late"))
    slow.handle()
    (won,) = Worker(sharded, table=handlers, claim_deadline=AT_ONCE).run(Join(FIRST, email="x"))
    slow.settle()
    assert won.status is SUCCESS
    assert taken(slow.answers["late"], "email")
    assert emails(sharded, FIRST, SECOND) == {FIRST: "x"}


def test_while_the_owners_shard_is_away_its_value_is_not_given_away(sharded: ShardedEventStore) -> None:
    slow = Worker(sharded, table=handlers)
    slow.send(Join(SECOND, email="x"))
    slow.handle()
    other = Worker(sharded, table=handlers, claim_deadline=AT_ONCE)
    away = sharded.shards[1].find
    sharded.shards[1].find = _away  # type: ignore[method-assign]
    other.send(Join(FIRST, email="x", id="wins?"))
    other.handle()
    assert UniqueValue.objects.using(ALIASES[0]).get().aggregate_root_id == SECOND
    sharded.shards[1].find = away  # type: ignore[method-assign]


def test_while_a_shard_is_away_housekeeping_settles_the_values_of_the_others(sharded: ShardedEventStore) -> None:
    slow = Worker(sharded, table=handlers)
    slow.send(Join(SECOND, email="x"), Join(OTHER, email="y"), Join(FIRST, email="z"))
    slow.handle()
    for age, id in enumerate((FIRST, OTHER, SECOND)):
        claimed_at = datetime(2026, 1, 4 - age, tzinfo=UTC)
        UniqueValue.objects.using(ALIASES[0]).filter(aggregate_root_id=id).update(changed_at=claimed_at)
    sharded.shards[1].find = _away  # type: ignore[method-assign]
    with pytest.raises(StoreUnavailable):
        Uniqueness(AggregateLoader(sharded)).settle_old()
    owners = UniqueValue.objects.using(ALIASES[0]).values_list("aggregate_root_id", flat=True)
    assert {*owners} == {SECOND, OTHER}


def _away(keys: object) -> dict[tuple[str, str], object]:
    raise StoreUnavailable("the second shard is away")


def test_a_transaction_that_could_undo_the_claim_alone_is_refused(sharded: ShardedEventStore) -> None:
    worker = Worker(sharded, table=handlers)
    with transaction.atomic(using=ALIASES[0]):
        (failed,) = worker.run(Join(SECOND, email="x"))
        assert (failed.status, failed.error_type) == (CommandStatus.FAILED, ConfigurationError.__name__)
        (fine,) = worker.run(Join(FIRST, email="x"))
        assert fine.status is SUCCESS
    with transaction.atomic(using=ALIASES[1]), transaction.atomic(using=ALIASES[0]):
        (fine,) = worker.run(Join(OTHER, email="y"))
        assert fine.status is SUCCESS


def test_a_rollback_in_the_other_shard_gives_no_value_away(sharded: ShardedEventStore) -> None:
    """The rows of the values are in another database, which does not know of the rollback."""
    worker = Worker(sharded, table=handlers, claim_deadline=AT_ONCE)
    worker.run(Join(SECOND, email="x"))
    with transaction.atomic(using=ALIASES[1]):
        rolled_back = Worker(sharded, table=handlers, claim_deadline=AT_ONCE)
        rolled_back.run(ChangeEmail(SECOND, email="y"), Join(OTHER, email="z"))
        (refused,) = rolled_back.run(Join(FIRST, email="x"))
        assert taken(refused, "email")  # not free before the release is durable
        transaction.set_rollback(True, using=ALIASES[1])
    (refused,) = Worker(sharded, table=handlers, claim_deadline=AT_ONCE).run(Join(id_in(0, "b"), email="x"))
    assert taken(refused, "email")
    won = Worker(sharded, table=handlers, claim_deadline=AT_ONCE).run(
        Join(id_in(0, "c"), email="y"), Join(id_in(0, "d"), email="z")
    )
    assert [one.status for one in won] == [SUCCESS] * 2
    assert emails(sharded, SECOND) == {SECOND: "x"}


def test_a_rebuild_looks_into_all_shards(sharded: ShardedEventStore) -> None:
    with inline(sharded):
        for id in (id_in(0, "customer-"), id_in(1, "customer-")):
            execute_command(Register(id, email=id))
    UniqueValue.objects.using(ALIASES[0]).all().delete()
    out = StringIO()
    call_command("enode", "unique", "rebuild", stdout=out)
    assert out.getvalue() == "looked into 2 aggregates, freed 0 values\n"
    assert UniqueValue.objects.using(ALIASES[0]).count() == 2
