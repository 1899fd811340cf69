"""Positions outlive the cluster that gave them: a dump restored into another one, and other ways to be set back."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from functools import partial

import pytest
from django.db import connection, connections, transaction

from enode_django.databases import execute
from enode_django.eventstore import postgres, statements
from enode_django.eventstore.base import Outcome
from enode_django.eventstore.positions import BEGINNING, END, Position
from enode_django.eventstore.postgres import PostgresEventStore
from enode_django.models import StoreGeneration
from enode_django.rebuilding.definitions import quoted
from enode_django.testing.event_store_feed_contract import read_on
from enode_django.testing.event_store_position_contract import settled_between
from enode_django.testing.event_store_read_contract import history, outcomes, refusal, stream
from sample_project.embedded import Postgres
from tests.integration.store_sessions import Call, bare_session, database_alias, insert, wait_until
from tests.rebuilding.tables import role, sql
from tests.services import private
from tests.template import QuickPostgres

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def store() -> PostgresEventStore:
    return PostgresEventStore()


def use_transaction_ids(count: int) -> None:
    """Use up transaction ids, so that those of a new cluster are lower."""
    with connection.cursor() as cursor:
        cursor.execute(
            f"DO $$ BEGIN FOR n IN 1..{count} LOOP PERFORM pg_current_xact_id(); COMMIT; END LOOP; END $$",
        )


def settle(store: PostgresEventStore, count: int) -> None:
    wait_until(lambda: len(read_on(store, BEGINNING, limit=100)[0]) == count)


def restore_into(server: Postgres, *options: str, alias: str = "default", database: str = "postgres") -> None:
    """Dump the alias's database, with the options, and restore it on the server in a database."""
    source = connections[alias].get_connection_params()
    environment = {**os.environ, "PGPASSWORD": str(source.get("password", ""))}
    place = [f"--host={source['host']}", f"--port={source['port']}", f"--username={source['user']}"]
    binaries = server._binaries
    dump = subprocess.run(
        [binaries / "pg_dump", *place, "--no-owner", *options, str(source["dbname"])],
        env=environment,
        check=True,
        capture_output=True,
    )
    psql = [binaries / "psql", "--quiet", "--set=ON_ERROR_STOP=1", f"--dbname={server.url_of(database)}"]
    subprocess.run(psql, input=dump.stdout, check=True, capture_output=True)


@pytest.fixture
def private_postgres() -> Iterator[Postgres]:
    """No copy of the template: that would be the same cluster, as its system identifier says."""
    yield from private(QuickPostgres())


@pytest.fixture
def _second_cluster(private_postgres: Postgres) -> Iterator[None]:
    place = {"HOST": "127.0.0.1", "PORT": private_postgres.port, "PASSWORD": private_postgres.password}
    with database_alias("restored", **place, USER="postgres", NAME="postgres"):
        yield


@pytest.mark.usefixtures("_second_cluster")
def test_a_reader_goes_on_where_it_was_after_a_dump_was_restored(
    store: PostgresEventStore, private_postgres: Postgres
) -> None:
    use_transaction_ids(5_000)
    old = [*history("a", 3), refusal("a"), *history("b", 3)]
    for record in old:
        store.append([record])
    settle(store, len(old))
    before, end = read_on(store, BEGINNING, limit=2)
    started = store.position()
    restore_into(private_postgres)

    restored = PostgresEventStore("restored")
    ((now,),) = execute("restored", "SELECT pg_current_xact_id()::text::bigint", ()).fetchall()
    assert now < before[0].position.transaction_id
    new = [stream("a", 4), stream("c", 1), refusal("c")]
    for record in new:
        restored.append([record])
    settle(restored, len(old) + len(new))

    for read, (position, _) in enumerate([(BEGINNING, None), *before]):
        entries, _ = read_on(restored, position, limit=2)
        assert entries[: len(old) - read] == before[read:]
        assert [record for _, record in entries[len(old) - read :]] == new
    assert [record for _, record in read_on(restored, end, limit=2)[0]] == new
    assert restored.position() > end
    assert restored.heads_before(["a", "b", "c"], started) == {"a": 3, "b": 3}
    assert set(settled_between(restored, started, restored.position()).heads) == {"a", "c"}
    assert set(settled_between(restored, BEGINNING, restored.position(), 2).heads) == {"a", "b", "c"}


