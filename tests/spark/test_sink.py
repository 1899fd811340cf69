"""The writer of snapshots and its staging tables, called as tasks and the driver call them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.db import connection, connections

from enode_django.exceptions import ConfigurationError, StagingLost
from enode_django.models import Snapshot
from enode_django.spark import staging
from enode_django.spark.holding import held
from enode_django.spark.sink import StagedRows
from enode_django.spark.staging import drop_left_behind, staging_tables
from tests import warm
from tests.integration.postgres_proxy import Message, PostgresProxy
from tests.integration.sharded import ALIASES, opened, shard_databases, sharded_settings
from tests.integration.store_sessions import bare_session, database_alias, wait_until
from tests.integration.test_postgres_store_faults import client_sends, server_sends
from tests.meta.tree import ROOT
from tests.spark.batches import AT, batch, published, row

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def writer() -> Iterator[StagedRows]:
    with staging_tables(["default"]) as table:
        yield StagedRows(["default"], table)
    assert tables() == []


def tables(alias: str = "default") -> list[str]:
    with connections[alias].cursor() as cursor:
        cursor.execute(r"SELECT relname FROM pg_class WHERE relkind = 'r' AND relname LIKE 'enode\_staging\_%'")
        return [name for (name,) in cursor.fetchall()]


def test_nothing_is_to_be_seen_before_it_is_published(writer: StagedRows) -> None:
    portions = writer.write(iter([batch(row("a", 1), row("b", 2)), batch(row("c", 3))]))
    assert published() == {}
    writer.publish(portions)
    assert published() == {"a": 1, "b": 2, "c": 3}
    kept = Snapshot.objects.get(pk="b")
    assert (kept.aggregate_root_type, kept.fingerprint, bytes(kept.payload)) == ("spark.Thing", "f" * 32, b"p")
    assert kept.created_at == AT


def test_of_two_attempts_the_one_that_spark_names_counts(writer: StagedRows) -> None:
    writer.write(iter([batch(row("a", 9), row("lost", 9))]))
    portions = writer.write(iter([batch(row("a", 8))]))
    writer.publish(portions)
    assert published() == {"a": 8}


def test_an_attempt_that_fails_half_way_leaves_nothing(writer: StagedRows) -> None:
    def rows() -> Iterator[Any]:
        yield batch(row("a", 1))
        raise RuntimeError("the executor was killed")

    with pytest.raises(RuntimeError, match="was killed"):
        writer.write(rows())
    writer.publish(writer.write(iter([batch(row("b", 1))])))
    assert published() == {"b": 1}


def test_a_run_whose_table_is_gone_publishes_nothing(writer: StagedRows) -> None:
    portions = writer.write(iter([batch(row("a", 1))]))
    staging.drop("default", writer.table)
    assert (published(), tables()) == ({}, [])
    with pytest.raises(StagingLost, match=f"{writer.table} in database 'default' is gone"):
        writer.publish(portions)
    with pytest.raises(StagingLost):
        writer.write(iter([batch(row("a", 1))]))
    assert published() == {}


def test_publishing_again_changes_nothing(writer: StagedRows) -> None:
    portions = writer.write(iter([batch(row("a", 1))]))
    writer.publish(portions)
    Snapshot.objects.all().delete()
    writer.publish(portions)
    assert published() == {}


def test_an_attempt_that_comes_after_publishing_fails_alone(writer: StagedRows) -> None:
    writer.publish(writer.write(iter([batch(row("a", 1))])))
    with pytest.raises(StagingLost):
        writer.write(iter([batch(row("a", 2))]))
    assert published() == {"a": 1}


def test_newer_snapshots_stay_and_foreign_ones_are_replaced(writer: StagedRows) -> None:
    for id, version, fingerprint in (("newer", 9, "f" * 32), ("older", 3, "f" * 32), ("foreign", 9, "0" * 32)):
        Snapshot.objects.create(
            aggregate_root_id=id,
            aggregate_root_type="spark.Thing",
            version=version,
            fingerprint=fingerprint,
            payload=b"old",
            created_at=AT,
        )
    writer.publish(writer.write(iter([batch(row("newer", 5), row("older", 5), row("foreign", 5))])))
    assert published() == {"newer": 9, "older": 5, "foreign": 5}


def test_of_two_snapshots_of_an_aggregate_the_newer_one_is_published(writer: StagedRows) -> None:
    portions = writer.write(iter([batch(row("a", 3), row("b", 5))]))
    others = writer.write(iter([batch(row("a", 5), row("b", 3))]))
    writer.publish([*portions, *others])
    assert published() == {"a": 5, "b": 5}


def test_failures_are_told_and_not_published(writer: StagedRows) -> None:
    late = writer.write(iter([batch(row("x", 0, payload=None, failure="of a lost attempt"))]))
    good = writer.write(iter([batch(row("a", 1), row("b", 0, payload=None, failure="poison"))]))
    assert late
    writer.publish(good)
    assert published() == {"a": 1}
    query = "SELECT aggregate_root_id, failure FROM {staged} ORDER BY 1"
    assert staging.ask("default", writer.table, query) == [("a", None), ("b", "poison")]


def test_rows_that_a_crash_of_the_server_took_are_missed(writer: StagedRows) -> None:
    """It empties unlogged tables."""
    portions = writer.write(iter([batch(row("a", 1), row("b", 1))]))
    with connection.cursor() as cursor:
        cursor.execute(f"TRUNCATE {writer.table}")
    again = writer.write(iter([batch(row("c", 1))]))
    with pytest.raises(StagingLost, match="2 rows that were staged in database 'default' are gone"):
        writer.publish([*portions, *again])
    assert published() == {}
    assert tables() == [writer.table], "as it was, to be dropped by the driver"


@pytest.fixture
def proxied(transactional_db: None) -> Iterator[tuple[PostgresProxy, StagedRows]]:
    """A writer whose connection can be lost."""
    settings = connection.settings_dict
    options = {"sslmode": "disable", "gssencmode": "disable"}
    with (
        PostgresProxy(settings["HOST"] or "127.0.0.1", int(settings["PORT"] or 5432)) as proxy,
        database_alias("proxied", HOST="127.0.0.1", PORT=str(proxy.port), OPTIONS=options),
        staging_tables(["proxied"]) as table,
    ):
        yield proxy, StagedRows(["proxied"], table)


@pytest.mark.parametrize(
    ("lose_at", "after_ready"),
    [
        pytest.param(client_sends(b"Q", b"COPY"), False, id="before COPY"),
        pytest.param(client_sends(b"c"), False, id="before the end of COPY"),
        pytest.param(server_sends(b"C", b"COPY"), True, id="stored but not acknowledged"),
    ],
)
def test_a_connection_lost_while_staging_doubles_and_loses_no_row(
    proxied: tuple[PostgresProxy, StagedRows], lose_at: Callable[[Message], bool], after_ready: bool
) -> None:
    proxy, writer = proxied
    proxy.lose_at(lose_at, after_ready=after_ready)
    portions = writer.write(iter([batch(row("a", 1, alias="proxied"), row("b", 0, alias="proxied", failure="no"))]))
    assert proxy.lost.is_set()
    writer.publish(portions)
    assert published() == {"a": 1}
    assert staging.ask("proxied", writer.table, "SELECT count(*) FROM {staged}") == [(2,)]


@pytest.mark.parametrize(
    ("lose_at", "after_ready"),
    [
        pytest.param(client_sends(b"Q", b"INSERT"), False, id="before the rows are published"),
        pytest.param(client_sends(b"Q", b"COMMIT"), False, id="before COMMIT"),
        pytest.param(server_sends(b"C", b"COMMIT"), True, id="committed but not acknowledged"),
    ],
)
def test_a_connection_lost_while_publishing_is_survived(
    proxied: tuple[PostgresProxy, StagedRows], lose_at: Callable[[Message], bool], after_ready: bool
) -> None:
    proxy, writer = proxied
    portions = writer.write(iter([batch(row("a", 1, alias="proxied"))]))
    proxy.lose_at(lose_at, after_ready=after_ready)
    writer.publish(portions)
    assert proxy.lost.is_set()
    assert published() == {"a": 1}


def test_the_table_of_a_run_that_lives_is_left_alone(writer: StagedRows) -> None:
    assert drop_left_behind("default") == []
    with staging_tables(["default"]) as other:
        assert sorted(tables()) == sorted([writer.table, other])
    writer.publish(writer.write(iter([batch(row("a", 1))])))
    assert drop_left_behind("default") == [], "published, and not read yet"


DIES = """
import os
import django
django.setup()
from django.db import connections
connections.databases["default"]["NAME"] = {name!r}
from enode_django.spark.staging import staging_tables, publish
with staging_tables(["default"]) as table:
    if {published}:
        publish("default", table, {{}})
    os.kill(os.getpid(), 9)
