"""The event store over two databases: the shard of each aggregate, permitted writers, refusals."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

import psycopg
import pytest
from django.core.management import call_command
from django.db import connections, transaction
from django.test import override_settings
from pytest_django import DjangoDbBlocker

from enode_django import execute_command, result_of
from enode_django.checks.store import check_shards, check_store
from enode_django.eventstore import generations, statements
from enode_django.eventstore.base import Outcome
from enode_django.eventstore.buckets import bucket_of
from enode_django.eventstore.postgres import PostgresEventStore
from enode_django.eventstore.shard_map import ShardMap, owning
from enode_django.eventstore.sharding import ShardedEventStore
from enode_django.eventstore.sqlstates import is_unprepared
from enode_django.exceptions import ShardMapOutdated, ShardMismatch, StoreFailing, StoreUnavailable
from enode_django.repository.sharding import ShardedSnapshotStore
from enode_django.runtime import make_snapshots, make_store
from enode_django.testing import inline
from enode_django.testing.event_store_contract import EventStoreAppendContract
from enode_django.testing.event_store_read_contract import STORED, history, outcomes, stream
from sample_project.bank.domain import BankAccount, OpenAccount
from tests.integration.sharded import ALIASES, empty, id_in, opened, shard_databases, sharded_settings, sharded_store
from tests.integration.store_sessions import Call, wait_until
from tests.template import new_database

pytestmark = pytest.mark.django_db(transaction=True)
FIRST, SECOND = id_in(0), id_in(1)


@pytest.fixture(scope="session")
def databases(django_db_setup: None, django_db_blocker: DjangoDbBlocker) -> Iterator[dict[str, str]]:
    with django_db_blocker.unblock(), shard_databases() as names:
        yield names


@pytest.fixture(autouse=True)
def store(databases: dict[str, str], transactional_db: None) -> Iterator[ShardedEventStore]:
    with opened(databases), sharded_settings():
        empty()
        yield sharded_store()


def query(alias: str, statement: str, *parameters: object) -> list[Any]:
    with connections[alias].cursor() as cursor:
        cursor.execute(statement, parameters)
        return cursor.fetchall() if cursor.description else []


def stored_in(alias: str) -> list[str]:
    return [id for (id,) in query(alias, f"SELECT aggregate_root_id FROM {statements.TABLE} ORDER BY sequence")]


class TestContract(EventStoreAppendContract):
    """A store over two databases fulfils the contract of a store."""

    @pytest.fixture
    def store(self, store: ShardedEventStore) -> ShardedEventStore:
        return store

    # Its writers are threads, which have no way to these databases.
    test_writers_that_race_leave_histories_without_gap_or_repeat = None  # type: ignore[assignment]


# The shard of each aggregate


def test_each_aggregate_lies_in_the_shard_of_its_bucket(store: ShardedEventStore) -> None:
    records = [*history(FIRST, 2), *history(SECOND, 3)]
    assert outcomes(store.append(records)) == [STORED] * 5
    assert [stored_in(alias) for alias in ALIASES] == [[FIRST] * 2, [SECOND] * 3]
    assert store.heads([FIRST, SECOND]) == {FIRST: 2, SECOND: 3}
    assert store.load_many([FIRST, SECOND]) == {FIRST: records[:2], SECOND: records[2:]}
    assert [shard.heads([FIRST, SECOND]) for shard in store.shards] == [{FIRST: 2}, {SECOND: 3}]
    assert [shard.number for shard in store.shards] == [0, 1]


def test_an_aggregate_and_a_result_are_read_back_from_the_shard_that_has_them() -> None:
    with inline(followed_by=[]):
        opened = [execute_command(OpenAccount(id, owner=id)) for id in (FIRST, SECOND)]
    for id, result in zip((FIRST, SECOND), opened, strict=True):
        assert BankAccount.load(id).owner == id
        assert [event.version for event in BankAccount.history(id)] == [1]
        assert result_of(result.command_id, id) == result
    assert result_of(opened[0].command_id, SECOND) is None


def test_outcomes_of_several_shards_come_in_the_order_of_the_records(store: ShardedEventStore) -> None:
    taken = stream(SECOND, 1)
    store.append([taken])
    sent = [stream(SECOND, 1), stream(FIRST, 1), stream(SECOND, 2), stream(FIRST, 2)]
    assert [one.outcome for one in store.append(sent)] == [
        Outcome.CONFLICT,
        Outcome.STORED,
        Outcome.DEPENDENT,
        Outcome.STORED,
    ]


def test_every_process_finds_the_same_map(store: ShardedEventStore) -> None:
    store.append([stream(FIRST, 1)])
    rows = [query(alias, "SELECT number, epoch, buckets FROM enode_django_shard") for alias in ALIASES]
    assert rows == [[(0, 1, list(range(512)))], [(1, 1, list(range(512, 1024)))]]
    assert sharded_store().load_many([FIRST]).keys() == {FIRST}


@contextmanager
def away(alias: str) -> Iterator[None]:
    connection = connections[alias]
    there = connection.settings_dict
    connection.close()
    connection.settings_dict = {**there, "NAME": "away"}
    try:
        yield
    finally:
        connection.close()
        connection.settings_dict = there


def test_what_one_shard_has_stored_is_found_again_when_the_other_was_away(store: ShardedEventStore) -> None:
    records = [stream(FIRST, 1), stream(SECOND, 1)]
    store.place_of(FIRST)
    with away("events1"), pytest.raises(StoreUnavailable):
        store.append(records)
    assert outcomes(store.append(records, doubtful=True)) == [STORED, STORED]
    assert [stored_in(alias) for alias in ALIASES] == [[FIRST], [SECOND]]


def test_a_process_may_start_while_one_shard_is_away(store: ShardedEventStore) -> None:
    store.append([stream(FIRST, 1), stream(SECOND, 1)])
    started = sharded_store()
    with away("events1"):
        assert outcomes(started.append([stream(FIRST, 2)])) == [STORED]
        assert started.heads([FIRST]) == {FIRST: 2}
        with pytest.raises(StoreUnavailable):
            started.heads([SECOND])
        with pytest.raises(StoreUnavailable):
            started.append([stream(SECOND, 2)])
    assert outcomes(started.append([stream(SECOND, 2)])) == [STORED]
    assert [shard.number for shard in started.shards] == [0, 1]


def test_nobody_guesses_when_more_than_one_shard_is_away_at_the_start(store: ShardedEventStore) -> None:
    store.append([stream(FIRST, 1)])
    with away("events0"), away("events1"), pytest.raises(StoreUnavailable, match=r"\['events0', 'events1'\]"):
        sharded_store().place_of(FIRST)


def test_new_shards_record_nothing_before_all_are_there(store: ShardedEventStore) -> None:
    with away("events1"), pytest.raises(StoreUnavailable, match="cannot know which buckets to own"):
        store.append([stream(FIRST, 1)])
    assert query("events0", "SELECT FROM enode_django_shard") == []


# Permitted writers


def test_a_writer_whose_map_is_old_is_refused_and_asks_again(store: ShardedEventStore) -> None:
    store.append([stream(FIRST, 1), stream(SECOND, 1)])
    move(bucket_of(FIRST))
    with pytest.raises(ShardMapOutdated):
        store.append([stream(FIRST, 2)])
    assert stored_in("events0") == [FIRST]
    assert outcomes(store.append([stream(FIRST, 2)], doubtful=True)) == [STORED]
    assert stored_in("events1") == [SECOND, FIRST]


def test_a_writer_does_not_follow_an_old_map_when_another_thread_read_it_anew(store: ShardedEventStore) -> None:
    """The writer was told by the old map where its streams go, and learns the claim of that shard by the new one."""
    store.append([stream(FIRST, 1)])
    told = store.shards[store.place_of(FIRST)]
    move(bucket_of(FIRST))
    for alias in ALIASES:
        store._map.forget(alias)
    assert store.shards[1].number == 1  # by now the map is the new one
    with pytest.raises(ShardMapOutdated):
        told.append([stream(FIRST, 2)])
    assert stored_in("events0") == [FIRST]


def test_a_new_epoch_of_the_same_buckets_stops_nobody(store: ShardedEventStore) -> None:
    store.append([stream(FIRST, 1)])
    query("events0", "UPDATE enode_django_shard SET epoch = epoch + 1")
    assert outcomes(store.append([stream(FIRST, 2)])) == [STORED]


def test_a_batch_leaves_no_trace_in_the_shards_record(store: ShardedEventStore) -> None:
    """A lock of the row would be written into it, and a batch that comes meanwhile would make it a multixact."""
    store.append([stream(FIRST, 1)])
    query("events0", "UPDATE enode_django_shard SET recorded_at = recorded_at")
    for doubtful in (False, True):
        store.append([stream(FIRST, 2 + doubtful)], doubtful=doubtful)
    assert query("events0", "SELECT xmax::text FROM enode_django_shard") == [("0",)]


@contextmanager
def session(alias: str) -> Iterator[psycopg.Connection[Any]]:
    parameters = connections[alias].get_connection_params()
    for name in ("context", "cursor_factory"):
        parameters.pop(name, None)
    with psycopg.connect(**parameters, autocommit=True) as mover:
        yield mover


@contextmanager
def writing(store: ShardedEventStore, atomic: bool) -> Iterator[None]:
    """A batch for the first shard is under way, in a transaction of the store's own or in somebody's."""
    claim = store._map.claim_of("events0")
    server = generations.state(connections["events0"]).server
    with owning(connections["events0"], claim, server) if not atomic else transaction.atomic("events0"):
        if atomic:
            store.append([stream(FIRST, 2)])
        yield


@pytest.mark.parametrize("atomic", [False, True])
def test_whoever_moves_buckets_waits_for_those_who_write(store: ShardedEventStore, atomic: bool) -> None:
    store.append([stream(FIRST, 1)])
    nowait = f"{statements.STOP_WRITERS} NOWAIT".encode()
    with session("events0") as mover:
        with writing(store, atomic), pytest.raises(psycopg.errors.LockNotAvailable), mover.transaction():
            mover.execute(nowait)
        with mover.transaction():
            mover.execute(nowait)


@pytest.mark.parametrize("isolation", ["read committed", "repeatable read"])
def test_whoever_writes_waits_for_those_who_move_buckets_and_finds_what_they_did(
    store: ShardedEventStore, isolation: str
) -> None:
    def write() -> None:
        query("events0", f"SET default_transaction_isolation = '{isolation}'")
        store.shards[0].append([stream(FIRST, 2)])

    store.append([stream(FIRST, 1)])
    bucket = bucket_of(FIRST)
    with session("events0") as mover, session("events0") as watcher:
        with mover.transaction():
            mover.execute(statements.STOP_WRITERS.encode())
            writer = Call(write)
            wait_until(lambda: bool(watcher.execute(_WAITS).fetchall()))
            mover.execute(f"UPDATE {statements.SHARD} SET epoch = epoch + 1".encode())
            remove = f"UPDATE {statements.SHARD} SET buckets = array_remove(buckets, %s::smallint)"
            mover.execute(remove.encode(), [bucket])
            # Before the writer goes on: it reads the records of both, and each bucket must be in one.
            add = "UPDATE enode_django_shard SET epoch = epoch + 1, buckets = array_append(buckets, %s)"
            query("events1", add, bucket)
        with pytest.raises(ShardMapOutdated):
            writer.result()
    assert stored_in("events0") == [FIRST]


_WAITS = b"""
    SELECT FROM pg_locks JOIN pg_database ON pg_database.oid = database AND datname = current_database()
    WHERE NOT granted AND relation = 'enode_django_shard'::regclass