@pytest.mark.usefixtures("_second_cluster")
@pytest.mark.parametrize(
    ("database", "options"), [("anew", []), ("postgres", ["--clean"])], ids=["a new database", "the same database"]
)
def test_a_dump_that_is_restored_on_its_own_server_begins_a_generation(
    store: PostgresEventStore, private_postgres: Postgres, database: str, options: list[str]
) -> None:
    """Transaction ids go on there. But events that were lost wait in the queue, and subscribers may have seen them."""
    restore_into(private_postgres)
    PostgresEventStore("restored").append(history("a", 2))
    before = PostgresEventStore("restored").position()
    if database != "postgres":
        with connections["restored"].cursor() as cursor:
            cursor.execute(f"CREATE DATABASE {database} TEMPLATE template0")
    restore_into(private_postgres, *options, alias="restored", database=database)
    connections["restored"].close()

    place = {"HOST": "127.0.0.1", "PORT": private_postgres.port, "PASSWORD": private_postgres.password}
    with database_alias("again", **place, USER="postgres", NAME=database):
        again = PostgresEventStore("again")
        again.append([stream("a", 3)])
        settle(again, 3)
        entries, _ = read_on(again, BEGINNING, limit=10)
        assert [record.version for _, record in entries] == [1, 2, 3]
        assert [position.generation > before.generation for position, _ in entries] == [False, False, True]
        assert again.position().generation == entries[-1][0].generation


@pytest.mark.usefixtures("_second_cluster")
def test_rows_without_the_table_of_generations_are_known_by_their_transactions(
    store: PostgresEventStore, private_postgres: Postgres
) -> None:
    """A restore of a dump that is older than the table, or of the streams alone."""
    use_transaction_ids(5_000)
    store.append(history("a", 2))
    settle(store, 2)
    StoreGeneration.unprotected.all().delete()
    restore_into(private_postgres)
    restored = PostgresEventStore("restored")
    restored.append([stream("a", 3)])
    settle(restored, 3)
    entries, _ = read_on(restored, BEGINNING, limit=10)
    assert [record.version for _, record in entries] == [1, 2, 3]
    assert entries[1].position.generation < entries[2].position.generation


def test_another_life_of_the_cluster_begins_a_generation_once(store: PostgresEventStore) -> None:
    """A promoted standby, or a recovery to a point in time, looks like this from inside."""
    store.append(history("a", 2))
    settle(store, 2)
    ahead = store.position()._replace(transaction_id=2**40)
    assert StoreGeneration.unprotected.update(cluster="7710275983152289212/00000001") == 1
    PostgresEventStore().append([stream("a", 3)])
    assert StoreGeneration.objects.count() == 2
    wait_until(lambda: len(store.feed(ahead, limit=10).entries) == 1)
    (entry,) = store.feed(ahead, limit=10).entries
    assert entry.record.version == 3
    assert ahead < entry.position < store.position()
    assert StoreGeneration.objects.count() == 2


def test_rows_of_a_database_whose_sequence_was_left_behind_come_after_all_others(store: PostgresEventStore) -> None:
    """Logical replication copies rows, and no sequences. A number that a lost transaction had used is free."""
    for one in history("a", 3):
        store.append([one])
    with connection.cursor() as cursor:
        cursor.execute(f"UPDATE {statements.TABLE} SET sequence = sequence + 1000")
    settle(store, 3)
    before = store.position()
    with connection.cursor() as cursor:
        cursor.execute(f"ALTER SEQUENCE {statements.TABLE}_sequence_seq RESTART")
    StoreGeneration.unprotected.update(cluster="7710275983152289212/00000001")

    moved = PostgresEventStore()
    assert outcomes(moved.append([stream("a", 4), stream("b", 1)])) == [Outcome.STORED] * 2
    wait_until(lambda: len(moved.feed(before, limit=10).entries) == 2)
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT version FROM {statements.TABLE} ORDER BY sequence")
        assert cursor.fetchall() == [(1,), (2,), (3,), (4,), (1,)]


def test_a_generation_begins_for_a_user_who_may_not_use_the_sequence(store: PostgresEventStore) -> None:
    """Nobody needs the right to insert rows: the column is an identity."""
    store.append(history("a", 2))
    with role() as name:
        user = quoted(name)
        sql(
            f"GRANT ALL ON ALL TABLES IN SCHEMA public TO {user}",
            f"REVOKE ALL ON ALL SEQUENCES IN SCHEMA public FROM {user}",
            f"GRANT EXECUTE ON FUNCTION pg_control_system() TO {user}",
            f"SET ROLE {user}",
        )
        try:
            assert outcomes(PostgresEventStore().append([stream("a", 3)])) == [Outcome.STORED]
            StoreGeneration.unprotected.update(cluster="7710275983152289212/00000001")
            assert outcomes(PostgresEventStore().append([stream("a", 4)])) == [Outcome.STORED]
        finally:
            sql("RESET ROLE")
    assert StoreGeneration.objects.count() == 2


