"""A stack whose event store is two databases on two servers. The second server is the one that goes away."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psycopg

from enode_django import Command, CommandResult
from enode_django.eventstore.base import StreamRecord
from enode_django.eventstore.buckets import BUCKETS, bucket_of, even_shares
from enode_django.eventstore.rows import record_of
from enode_django.eventstore.statements import SHARD, STOP_WRITERS, TABLE
from sample_project.embedded import Postgres, Redis
from tests.acceptance.invariants import misplaced
from tests.acceptance.load import Load, any_id
from tests.acceptance.stack import QUICKLY, Stack
from tests.acceptance.waiting import wait_until
from tests.template import ACCEPTANCE

HERE, AWAY = 0, 1
SENDERS = 2
CONNECT_SECONDS = 2
"""In seconds. A stopped server accepts connections and never answers, so clients need a timeout of their own."""


def shard_url(server: Postgres, database: str) -> str:
    return f"{server.url_of(database)}?connect_timeout={CONNECT_SECONDS}"


def ids_of(shard: int, without: Iterable[int] = ()) -> Callable[[str], str]:
    """Makes ids of the shard's aggregates, in none of the buckets ``without``."""
    return ids_in(even_shares(2)[shard].difference(without))


def ids_in(buckets: Collection[int]) -> Callable[[str], str]:
    def make_id(prefix: str = "") -> str:
        return next(id for id in iter(lambda: any_id(prefix), None) if bucket_of(id) in buckets)

    return make_id


class ShardedStack(Stack):
    """``given`` are the shards' URLs that processes are started with; a test may change them."""

    def __init__(self, servers: Sequence[Postgres], redis: Redis, directory: Path) -> None:
        super().__init__(servers[HERE], redis, directory)
        self.servers = servers
        self.away = servers[AWAY]
        self.given: list[str] = []
        self._urls: list[str] = []
        self._askers = ThreadPoolExecutor(SENDERS, "asker")

    def __enter__(self) -> ShardedStack:
        for number, server in enumerate(self.servers):
            self.given.append(self.new_shard(server, f"{self._name}_{number}"))
        self._urls = list(self.given)
        super().__enter__()
        self._closing.callback(self._askers.shutdown, wait=False)
        return self

    def new_shard(self, server: Postgres, name: str) -> str:
        """An empty database with the store's tables; returns its URL."""
        with psycopg.connect(server.url, autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {name} TEMPLATE {ACCEPTANCE} {QUICKLY}")
        return shard_url(server, name)

    def _environment(self, apps: str | None, transport: str, enode: dict[str, Any]) -> dict[str, str]:
        return {**super()._environment(apps, transport, enode), "EVENT_DATABASE_URLS": " ".join(self.given)}

    # -- what runs on it ------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def loads(self, seed: int, without: Iterable[int] = ()) -> Iterator[tuple[Load, Load]]:
        """Senders to the aggregates of each shard, and others that transfer between all of them."""
        kinds = [{"threads": SENDERS, "make_id": ids_of(shard, without), "rounds": 30} for shard in (HERE, AWAY)]
        with (
            self.load(seed, **kinds[HERE]) as here,
            self.load(seed + 1, **kinds[AWAY]) as away,
            self.load(seed + 2, threads=SENDERS, varied=True, make_id=ids_in({*range(BUCKETS)}.difference(without))),
        ):
            yield here, away

    def ask(self, command: Command) -> Future[CommandResult | None]:
        """Execute a command without waiting for its answer here."""
        return self._askers.submit(self.client.execute, command)

    # -- the rows of the shards -----------------------------------------------------------------------------------

    def query_shard(self, shard: int, statement: str, *parameters: object) -> list[tuple[Any, ...]]:
        with psycopg.connect(self._urls[shard], autocommit=True) as connection:
            cursor = connection.execute(statement.encode(), parameters)
            return cursor.fetchall() if cursor.description else []

    def stored_in(self, shard: int) -> list[StreamRecord]:
        columns = ", ".join(StreamRecord._fields)
        return list(map(record_of, self.query_shard(shard, f"SELECT {columns} FROM {TABLE} ORDER BY sequence")))

    def stored(self) -> list[StreamRecord]:
        return [record for shard in (HERE, AWAY) for record in self.stored_in(shard)]

    def owned(self) -> list[list[int]]:
        """The buckets that each shard has recorded."""
        return [self.query_shard(shard, f"SELECT buckets FROM {SHARD}")[0][0] for shard in (HERE, AWAY)]

    def change_buckets(self, shard: int, change: str, bucket: int) -> None:
        """``change`` is a function of SQL: array_remove or array_append. Returns when nobody writes by the old map."""
        update = f"UPDATE {SHARD} SET epoch = epoch + 1, buckets = {change}(buckets, %s::smallint)"
        with psycopg.connect(self._urls[shard]) as connection:
            connection.execute(STOP_WRITERS.encode())
            connection.execute(update.encode(), [bucket])

    # -- invariants -----------------------------------------------------------------------------------------------

    def violations(self, published: bool) -> list[str]:
        found = list(misplaced([self.stored_in(shard) for shard in (HERE, AWAY)], self.owned()))
        return [*found, *super().violations(published)]

    def wait_swept(self) -> None:
        behind = "SELECT subscriber FROM enode_django_subscription WHERE shard = %s AND swept_position < %s"
        for shard in (HERE, AWAY):
            ((position,),) = self.query_shard(shard, "SELECT pg_snapshot_xmin(pg_current_snapshot())::text::bigint")
            wait_until(
                lambda shard=shard, position=position: not self.query(behind, shard, position),  # type: ignore[misc]
                f"all sweeps of shard {shard} have passed {position}",
            )
