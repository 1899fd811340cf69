"""The spread load on one shard and on two, each on its own server, and the cost of checking a shard's ownership."""

from __future__ import annotations

import contextlib
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence

import psycopg
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.utils import ConnectionHandler

from benchmarks import loads
from benchmarks.figures import Figure, median
from benchmarks.throughput import ACCOUNTS, pipeline_seconds
from benchmarks.workspace import PROJECT, SETTINGS, Services, Workspace, count, with_database
from enode_django.eventstore import generations, statements
from enode_django.eventstore.buckets import ALL, SET_UP, ShardOwnership
from enode_django.eventstore.shard_map import owning
from sample_project.embedded import Postgres
from sample_project.settings import database_from_url

TEMPLATE = "shard_template"
CHECKS, CHECK_ROUNDS = 2_000, 5
WHOLE = ShardOwnership(0, SET_UP, ALL)


class ShardedWorkspace(Workspace):
    """A workspace with several shards. `connect` connects to the first one."""

    def __init__(self, shard_urls: Sequence[str], redis_url: str) -> None:
        super().__init__(shard_urls[0], redis_url)
        self.shard_urls = shard_urls

    @property
    def environment(self) -> dict[str, str]:
        return {**super().environment, "EVENT_DATABASE_URLS": " ".join(self.shard_urls)}

    def stored(self) -> int:
        total = 0
        for url in self.shard_urls:
            with psycopg.connect(url) as connection:
                total += count(connection, f"SELECT count(*) FROM {statements.TABLE}")
        return total

    def checkpoint(self) -> None:
        for url in self.shard_urls:
            with psycopg.connect(url, autocommit=True) as connection:
                connection.execute("CHECKPOINT")


class Servers:
    """A number of PostgreSQL servers, each with the template of a shard."""

    def __init__(self, number: int) -> None:
        self._servers = [Postgres() for _ in range(number)]
        self._closing = contextlib.ExitStack()

    def __enter__(self) -> Servers:
        for server in self._servers:
            self._closing.enter_context(server)
            _execute(server.url, f"CREATE DATABASE {TEMPLATE}")
        urls = " ".join(server.url_of(TEMPLATE) for server in self._servers)
        environment = {**os.environ, "DJANGO_SETTINGS_MODULE": SETTINGS, "EVENT_DATABASE_URLS": urls}
        for place in range(len(self._servers)):
            command = [sys.executable, "manage.py", "migrate", "-v", "0", f"--database=events{place}"]
            subprocess.run(command, cwd=PROJECT, env=environment, check=True)
        return self

    def __exit__(self, *_: object) -> None:
        self._closing.close()

    @contextlib.contextmanager
    def workspace(self, shards: int, redis_url: str) -> Iterator[ShardedWorkspace]:
        """Make a workspace with a new database on each of the first ``shards`` servers."""
        urls = [with_database(server.url, "shard") for server in self._servers[:shards]]
        try:
            for server in self._servers[:shards]:
                _execute(server.url, f"CREATE DATABASE shard TEMPLATE {TEMPLATE}")
            with contextlib.closing(ShardedWorkspace(urls, redis_url)) as workspace:
                yield workspace
        finally:
            for server in self._servers[:shards]:
                _execute(server.url, "DROP DATABASE IF EXISTS shard WITH (FORCE)")


def run(services: Services, quick: bool) -> list[Figure]:
    commands, rounds = (50_000, 1) if quick else (200_000, 3)
    accounts = loads.account_ids(ACCOUNTS)
    opening, messages = loads.opens(accounts), loads.deposits(accounts, commands)
    rates: dict[int, list[float]] = {1: [], 2: []}
    with Servers(2) as servers:
        for _ in range(rounds):
            for shards, found in rates.items():
                with servers.workspace(shards, services.redis_url) as workspace:
                    found.append(commands / pipeline_seconds(workspace, opening, messages))
        checks = [seconds * 1e6 for seconds in check_seconds(servers, services)]
    one = median("spread, 1 shard", rates[1], "commands/s")
    two = median("spread, 2 shards", rates[2], "commands/s", "each on a server of its own, on the same machine")
    return [
        one,
        two,
        Figure("spread, 2 shards / 1", two.value / one.value, "ratio"),
        *(
            median(f"claim check, batches of {size:,}", [check / size for check in checks], "µs a row")
            for size in (1_000, 100)
        ),
    ]


def check_seconds(servers: Servers, services: Services) -> list[float]:
    """Return, for each round, the median seconds of a transaction that only checks the ownership. Its commit does not
    wait for the disk, because a COPY without the check waits for it, too."""
    rounds = []
    with servers.workspace(1, services.redis_url) as workspace, _connection(workspace) as connection:
        server = generations.state(connection).server
        for _ in range(CHECK_ROUNDS):
            times = []
            for _ in range(CHECKS):
                started = time.perf_counter()
                with owning(connection, WHOLE, server):
                    pass
                times.append(time.perf_counter() - started)
            rounds.append(statistics.median(times))
    return rounds


@contextlib.contextmanager
def _connection(workspace: Workspace) -> Iterator[BaseDatabaseWrapper]:
    connection = ConnectionHandler({"default": database_from_url(workspace.database_url)})["default"]
    try:
        connection.ensure_connection()
        with connection.cursor() as cursor:
            cursor.execute("SET synchronous_commit = off")
            cursor.execute(statements.RECORD_CLAIM, (WHOLE.number, WHOLE.epoch, sorted(WHOLE.buckets)))
        yield connection
    finally:
        connection.close()


def _execute(url: str, statement: str) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(statement.encode())