def test_a_generation_that_is_rolled_back_begins_with_the_next_row(store: PostgresEventStore) -> None:
    store.append(history("a", 2))
    settle(store, 2)
    StoreGeneration.unprotected.update(cluster="7710275983152289212/00000001")
    connection.close()
    with transaction.atomic():
        store.append([stream("b", 1)])
        assert StoreGeneration.objects.count() == 2
        transaction.set_rollback(True)
    assert StoreGeneration.objects.count() == 1
    store.append([stream("a", 3)])
    settle(store, 3)
    entries, _ = read_on(store, BEGINNING, limit=10)
    assert [position.generation == 0 for position, _ in entries] == [True, True, False]


def test_a_server_that_does_not_tell_its_life_is_told_of_a_restore(store: PostgresEventStore) -> None:
    with connection.cursor() as cursor:
        cursor.execute("CREATE FUNCTION aurora_version() RETURNS text LANGUAGE sql AS $$ SELECT '17.4' $$")
        try:
            store.append([stream("a", 1)])
            assert store.position().generation == 0
            assert StoreGeneration.objects.count() == 0
            store.begin_generation(0)
            store.append([stream("a", 2)])
            settle(store, 2)
        finally:
            cursor.execute("DROP FUNCTION aurora_version()")
    entries, _ = read_on(store, BEGINNING, limit=10)
    assert [position.generation == 0 for position, _ in entries] == [True, False]


def test_a_generation_that_was_begun_by_hand_is_found_by_sessions_that_live_on(
    store: PostgresEventStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres, "_LOOK_AGAIN", 0.0)
    store.append([stream("a", 1)])
    store.begin_generation(0)
    store.append([stream("a", 2)])
    assert store.generation_of("a") == store.position().generation > 0


def test_a_store_that_is_where_it_was_stays_in_its_generation(store: PostgresEventStore) -> None:
    store.append(history("a", 2))
    position = store.position()
    connections.close_all()
    PostgresEventStore().append(history("b", 2))
    assert store.position().generation == position.generation == 0
    assert StoreGeneration.objects.count() == 1


def test_a_generation_begins_once_though_many_ask_for_it(store: PostgresEventStore) -> None:
    last = store.position().generation
    for call in [Call(partial(store.begin_generation, last)) for _ in range(4)]:
        call.result()
    assert StoreGeneration.objects.count() == 2


def test_a_generation_waits_for_those_who_write(store: PostgresEventStore) -> None:
    """Else their rows would appear in an order that was read already."""
    store.append([stream("before", 1)])
    with (
        bare_session() as writer,
        bare_session(autocommit=True) as observer,
        database_alias("waits", OPTIONS={"application_name": "waits"}),
    ):
        insert(writer, stream("slow", 1))
        call = Call(partial(PostgresEventStore("waits").begin_generation, 0))
        call.wait_for_a_lock(observer, "waits")
        writer.commit()
        call.result()
    store.append([stream("after", 1)])
    settle(store, 3)
    entries, _ = read_on(store, BEGINNING, limit=10)
    assert [record.aggregate_root_id for _, record in entries] == ["before", "slow", "after"]
    assert [position.generation == 0 for position, _ in entries] == [True, True, False]


def test_a_generation_of_another_life_counts_as_before_what_came_later(store: PostgresEventStore) -> None:
    """The generation was begun, and then a backup from before it was restored."""
    store.append([stream("old", 1)])
    lost = Position(1_000, 5)
    store.begin_generation(0)
    store.append([stream("new", 1)])
    settle(store, 2)
    assert [record.aggregate_root_id for _, record in read_on(store, lost, limit=10)[0]] == ["new"]
    assert store.heads_before(["old", "new"], lost) == {"old": 1}
    assert store.heads_before(["old", "new"], END) == {"old": 1, "new": 1}


def test_rows_of_the_callers_transaction_are_not_taken_for_those_of_another_cluster(
    store: PostgresEventStore,
) -> None:
    with transaction.atomic():
        store.append([stream("a", 1)])
        assert store.position().generation == 0
    assert store.position().generation == 0
    assert list(StoreGeneration.objects.values_list("generation", flat=True)) == [0]


def test_no_row_waits_for_the_record_of_the_first_generation(store: PostgresEventStore) -> None:
    with bare_session() as writer:
        insert(writer, stream("slow", 1))
        assert store.position() == Position(0, store.position().transaction_id)
        with connection.cursor() as cursor:
            cursor.execute(f"SELECT generation, after_sequence FROM {statements.GENERATIONS}")
            assert cursor.fetchall() == [(0, 0)]
