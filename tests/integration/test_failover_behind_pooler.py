"""A pooler keeps its clients' connections while a standby without the last streams takes over, and its servers' while
clients go."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import psycopg
import pytest
from django.db import connections

from chaos.servers import Standby
from enode_django import databases
from enode_django.eventstore.base import Outcome
from enode_django.eventstore.postgres import PostgresEventStore
from enode_django.exceptions import StoreUnavailable
from enode_django.testing.event_store_read_contract import outcomes, stream
from sample_project.embedded import Postgres
from tests.acceptance.pgbouncer import PgBouncer
from tests.integration.store_sessions import database_alias, wait_until
from tests.template import OWN, migrate

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def bouncer(private_postgres: Postgres) -> Iterator[PgBouncer]:
    migrate(private_postgres.url, OWN)
    with PgBouncer(private_postgres) as bouncer:
        place = {"HOST": "127.0.0.1", "PORT": bouncer.port, "PASSWORD": private_postgres.password, "NAME": OWN}
        with database_alias("pooled", USER="postgres", **place):
            yield bouncer


@pytest.fixture
def standby(private_postgres: Postgres) -> Iterator[Standby]:
    with Standby(private_postgres) as standby:
        yield standby


def cut_off(standby: Standby, primary: Postgres) -> None:
    """Stop the standby when it has all streams. Those that are stored from now on will be lost."""
    with psycopg.connect(primary.url, autocommit=True) as one:
        (end,) = one.execute("SELECT pg_current_wal_lsn()").fetchall()[0]
    with psycopg.connect(standby.url, autocommit=True) as other:
        reached = "SELECT pg_last_wal_replay_lsn() >= %s::pg_lsn"
        wait_until(lambda: bool(other.execute(reached, [end]).fetchall()[0][0]))
    standby.stop()


def test_no_batch_after_a_failover_follows_lost_streams(
    bouncer: PgBouncer, standby: Standby, private_postgres: Postgres
) -> None:
    store = PostgresEventStore("pooled")
    store.append([stream("a", 1), stream("b", 1)])
    cut_off(standby, private_postgres)
    store.append([stream("a", 2)])
    session, generation = connections["pooled"].connection, store.generation_of("a")

    private_postgres.kill()
    standby.start()
    bouncer.lead_to(standby)
    with pytest.raises(StoreUnavailable):
        store.append([stream("a", 3)])
    with psycopg.connect(standby.url, autocommit=True) as connection:
        connection.execute("SELECT pg_promote(true, 60)")

    stored = store.append([stream("a", 3), stream("b", 2)])
    assert connections["pooled"].connection is session
    assert [one.outcome for one in stored] == [Outcome.CONFLICT, Outcome.STORED]
    assert store.heads(["a", "b"]) == {"a": 1, "b": 2}
    assert store.generation_of("b") > generation


def test_sessions_of_a_dead_worker_that_a_pooler_keeps_for_others_are_not_ended(bouncer: PgBouncer) -> None:
    url = f"{bouncer.url_of(OWN)}?application_name=dead-worker"
    with psycopg.connect(url) as one, psycopg.connect(url) as other:
        one.execute("SELECT 1")
        other.execute("SELECT 1")  # in a transaction while the first one is, so that each has a session
    assert PostgresEventStore("pooled").end_sessions("dead-worker") == 0


def test_a_session_on_a_standby_is_replaced_once_the_name_leads_to_the_primary(
    standby: Standby, private_postgres: Postgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a failover a name may lead for a while to the old primary, which has become a standby."""
    monkeypatch.setattr(databases, "READ_ONLY_SECONDS", 0.0)
    migrate(private_postgres.url, OWN)
    place = {"HOST": "127.0.0.1", "PASSWORD": private_postgres.password, "NAME": OWN, "USER": "postgres"}
    with database_alias("primary", PORT=private_postgres.port, **place):
        PostgresEventStore("primary").append([stream("a", 1)])
    with database_alias("named", PORT=standby.port, **place):
        store = PostgresEventStore("named")
        wait_until(lambda: _heads(store) == {"a": 1})
        session = connections["named"].connection
        with pytest.raises(StoreUnavailable, match="during recovery"):
            store.append([stream("a", 2)])
        connections["named"].settings_dict["PORT"] = private_postgres.port
        assert outcomes(store.append([stream("a", 2)], doubtful=True)) == [Outcome.STORED]
        assert connections["named"].connection is not session


def _heads(store: PostgresEventStore) -> Mapping[str, int]:
    try:
        return store.heads(["a"])
    except (StoreUnavailable, psycopg.Error):  # the standby does not have the database or the table yet
        connections[store.alias].close()
        return {}
