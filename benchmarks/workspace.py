"""The workspace of one run: its own database, topics and settings, which are removed at its end."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import subprocess
import sys
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, LiteralString
from urllib.parse import urlsplit, urlunsplit

import psycopg
import redis

from enode_django.conf.groups import BROKER, REDIS_STREAMS
from enode_django.equeue.producer import Producer
from enode_django.equeue.transport import Transport
from enode_django.equeue.transports.broker import BrokerTransport
from enode_django.equeue.transports.redis_streams import RedisStreamsTransport
from enode_django.eventstore.buckets import select_queue
from enode_django.eventstore.statements import TABLE
from sample_project.embedded import Broker
from sample_project.layers import merged

PROJECT = Path(__file__).resolve().parent.parent
SETTINGS = "benchmarks.settings"
COMMANDS, EVENTS, GROUP = "commands", "events", "processors"
QUEUES = 8

BASE: dict[str, Any] = {
    "COMMANDS": {"TOPIC": COMMANDS, "CONSUMER_GROUP": GROUP, "TIME_LIMIT": 600.0},
    "SUBSCRIBERS": {"TOPIC": EVENTS},
    "QUEUE": {"QUEUES_PER_TOPIC": QUEUES},
    # Workers are frozen for seconds while the queue is filled, and must not count as dead.
    "WORKERS": {"LEASE": 120.0},
}

_numbers = itertools.count(1)


class Workspace:
    """A workspace. ``subscribers`` are the names of those that run (empty: all). ``queue`` is a broker's location; if
    None, the queues are in Redis."""

    transport: Transport

    def __init__(
        self,
        database_url: str,
        redis_url: str,
        subscribers: Sequence[str] = (),
        /,
        *,
        queue: str | None = None,
        **enode: Any,
    ) -> None:
        self.database_url = database_url
        self.subscribers = subscribers
        self.redis_url = redis_url
        self.settings = SETTINGS
        self.prefix = f"bench-{uuid.uuid4().hex[:12]}"
        self.options: dict[str, Any] = {"prefix": self.prefix}
        if queue is None:
            place: dict[str, Any] = {"BACKEND": REDIS_STREAMS, "LOCATION": redis_url, "OPTIONS": self.options}
            self.transport = RedisStreamsTransport(redis_url, prefix=self.prefix)
        else:
            place = {"BACKEND": BROKER, "LOCATION": queue}
            self.transport = BrokerTransport(queue)
        self.enode = merged(BASE, {"QUEUE": place}, enode)
        self.producer = Producer(self.transport, queues=QUEUES, selector=select_queue)

    @property
    def environment(self) -> dict[str, str]:
        """The environment of the processes of the workspace."""
        return {
            **os.environ,
            "DJANGO_SETTINGS_MODULE": self.settings,
            "DATABASE_URL": self.database_url,
            "REDIS_URL": self.redis_url,
            "BENCHMARK_ENODE": json.dumps(self.enode),
            "BENCHMARK_SUBSCRIBERS": " ".join(self.subscribers),
        }

    def connect(self) -> psycopg.Connection[tuple[Any, ...]]:
        return psycopg.connect(self.database_url, autocommit=True)

    def send(self, messages: Sequence[tuple[str, bytes]], topic: str = COMMANDS, portion: int = 4_000) -> None:
        """Send (key, body) pairs to a topic."""
        for start in range(0, len(messages), portion):
            self.producer.send_batch(topic, messages[start : start + portion])

    def published(self) -> int:
        """Return the number of streams published so far."""
        return sum(self.transport.end_offsets(EVENTS).values())

    def stored(self) -> int:
        with self.connect() as connection:
            return count(connection, f"SELECT count(*) FROM {TABLE}")

    def snapshots(self) -> int:
        with self.connect() as connection:
            return count(connection, "SELECT count(*) FROM enode_django_snapshot")

    def checkpoint(self) -> None:
        """Run a checkpoint, so that earlier writes do not slow down the measurement."""
        with self.connect() as connection:
            connection.execute("CHECKPOINT")

    def owners(self, topic: str = COMMANDS, group: str = GROUP) -> list[str | None]:
        """Return the owner of each queue of a topic."""
        known = self.transport.groups(topic).get(group) if topic in self.transport.topics() else None
        claims = known.claims if known is not None else {}
        return [claims[queue].owner if queue in claims else None for queue in range(QUEUES)]

    def shared_states(self) -> int:
        """Return the number of shared states, if the aggregate cache uses this workspace's prefix."""
        with redis.Redis.from_url(self.redis_url) as client:
            return sum(1 for _ in client.scan_iter(f"{self.prefix}:state:*", count=1_000))

    def close(self) -> None:
        self.transport.close()
        with redis.Redis.from_url(self.redis_url) as client:
            for key in client.scan_iter(f"{self.prefix}:*", count=1_000):
                client.unlink(key)


def count(connection: psycopg.Connection[tuple[Any, ...]], query: LiteralString) -> int:
    row = connection.execute(query).fetchone()
    assert row is not None
    return int(row[0])


def with_database(url: str, name: str) -> str:
    """Return the URL of another database of the same server."""
    return urlunsplit(urlsplit(url)._replace(path=f"/{name}"))


class Services:
    """The servers of the whole run, and a migrated template database."""

    def __init__(self, database_url: str, redis_url: str) -> None:
        self.database_url = database_url
        self.redis_url = redis_url
        self._name = f"bench_{uuid.uuid4().hex[:8]}"
        self._template = f"{self._name}_template"

    def __enter__(self) -> Services:
        self._create(self._template)
        environment = {**os.environ, "DATABASE_URL": self._url(self._template), "DJANGO_SETTINGS_MODULE": SETTINGS}
        command = [sys.executable, "manage.py", "migrate", "-v", "0"]
        subprocess.run(command, cwd=PROJECT, env=environment, check=True)
        return self

    def __exit__(self, *_: object) -> None:
        self._drop(self._template)

    @contextlib.contextmanager
    def database(self, *, migrated: bool = True) -> Iterator[str]:
        """Make a database, and give its URL."""
        name = f"{self._name}_{next(_numbers)}"
        self._create(name, self._template if migrated else "template1")
        try:
            yield self._url(name)
        finally:
            self._drop(name)

    @contextlib.contextmanager
    def workspace(self, subscribers: Sequence[str] = (), /, **enode: Any) -> Iterator[Workspace]:
        with (
            self.database() as url,
            contextlib.closing(Workspace(url, self.redis_url, subscribers, **enode)) as workspace,
        ):
            yield workspace

    @contextlib.contextmanager
    def on_broker(self, subscribers: Sequence[str] = (), /, **enode: Any) -> Iterator[Workspace]:
        """Give a workspace with the queues in a broker of its own, which is the default of the settings."""
        with Broker() as server, self.workspace(subscribers, queue=server.url, **enode) as workspace:
            yield workspace

    def server_version(self) -> str:
        with psycopg.connect(self.database_url) as connection:
            return str(connection.info.parameter_status("server_version"))

    def _url(self, name: str) -> str:
        return with_database(self.database_url, name)

    def _create(self, name: str, template: str = "template1") -> None:
        self._execute(f'CREATE DATABASE "{name}" TEMPLATE "{template}"')

    def _drop(self, name: str) -> None:
        self._execute(f'DROP DATABASE IF EXISTS "{name}" WITH (FORCE)')

    def _execute(self, statement: str) -> None:
        with psycopg.connect(self.database_url, autocommit=True) as connection:
            connection.execute(statement)
