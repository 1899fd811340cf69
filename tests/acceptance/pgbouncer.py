"""PgBouncer with a pool for transactions, in front of a stack's PostgreSQL."""

from __future__ import annotations

import pwd
import shutil
import signal
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.rows import dict_row

from sample_project.embedded import Postgres
from sample_project.embedded_process import Server, unprivileged_account
from tests.acceptance.stack import Stack
from tests.services import services_required

CONNECTIONS = 8
"""Connections to the server. The processes of a stack open more to the pooler, so they have to share these."""


class PgBouncer(Server):
    stop_signal = signal.SIGINT

    def __init__(self, postgres: Postgres) -> None:
        found = shutil.which("pgbouncer")
        if found is None and not services_required():
            pytest.skip("no pgbouncer: apt install pgbouncer")
        assert found is not None, "no pgbouncer: apt install pgbouncer"
        super().__init__()
        self._program = found
        self._postgres = postgres

    @property
    def url(self) -> str:
        return self.url_of("postgres")

    def url_of(self, database: str) -> str:
        return f"postgresql://postgres:{self._postgres.password}@127.0.0.1:{self.port}/{database}"

    def _prepare(self) -> None:
        users = self.directory / "users.txt"
        users.write_text(f'"postgres" "{self._postgres.password}"\n')
        self._write_settings(users)
        for path in (self.directory, users):
            if self._account is not None:
                shutil.chown(path, self._account.pw_uid, self._account.pw_gid)

    def _write_settings(self, users: Path) -> None:
        settings = {
            "listen_addr": "127.0.0.1",
            "listen_port": self.port,
            "unix_socket_dir": "",
            "auth_type": "scram-sha-256",
            "auth_file": users,
            "admin_users": "postgres",
            "pool_mode": "transaction",
            "default_pool_size": CONNECTIONS,
            "max_client_conn": 500,
        }
        lines = ["[databases]", f"* = host=127.0.0.1 port={self._postgres.port}", "[pgbouncer]"]
        lines += (f"{name} = {value}" for name, value in settings.items())
        (self.directory / "pgbouncer.ini").write_text("\n".join(lines))

    def lead_to(self, postgres: Postgres) -> None:
        """Lead to another server, which has the same password. Clients keep their connections."""
        self._postgres = postgres
        self._write_settings(self.directory / "users.txt")
        with psycopg.connect(self.url_of("pgbouncer"), autocommit=True) as connection:
            connection.execute("RELOAD")

    def _command(self) -> Sequence[str | Path]:
        return [self._program, self.directory / "pgbouncer.ini"]

    def _answers(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0

    def clients_of(self, database: str) -> int:
        """Return how many connections the processes have to a database now."""
        with psycopg.connect(self.url_of("pgbouncer"), autocommit=True, row_factory=dict_row) as connection:
            return sum(client["database"] == database for client in connection.execute("SHOW CLIENTS"))

    @property
    def _account(self) -> pwd.struct_passwd | None:
        return unprivileged_account()


class PooledStack(Stack):
    """A stack all of whose processes reach PostgreSQL through PgBouncer. The test itself looks past it."""

    bouncer: PgBouncer

    def _environment(self, apps: str | None, transport: str, enode: dict[str, Any]) -> dict[str, str]:
        pooled = {"DATABASE_URL": self.bouncer.url_of(self._name), "DATABASE_POOLER": "pgbouncer"}
        return {**super()._environment(apps, transport, enode), **pooled}

    def connections(self) -> tuple[int, int]:
        """Return how many the processes have to the pool, and how many the pool has to the server."""
        asked = "SELECT count(*) FROM pg_stat_activity WHERE datname = %s AND pid <> pg_backend_pid()"
        ((pooled,),) = self.query(asked, self._name)
        return self.bouncer.clients_of(self._name), int(pooled)
