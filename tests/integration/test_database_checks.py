"""`manage.py check --database` reads the event store's real catalogue."""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Iterator

import psycopg
import pytest
from django.core.checks import CheckMessage, run_checks
from django.db import connection
from django.test import override_settings
from psycopg import IsolationLevel

from enode_django.checks.store import check_constraints, check_durability, check_sessions
from tests import warm
from tests.meta.tree import ROOT

pytestmark = pytest.mark.django_db
TABLE = "enode_django_eventstream"


def sql(statement: str) -> None:
    with connection.cursor() as cursor:
        cursor.execute(statement)


def ids(check: Callable[..., list[CheckMessage]], *databases: str) -> list[str | None]:
    return [message.id for message in check(None, databases=databases)]


def test_a_unique_constraint_that_is_gone_is_named_until_it_is_back() -> None:
    assert ids(check_constraints, "default") == []
    sql(f"ALTER TABLE {TABLE} DROP CONSTRAINT enode_stream_command")
    (message,) = check_constraints(None, databases=["default"])
    assert message.id == "enode_django.E027"
    assert "enode_stream_command" in message.msg
    sql(f"ALTER TABLE {TABLE} DROP CONSTRAINT enode_stream_version")
    assert ids(check_constraints, "default") == ["enode_django.E027"] * 2
    sql(f"CREATE UNIQUE INDEX enode_stream_command ON {TABLE} (command_id, aggregate_root_id)")
    sql(f"CREATE UNIQUE INDEX other ON {TABLE} (aggregate_root_id, version)")
    assert ids(check_constraints, "default") == []


@pytest.mark.parametrize(
    "index",
    [
        "INDEX lookalike ON {table} (aggregate_root_id, version)",
        "UNIQUE INDEX lookalike ON {table} (aggregate_root_id, version) WHERE version > 1",
        "UNIQUE INDEX lookalike ON {table} (aggregate_root_id, version, command_id)",
        "UNIQUE INDEX lookalike ON {table} (lower(aggregate_root_id), version)",
    ],
)
def test_an_index_that_is_not_as_strict_does_not_count(index: str) -> None:
    sql(f"ALTER TABLE {TABLE} DROP CONSTRAINT enode_stream_version")
    sql(f"CREATE {index.format(table=TABLE)}")
    assert ids(check_constraints, "default") == ["enode_django.E027"]


def test_a_database_without_tables_yet_says_nothing() -> None:
    sql(f"ALTER TABLE {TABLE} RENAME TO elsewhere")
    assert ids(check_constraints, "default") == []


def test_a_session_that_may_idle_in_its_transaction_for_ever_is_named() -> None:
    sql("SET LOCAL idle_in_transaction_session_timeout = 0")
    assert ids(check_sessions, "default") == ["enode_django.W031"]
    sql("SET LOCAL idle_in_transaction_session_timeout = '10min'")
    assert ids(check_sessions, "default") == []


def test_an_isolation_that_is_stricter_than_subscribers_need_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    sql("SET LOCAL idle_in_transaction_session_timeout = '10min'")
    sql("SET LOCAL default_transaction_isolation = 'repeatable read'")
    assert ids(check_sessions, "default") == ["enode_django.W172"]
    options = connection.settings_dict["OPTIONS"]
    monkeypatch.setitem(options, "isolation_level", IsolationLevel.READ_COMMITTED)
    assert ids(check_sessions, "default") == []
    monkeypatch.setitem(options, "isolation_level", IsolationLevel.SERIALIZABLE)
    assert ids(check_sessions, "default") == ["enode_django.W172"]


def test_a_commit_that_does_not_wait_for_the_disk_is_named_for_a_deployment() -> None:
    sql("SET LOCAL synchronous_commit = on")
    before = [message.msg for message in check_durability(None, databases=["default"])]  # test servers have fsync off
    assert not any("synchronous_commit" in message for message in before)
    sql("SET LOCAL synchronous_commit = off")
    (message,) = check_durability(None, databases=["default"])
    assert (message.id, "synchronous_commit = off" in message.msg) == ("enode_django.W186", True)
    assert "enode_django.W186" not in [found.id for found in run_checks(databases=["default"])]
    found = run_checks(databases=["default"], include_deployment_checks=True)
    assert "enode_django.W186" in [one.id for one in found]
    assert ids(check_durability) == []


def test_only_the_databases_that_were_asked_for_are_looked_at() -> None:
    sql(f"ALTER TABLE {TABLE} DROP CONSTRAINT enode_stream_version")
    assert ids(check_constraints) == ids(check_constraints, "no such") == []
    assert "enode_django.E027" not in [message.id for message in run_checks()]
    assert "enode_django.E027" in [message.id for message in run_checks(databases=["default"])]
    with override_settings(ENODE={"EVENT_STORE": "no dictionary"}):
        assert ids(check_constraints, "default") == []


def test_the_timeout_is_asked_for_a_deployment_only() -> None:
    sql("SET LOCAL idle_in_transaction_session_timeout = 0")
    assert "enode_django.W031" not in [message.id for message in run_checks(databases=["default"])]
    found = run_checks(databases=["default"], include_deployment_checks=True)
    assert "enode_django.W031" in [message.id for message in found]


@pytest.fixture
def latin() -> Iterator[str]:
    """Yield the URL of an empty database that lacks most characters."""
    name, server = f"latin_{uuid.uuid4().hex}", connection.settings_dict
    at = f"{server['HOST']}:{server['PORT']}"
    url = f"postgresql://{server['USER']}:{server['PASSWORD']}@{at}"
    with psycopg.connect(f"{url}/postgres", autocommit=True) as session:
        provider = "LOCALE_PROVIDER libc" if session.info.server_version >= 150_000 else ""
        session.execute(f"CREATE DATABASE {name} TEMPLATE template0 ENCODING 'LATIN1' {provider} LOCALE 'C'")
        yield f"{url}/{name}"
        session.execute(f"DROP DATABASE {name} WITH (FORCE)")


@pytest.mark.parametrize(
    ("command", "told"),
    [
        (["check", "--database", "default"], "(enode_django.E189) The database 'default' has the encoding LATIN1"),
        (["migrate"], "(enode_django.E189) The database 'default' has the encoding LATIN1"),
        (["runprocessors"], "the event database 'default' has the encoding LATIN1, not UTF8"),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_a_database_that_lacks_characters_is_refused(latin: str, command: list[str], told: str) -> None:
    environment = {**os.environ, "DATABASE_URL": latin, "DJANGO_SETTINGS_MODULE": "tests.acceptance.settings"}
    done = warm.run(["manage.py", *command], cwd=ROOT, env=environment)
    assert done.returncode == 1
    assert told in done.stderr
