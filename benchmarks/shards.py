"""The spread load on one shard and on two, each on a server of its own; and what checking a shard's claim costs."""

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
from benchmarks.raw_copy import batch, stored_rows
from benchmarks.throughput import ACCOUNTS, pipeline_seconds
from benchmarks.workspace import PROJECT, SETTINGS, Services, Workspace, count, with_database
from enode_django.eventstore import statements
from enode_django.eventstore.buckets import ALL, SET_UP, Claim
from enode_django.eventstore.shard_map import owning
from sample_project.embedded import Postgres
from sample_project.settings import database_from_url

TEMPLATE = "shard_template"
PAIRS = 500
WHOLE = Claim(0, SET_UP, ALL)


class ShardedWorkspace(Workspace):
    """`connect` leads to the first of its shards."""

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
    """So many, each with the template of a shard."""

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
        """A fresh database on each of the first servers."""
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
    rows: list[bytes] = []
    with Servers(2) as servers:
        for _ in range(rounds):
            for shards, found in rates.items():
                with servers.workspace(shards, services.redis_url) as workspace:
                    found.append(commands / pipeline_seconds(workspace, opening, messages))
                    rows = rows or stored_rows(workspace)
        one, two = (
            median(f"spread, {shards} shard{'s' * (shards > 1)}", found, "commands/s")
            for shards, found in rates.items()
        )
        checks = [check_cost(servers, services, rows, size) for size in (1_000, 100)]
    return [one, two, Figure("spread, 2 shards / 1", two.value / one.value, "ratio"), *checks]


def check_cost(servers: Servers, services: Services, rows: Sequence[bytes], size: int) -> Figure:
    """Microseconds a row that a batch's own transaction with the claim in it takes longer than COPY by itself, one batch
    of each kind after the other. The fast tenth of each kind is compared: what else the machine does only slows down."""
    batches = [batch(rows[start : start + size]) for start in range(0, len(rows), size)][: 2 * PAIRS]
    plain, checked = [], []
    with servers.workspace(1, services.redis_url) as workspace, _connection(workspace) as connection:
        for bare, owned in zip(batches[::2], batches[1::2], strict=False):
            started = time.perf_counter()
            _copy(connection, bare)
            between = time.perf_counter()
            with owning(connection, WHOLE):
                _copy(connection, owned)
            plain.append(between - started)
            checked.append(time.perf_counter() - between)
    alone, both = (statistics.quantiles(times, n=10)[0] * 1e6 for times in (plain, checked))
    added = both - alone
    note = f"{added:.0f} µs a batch; COPY alone {alone / size:.2f} µs a row"
    return Figure(f"claim check, batches of {size:,}", added / size, "µs a row", note=note)


@contextlib.contextmanager
def _connection(workspace: Workspace) -> Iterator[BaseDatabaseWrapper]:
    connection = ConnectionHandler({"default": database_from_url(workspace.database_url)})["default"]
    try:
        connection.ensure_connection()
        with connection.cursor() as cursor:
            cursor.execute(statements.RECORD_CLAIM, (WHOLE.number, WHOLE.epoch, sorted(WHOLE.buckets)))
        yield connection
    finally:
        connection.close()


def _copy(connection: BaseDatabaseWrapper, data: bytes) -> None:
    with psycopg.Cursor(connection.connection).copy(statements.COPY) as copy:
        copy.write(data)


def _execute(url: str, statement: str) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(statement.encode())