"""


@pytest.mark.parametrize("is_published", [False, True])
def test_what_a_killed_driver_left_is_dropped_by_the_next_run(is_published: bool, writer: StagedRows) -> None:
    code = DIES.format(name=connection.settings_dict["NAME"], published=is_published)
    assert warm.run(["-c", code], cwd=ROOT).returncode == -9
    (left,) = set(tables()) - {writer.table}
    assert left.endswith("_done") == is_published
    _wait_until_it_is_noticed(left)
    with staging_tables(["default"]) as table:
        assert sorted(tables()) == sorted([writer.table, table])


def _wait_until_it_is_noticed(table: str) -> None:
    """The server frees the name when it looks at the dead driver's connection."""

    def is_noticed() -> bool:
        with held("default", re.sub("_done$", "", table)) as is_ours:
            return is_ours

    wait_until(is_noticed)


def test_a_table_that_somebody_still_copies_into_is_left_to_the_next_run(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(staging, "LOCK_TIMEOUT", "100ms")
    name = "enode_staging_" + "0" * 16
    with bare_session() as session:
        session.execute(f"CREATE UNLOGGED TABLE {name} (portion uuid)")
        session.commit()
        session.execute(f"INSERT INTO {name} VALUES (gen_random_uuid())")
        assert drop_left_behind("default") == []
        assert f"{name} of a dead run could not be dropped" in caplog.text
    assert drop_left_behind("default") == [name]


def test_a_run_holds_back_neither_the_feed_nor_vacuum(writer: StagedRows) -> None:
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT backend_xid, backend_xmin, state FROM pg_stat_activity JOIN pg_locks USING (pid)"
            " WHERE locktype = 'advisory' AND datname = current_database()"
        )
        assert cursor.fetchall() == [(None, None, "idle in transaction")]


def test_each_row_goes_to_the_database_that_it_names() -> None:
    with shard_databases() as names, opened(names), sharded_settings():
        with staging_tables(ALIASES) as table:
            writer = StagedRows(ALIASES, table)
            mixed = batch(row("a", 1, alias=ALIASES[0]), row("b", 2, alias=ALIASES[1]), row("c", 3, alias=ALIASES[0]))
            portions = writer.write(iter([mixed]))
            with pytest.raises(ConfigurationError, match="a row is for the database 'default'"):
                writer.write(iter([batch(row("d", 1))]))
            writer.publish(portions)
            assert [published(alias) for alias in ALIASES] == [{"a": 1, "c": 3}, {"b": 2}]
        assert [tables(alias) for alias in ALIASES] == [[], []]
