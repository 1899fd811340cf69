"""The connection is lost at each point; nothing may be lost or doubled by it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest
from django.db import connection, connections, transaction

from enode_django.databases import healthy_connection
from enode_django.eventstore.base import Outcome, StreamRecord
from enode_django.eventstore.postgres import PostgresEventStore
from enode_django.exceptions import StoreUnavailable
from enode_django.testing.event_store_read_contract import outcomes, refusal, stream
from tests.integration.postgres_proxy import Message, PostgresProxy
from tests.integration.store_sessions import (
    Call,
    bare_session,
    database_alias,
    insert,
)
from tests.template import migrated

pytestmark = pytest.mark.django_db(transaction=True)

STORED, CONFLICT = Outcome.STORED, Outcome.CONFLICT
OWNER = "worker-7"


@pytest.fixture
def proxy(transactional_db: None) -> Iterator[PostgresProxy]:
    settings = connection.settings_dict
    host, port = settings["HOST"] or "127.0.0.1", int(settings["PORT"] or 5432)
    options = {"sslmode": "disable", "gssencmode": "disable", "application_name": OWNER}
    with (
        PostgresProxy(host, port) as proxy,
        database_alias("proxied", HOST="127.0.0.1", PORT=str(proxy.port), OPTIONS=options),
    ):
        yield proxy


@pytest.fixture
def store(proxy: PostgresProxy) -> PostgresEventStore:
    return PostgresEventStore("proxied")


def batch(size: int = 350) -> list[StreamRecord]:
    """Return a batch that takes more than one write of COPY data. From 1,000 rows on, the server inserts some before it
    has seen all."""
    return [stream(f"root-{number % 7}", number // 7 + 1, events=bytes(1_000)) for number in range(size)]


def assert_stored_once(records: list[StreamRecord]) -> None:
    seen = PostgresEventStore()
    assert seen.find([record.command_key for record in records]) == {record.command_key: record for record in records}
    with connection.cursor() as cursor:
        cursor.execute("SELECT count(*) FROM enode_django_eventstream")
        assert cursor.fetchone() == (len(records),)


def client_sends(kind: bytes, text: bytes = b"", skip: int = 0) -> Callable[[Message], bool]:
    seen = iter(range(skip + 1))

    def condition(message: Message) -> bool:
        fits = message.from_client and message.kind == kind and text in message.body
        return fits and next(seen) == skip

    return condition


def server_sends(kind: bytes, text: bytes = b"") -> Callable[[Message], bool]:
    return lambda message: not message.from_client and message.kind == kind and text in message.body


@pytest.mark.parametrize(
    ("lose_at", "after_ready"),
    [
        pytest.param(client_sends(b"Q", b"COPY"), False, id="before COPY"),
        pytest.param(server_sends(b"G"), False, id="COPY accepted"),
        pytest.param(client_sends(b"d"), False, id="before the first row"),
        pytest.param(client_sends(b"d", skip=2), False, id="amid the rows"),
        pytest.param(client_sends(b"c"), False, id="before the end of COPY"),
        pytest.param(server_sends(b"C", b"COPY"), True, id="committed but not acknowledged"),
    ],
)
def test_a_copy_that_loses_its_connection_is_resolved_by_sending_again(
    proxy: PostgresProxy, store: PostgresEventStore, lose_at: Callable[[Message], bool], after_ready: bool
) -> None:
    records = batch()
    proxy.lose_at(lose_at, after_ready=after_ready)
    with pytest.raises(StoreUnavailable) as caught:
        store.append(records)
    assert proxy.lost.is_set()
    assert isinstance(caught.value.__cause__, psycopg.OperationalError)
    assert connections["proxied"].connection is None, "closed, so that whoever uses it next connects anew"
    assert set(outcomes(store.append(records, doubtful=True))) == {STORED}
    assert_stored_once(records)


@pytest.mark.parametrize(
    ("lose_at", "after_ready"),
    [
        pytest.param(client_sends(b"P", b"INSERT"), False, id="before INSERT"),
        pytest.param(server_sends(b"D"), False, id="inserted"),
        pytest.param(client_sends(b"Q", b"COMMIT"), False, id="before COMMIT"),
        pytest.param(server_sends(b"C", b"COMMIT"), True, id="committed but not acknowledged"),
    ],
)
def test_the_slow_path_that_loses_its_connection_is_resolved_by_sending_again(
    proxy: PostgresProxy, store: PostgresEventStore, lose_at: Callable[[Message], bool], after_ready: bool
) -> None:
    records = batch()
    PostgresEventStore().append(records[:10])
    proxy.lose_at(lose_at, after_ready=after_ready)
    with pytest.raises(StoreUnavailable):
        store.append(records, doubtful=True)
    assert proxy.lost.is_set()
    assert set(outcomes(store.append(records, doubtful=True))) == {STORED}
    assert_stored_once(records)


@pytest.mark.parametrize(
    ("lose_at", "after_ready"),
    [
        pytest.param(client_sends(b"P", b"DISTINCT sent.root"), False, id="before the disputed aggregates are known"),
        pytest.param(server_sends(b"C", b"COPY 300"), False, id="before the others are committed"),
        pytest.param(server_sends(b"C", b"COMMIT"), True, id="the others are committed"),
        pytest.param(client_sends(b"P", b"INSERT"), False, id="before INSERT"),
    ],
)
def test_a_connection_lost_between_the_undisputed_and_the_disputed_is_resolved_by_sending_again(
    proxy: PostgresProxy, store: PostgresEventStore, lose_at: Callable[[Message], bool], after_ready: bool
) -> None:
    records, theirs = batch(), stream("root-3", 1, "theirs")
    PostgresEventStore().append([theirs])
    proxy.lose_at(lose_at, after_ready=after_ready)
    with pytest.raises(StoreUnavailable):
        store.append(records)
    assert proxy.lost.is_set()
    results = store.append(records, doubtful=True)
    ours = [record for record in records if record.aggregate_root_id != "root-3"]
    assert next(result.outcome for result in results if result.outcome is not STORED) is CONFLICT
    assert outcomes(results).count(STORED) == len(ours)
    assert_stored_once([*ours, theirs])


def test_a_lost_read_is_retriable(proxy: PostgresProxy, store: PostgresEventStore) -> None:
    records = [stream("a", version) for version in range(1, 1_501)]
    store.append(records)
    history = store.load("a")
    assert next(history) == records[0]
    proxy.lose_at(client_sends(b"P", b"SELECT"))
    with pytest.raises(StoreUnavailable):
        list(history)
    assert list(store.load("a")) == records


def test_a_session_stopped_inside_copy_holds_its_keys_until_it_is_ended(
    proxy: PostgresProxy, store: PostgresEventStore
) -> None:
    records = batch(1_200)
    proxy.lose_at(client_sends(b"c"), keep_server=True)
    with pytest.raises(StoreUnavailable):
        store.append(records)
    with database_alias("successor", OPTIONS={"application_name": "successor"}), bare_session() as observer:
        successor = Call(lambda: PostgresEventStore("successor").append(records, doubtful=True))
        successor.wait_for_a_lock(observer, "successor")
        assert PostgresEventStore().end_sessions(OWNER) == 1
        assert set(outcomes(successor.result())) == {STORED}
    assert_stored_once(records)


def test_only_the_sessions_of_the_owner_are_ended(transactional_db: None) -> None:
    long_name = "host-with-a-long-name" * 4
    with (
        bare_session(application_name=long_name) as first,
        bare_session(application_name=long_name) as second,
        bare_session(application_name=long_name, autocommit=True) as idle,
        bare_session(application_name=long_name[:-30], autocommit=True) as other,
        database_alias("own", OPTIONS={"application_name": long_name}),
    ):
        for session in (first, second, idle, other):
            session.execute("SELECT 1")
        own = PostgresEventStore("own")
        assert own.end_sessions(long_name) == 2
        assert own.end_sessions(long_name) == 0
        for kept in (idle, other):
            kept.execute("SELECT 1")
        for ended in (first, second):
            with pytest.raises(psycopg.OperationalError):
                ended.execute("SELECT 1")


def backend_pid(alias: str = "default") -> int:
    pid: int = connections[alias].connection.info.backend_pid
    return pid


def terminate(pid: int) -> None:
    with bare_session(autocommit=True) as session:
        assert session.execute("SELECT pg_terminate_backend(%s, 10000)", [pid]).fetchone() == (True,)


def test_a_backend_terminated_while_idle_is_replaced_without_an_error(transactional_db: None) -> None:
    store = PostgresEventStore()
    store.append([stream("a", 1)])
    before = backend_pid()
    terminate(before)
    assert outcomes(store.append([stream("a", 2)])) == [STORED]
    assert backend_pid() != before


def test_a_terminated_backend_does_not_fail_a_thread_for_ever(transactional_db: None) -> None:
    before = healthy_connection().connection.info.backend_pid
    terminate(before)
    with healthy_connection().cursor() as cursor:
        cursor.execute("SELECT pg_backend_pid()")
        assert cursor.fetchone() != (before,)


def test_a_connection_left_inside_a_statement_is_replaced(transactional_db: None) -> None:
    before = healthy_connection().connection
    before.pgconn.send_query(b"COPY enode_django_eventstream FROM STDIN")
    assert healthy_connection().connection is not before


def test_a_backend_terminated_while_it_waits_makes_the_store_unavailable_once(transactional_db: None) -> None:
    record = stream("a", 1)
    with database_alias("waiting", OPTIONS={"application_name": OWNER}), bare_session() as rival:
        insert(rival, stream("a", 1))
        call = Call(lambda: PostgresEventStore("waiting").append([record]))
        call.wait_for_a_lock(rival, OWNER)
        assert PostgresEventStore().end_sessions(OWNER) == 1
        with pytest.raises(StoreUnavailable):
            call.result()
        rival.rollback()
    assert outcomes(PostgresEventStore().append([record], doubtful=True)) == [STORED]


@pytest.mark.parametrize(
    ("setting", "cause"),
    [
        ("statement_timeout", psycopg.errors.QueryCanceled),
        ("lock_timeout", psycopg.errors.LockNotAvailable),
    ],
)
@pytest.mark.parametrize("doubtful", [False, True])
def test_a_timeout_makes_the_store_unavailable_and_keeps_the_connection(
    transactional_db: None, setting: str, cause: type[Exception], doubtful: bool
) -> None:
    record = stream("a", 1)
    with database_alias("hasty") as alias, bare_session() as rival, connections[alias].cursor() as cursor:
        store = PostgresEventStore(alias)
        store.append([stream("b", 1)])
        before = backend_pid(alias)
        insert(rival, stream("a", 1))
        cursor.execute(f"SET {setting} = '50ms'")
        with pytest.raises(StoreUnavailable) as caught:
            store.append([record], doubtful=doubtful)
        cursor.execute(f"RESET {setting}")
        assert isinstance(caught.value.__cause__, cause)
        rival.commit()
        assert outcomes(store.append([record], doubtful=True)) == [CONFLICT]
        assert backend_pid(alias) == before


def test_a_deadlock_makes_the_store_unavailable(transactional_db: None) -> None:
    """The rival waits first, so that the store's wait closes the circle and its session is the one to give way."""
    held, wanted = stream("a", 1), stream("b", 1)
    with (
        database_alias("victim", OPTIONS={"options": "-c deadlock_timeout=20ms"}),
        bare_session(options="-c deadlock_timeout=600s", application_name=OWNER) as rival,
        bare_session() as observer,
    ):
        store = PostgresEventStore("victim")
        with transaction.atomic("victim"):
            store.append([held])
            insert(rival, stream("b", 1))
            call = Call(lambda: insert(rival, stream("a", 1)))
            call.wait_for_a_lock(observer, OWNER)
            with pytest.raises(StoreUnavailable) as caught:
                store.append([wanted])
            transaction.set_rollback(True, using="victim")
        assert isinstance(caught.value.__cause__, psycopg.errors.DeadlockDetected)
        call.result()
        rival.rollback()
        assert outcomes(store.append([held, wanted], doubtful=True)) == [STORED, STORED]


@pytest.mark.parametrize("end", ["restart", "kill"])
def test_a_restarted_server_is_found_again(transactional_db: None, private_postgres: Any, end: str) -> None:
    parameters = psycopg.conninfo.conninfo_to_dict(private_postgres.url)
    settings = {
        "NAME": migrated(private_postgres.url),  # no other test has this server
        "USER": parameters["user"],
        "PASSWORD": parameters.get("password", ""),
        "HOST": parameters["host"],
        "PORT": parameters.get("port", ""),
    }
    with database_alias("private", **settings):
        store = PostgresEventStore("private")
        first = [stream("a", 1), refusal("a")]
        assert outcomes(store.append(first)) == [STORED, STORED]

        private_postgres.stop() if end == "restart" else private_postgres.kill()
        second = [stream("a", 2)]
        for doubtful in (False, True):
            with pytest.raises(StoreUnavailable):
                store.append(second, doubtful=doubtful)
        with pytest.raises(StoreUnavailable):
            store.heads(["a"])
        private_postgres.start()

        assert outcomes(store.append([*first, *second], doubtful=True)) == [STORED] * 3
        assert list(store.load("a")) == [first[0], second[0]]
