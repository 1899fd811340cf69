"""A claim is durable when the mailbox goes on: the server may crash before the stream of the command is stored."""

from __future__ import annotations

import psycopg
import pytest
from django.db import connections

from enode_django.eventstore.postgres_unique_values import PostgresUniqueValues
from enode_django.eventstore.unique_values import Owner, UniqueKey
from sample_project.embedded import Postgres
from tests.integration.store_sessions import database_alias
from tests.template import OWN, migrate

pytestmark = pytest.mark.django_db(transaction=True)
KEY = UniqueKey("members.Member:nickname", b"digest of ada")


def test_a_claim_outlives_a_crash_of_the_server(private_postgres: Postgres) -> None:
    """A worker that lives through the crash stores the stream afterwards, so nobody else may have the value."""
    migrate(private_postgres.url, OWN)
    with psycopg.connect(private_postgres.url, autocommit=True) as connection:
        connection.execute("ALTER SYSTEM SET wal_writer_delay = '10s'")  # the log is written by those who wait for it
        connection.execute("SELECT pg_reload_conf()")
    place = {"HOST": "127.0.0.1", "PORT": private_postgres.port, "PASSWORD": private_postgres.password, "NAME": OWN}
    with database_alias("crashing", USER="postgres", **place):
        values = PostgresUniqueValues("crashing")
        assert values.claim(Owner("member-1", 1, "command-1", "members.Join", "crashing"), [KEY], []) == []
        connections["crashing"].close()
        private_postgres.kill()
        private_postgres.start()
        held = values.claim(Owner("member-2", 1, "command-2", "members.Join", "crashing"), [KEY], [])
        assert [one.aggregate_root_id for one in held] == ["member-1"]
