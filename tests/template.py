"""A PostgreSQL with migrated databases, made once for a parallel run. Each process begins with a copy.

``initdb`` and the migrations take more processor time than many test files.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import uuid
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

import psycopg

from sample_project.embedded import Postgres
from tests import warm
from tests.memory import MEMORY
from tests.meta.tree import ROOT

VARIABLE = "ENODE_TESTS_TEMPLATE"
"""The environment variable with the directory of the template's data, and its password, as JSON."""
MIGRATED = "ENODE_TESTS_MIGRATED"
"""The environment variable with the name of a migrated database, for processes that begin their own with a copy."""
SECONDS = 120.0

OWN, ACCEPTANCE = "enode_tests", "acceptance"
WITH_TABLES = (
    "django.contrib.admin",
    "django.contrib.messages",
    "django.contrib.sessions",
    "django_celery_beat",
    "tests.acceptance.meters",
    "tests.acceptance.reading",
    "sample_project.conference",
)
"""Apps with tables that some processes of the acceptance tests have."""
ENVIRONMENTS: Mapping[str, Mapping[str, str]] = {
    OWN: {"DJANGO_SETTINGS_MODULE": "sample_project.settings"},
    ACCEPTANCE: {"DJANGO_SETTINGS_MODULE": "tests.acceptance.settings", "ACCEPTANCE_APPS": " ".join(WITH_TABLES)},
}


class QuickPostgres(Postgres):
    """A PostgreSQL whose data survive a kill of its processes, but no crash of the machine."""

    parent = MEMORY

    def __init__(self) -> None:
        super().__init__({"fsync": "off", "autovacuum": "off", "max_wal_size": "256MB"})


class CopiedPostgres(QuickPostgres):
    """A PostgreSQL that starts with a copy of the stopped template's data. It has the template's password."""

    def __init__(self, data: Path, password: str) -> None:
        super().__init__()
        self.password = password
        self._data = data

    def _prepare(self) -> None:
        self._binaries = self._reachable_binaries()
        if self._account is not None:
            os.chown(self.directory, self._account.pw_uid, self._account.pw_gid)
        subprocess.run(["cp", "-a", self._data, self.directory / "data"], check=True)

    def _command(self) -> Sequence[str | Path]:
        return [*super()._command(), "-p", str(self.port)]


def new_postgres() -> Postgres:
    """Return a server that is not started yet: a copy of the template, if there is one."""
    given = os.environ.get(VARIABLE)
    if given is None:
        return QuickPostgres()
    data, password = json.loads(given)
    return CopiedPostgres(Path(data), password)


def migrated_database() -> dict[str, str]:
    """Return the environment of a process whose Django may copy a migrated database; empty if there is none."""
    return {MIGRATED: OWN} if VARIABLE in os.environ else {}


@contextlib.contextmanager
def template() -> Iterator[None]:
    """Make the template, for this process and those that it starts, until the block ends.

    Raises `ServerUnavailable`.
    """
    with QuickPostgres() as server:
        for name in ENVIRONMENTS:
            migrate(server.url, name)
        server.stop()
        os.environ[VARIABLE] = json.dumps([str(server.directory / "data"), server.password])
        try:
            yield
        finally:
            del os.environ[VARIABLE]


def migrated(server: str) -> str:
    """Return the name of the database, on the server with this URL, that has all tables and no rows. It is made if need
    be. Copy it; nobody may write to it."""
    migrate(server, OWN)
    return OWN


@contextlib.contextmanager
def new_database(server: str, template: str = "template1") -> Iterator[str]:
    """Make a copy of the template on the server with this URL, and yield its own URL. The usual template is empty."""
    name = f"copy_{uuid.uuid4().hex}"
    with psycopg.connect(server, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name} TEMPLATE {template}".encode())
    try:
        yield urlunsplit(urlsplit(server)._replace(path=f"/{name}"))
    finally:
        with psycopg.connect(server, autocommit=True) as connection:
            connection.execute(f"DROP DATABASE {name} WITH (FORCE)".encode())


def migrate(server: str, name: str) -> None:
    """Make one of the template's databases on the server with this URL, unless it has begun with it. Block while
    another process makes it. Until it is migrated it has another name, so that nobody copies an unfinished one."""
    unfinished = f"{name}_unfinished"
    with psycopg.connect(server, autocommit=True) as connection:
        connection.execute("SELECT pg_advisory_lock(hashtext(%s))", [unfinished])  # until the connection is closed
        if connection.execute("SELECT FROM pg_database WHERE datname = %s", [name]).rowcount:
            return
        connection.execute(f"DROP DATABASE IF EXISTS {unfinished} WITH (FORCE)".encode())
        connection.execute(f"CREATE DATABASE {unfinished}".encode())
        environment = {
            **os.environ,
            **ENVIRONMENTS[name],
            "DATABASE_URL": urlunsplit(urlsplit(server)._replace(path=f"/{unfinished}")),
        }
        done = warm.run(["manage.py", "migrate", "--verbosity=0"], cwd=ROOT, env=environment, seconds=SECONDS)
        assert done.returncode == 0, done.stderr
        connection.execute(f"ALTER DATABASE {unfinished} RENAME TO {name}".encode())