"""


def test_a_transaction_that_looks_at_an_old_snapshot_is_refused(store: ShardedEventStore) -> None:
    """In somebody's transaction the record may be read as it was before buckets were moved."""
    store.append([stream(FIRST, 1)])
    with transaction.atomic("events0"):
        query("events0", "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        query("events0", "SELECT FROM enode_django_shard")
        with session("events0") as mover:
            mover.execute(b"UPDATE enode_django_shard SET epoch = epoch + 1")
        with pytest.raises(StoreUnavailable):
            store.append([stream(FIRST, 2)])
    assert stored_in("events0") == [FIRST]


def test_a_record_that_was_rolled_back_is_made_again(store: ShardedEventStore) -> None:
    """The first write ever stood in a transaction that came to nothing."""
    with transaction.atomic("events0"), transaction.atomic("events1"):
        store.append([stream(FIRST, 1), stream(SECOND, 1)])
        for alias in ALIASES:
            transaction.set_rollback(True, using=alias)
    assert outcomes(store.append([stream(FIRST, 1), stream(SECOND, 1)])) == [STORED, STORED]


def move(bucket: int) -> None:
    for alias, change in (("events0", "array_remove"), ("events1", "array_append")):
        with transaction.atomic(alias):
            query(alias, statements.STOP_WRITERS)
            query(alias, f"UPDATE {statements.SHARD} SET epoch = epoch + 1, buckets = {change}(buckets, %s)", bucket)


# Maps that cannot be


def test_a_missing_shard_is_noticed(store: ShardedEventStore) -> None:
    store.append([stream(FIRST, 1)])
    with pytest.raises(ShardMismatch, match="512 of 1024 buckets"):
        ShardMap(["events0"]).load()
    with pytest.raises(ShardMismatch):
        PostgresEventStore("events1").append([stream(FIRST, 1)])


def test_an_empty_database_in_place_of_a_shard_is_noticed(store: ShardedEventStore) -> None:
    store.append([stream(FIRST, 1)])
    query("events1", f"TRUNCATE {statements.SHARD}")
    with pytest.raises(ShardMismatch, match="'events1'"):
        sharded_store().append([stream(FIRST, 2)])
    assert [message.id for message in check_shards(None, ["events0"])] == ["enode_django.E022"]


def test_a_check_looks_at_the_databases_it_was_given_and_records_nothing() -> None:
    assert check_shards(None, ALIASES) == []
    assert query("events0", "SELECT FROM enode_django_shard") == []
    assert check_shards(None, None) == check_shards(None, ["default"]) == []


def test_recording_goes_on_after_it_was_interrupted(store: ShardedEventStore) -> None:
    query("events0", "INSERT INTO enode_django_shard VALUES (1, 0, 0, %s, now())", list(range(512)))
    assert outcomes(store.append([stream(SECOND, 1)])) == [STORED]
    assert [query(alias, "SELECT epoch FROM enode_django_shard") for alias in ALIASES] == [[(1,)], [(1,)]]


def test_new_shards_that_do_not_fit_what_is_recorded_record_nothing(store: ShardedEventStore) -> None:
    query("events0", "INSERT INTO enode_django_shard VALUES (1, 0, 0, %s, now())", list(range(341)))  # one of three
    with pytest.raises(ShardMismatch, match="171 of 1024 buckets"):
        store.append([stream(SECOND, 1)])
    assert query("events0", "SELECT epoch FROM enode_django_shard") == [(0,)]
    assert query("events1", "SELECT FROM enode_django_shard") == []


def test_recording_is_confirmed_by_the_next_one_if_it_was_interrupted_right_before(store: ShardedEventStore) -> None:
    store.append([stream(SECOND, 1)])
    for alias in ALIASES:
        query(alias, "UPDATE enode_django_shard SET epoch = 0")
    sharded_store().place_of(FIRST)
    query("events1", f"TRUNCATE {statements.SHARD}, {statements.TABLE}")
    with pytest.raises(ShardMismatch, match="'events1'"):
        sharded_store().append([stream(FIRST, 1)])
    assert query("events1", "SELECT FROM enode_django_shard") == []


def test_a_confirmation_lowers_no_epoch_and_waits_for_no_writer(store: ShardedEventStore) -> None:
    store.append([stream(FIRST, 1), stream(SECOND, 1)])
    query("events0", "UPDATE enode_django_shard SET epoch = 0")
    query("events1", "UPDATE enode_django_shard SET epoch = 5")
    with session("events0") as writer, writer.transaction():
        writer.execute(statements.OPEN_CLAIM_WITHIN.encode())
        query("events0", "SET lock_timeout = '20s'")
        sharded_store().place_of(FIRST)
        query("events0", "RESET lock_timeout")
    sharded_store().place_of(FIRST)
    assert [query(alias, "SELECT epoch FROM enode_django_shard") for alias in ALIASES] == [[(1,)], [(5,)]]


# The Django side


def tables_of(alias: str) -> set[str]:
    return {*connections[alias].introspection.table_names()} - {"django_migrations"}


def test_a_shard_is_migrated_to_the_tables_of_the_store_and_no_others(postgres_url: str) -> None:
    enode = {"EVENT_STORE": {"DATABASES": ["new"]}}
    with new_database(postgres_url) as url, opened({"new": urlsplit(url).path[1:]}), override_settings(ENODE=enode):
        call_command("migrate", "enode_django", database="new", verbosity=0)
        assert tables_of("new") == {
            "enode_django_deadletter",
            "enode_django_eventcorrection",
            "enode_django_eventstream",
            "enode_django_shard",
            "enode_django_snapshot",
            "enode_django_storegeneration",
            "enode_django_uniquevalue",
        }
        assert [tables_of(alias) for alias in ALIASES] == [tables_of("new")] * 2, "those of these tests"


def test_settings_with_the_router_give_a_sharded_store() -> None:
    assert check_store(None) == [] or [message.id for message in check_store(None)] == ["enode_django.E004"]
    store = make_store()
    assert [shard.name for shard in store.shards] == list(ALIASES)
    assert isinstance(make_snapshots(store), ShardedSnapshotStore)


def test_a_correction_lies_in_the_shard_of_its_stream(store: ShardedEventStore) -> None:
    store.append([*history(FIRST, 2), *history(SECOND, 2)])
    made = store.correct(SECOND, 1, b"better", by="ann", reason="a typing error", last=0)
    assert [query(alias, "SELECT aggregate_root_id FROM enode_django_eventcorrection") for alias in ALIASES] == [
        [],
        [(SECOND,)],
    ]
    found = store.load_many([FIRST, SECOND])
    assert [record.events for record in found[SECOND]] == [b"better", f"events 2 of {SECOND}".encode()]
    assert found[FIRST] == list(store.load(FIRST))
    assert store.corrections(SECOND) == [made]
    snapshots = make_snapshots(make_store())
    assert snapshots is not None
    assert not snapshots.discard_from(SECOND, 1)
    assert [list(shard.corrected_since(0)) for shard in store.shards] == [[], [(made.number, SECOND, 1)]]


@contextmanager
def not_migrated(alias: str) -> Iterator[None]:
    query(alias, f"ALTER TABLE {statements.TABLE} RENAME TO away")
    try:
        yield
    finally:
        query(alias, f"ALTER TABLE away RENAME TO {statements.TABLE}")


@pytest.mark.parametrize("is_new", [False, True], ids=["running", "started"])
def test_a_shard_that_is_not_migrated_is_named_and_the_others_go_on(store: ShardedEventStore, is_new: bool) -> None:
    store.append([stream(SECOND, 1)])
    writer = sharded_store() if is_new else store
    with not_migrated(ALIASES[1]):
        with pytest.raises(StoreFailing, match=f"run manage.py migrate --database {ALIASES[1]}: until then"):
            writer.append([stream(SECOND, 2)])
        with pytest.raises(StoreFailing, match=f"run manage.py migrate --database {ALIASES[1]}: until then"):
            writer.heads([SECOND])
        assert outcomes(writer.append([stream(FIRST, 1)])) == [STORED]
    assert outcomes(writer.append([stream(SECOND, 2)])) == [STORED]


def test_new_shards_wait_for_the_migrations_of_all_and_say_so(store: ShardedEventStore) -> None:
    with (
        not_migrated(ALIASES[1]),
        pytest.raises(StoreUnavailable, match=f"run manage.py migrate --database {ALIASES[1]}") as caught,
    ):
        store.append([stream(FIRST, 1)])
    assert is_unprepared(caught.value), "nobody repeats it for a minute"
    assert query("events0", "SELECT FROM enode_django_shard") == []
