"""One event store, one set of queues, the processors on them, and the senders' bus."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import uuid
from collections.abc import Iterator
from datetime import UTC
from pathlib import Path
from typing import Any

import psycopg

from enode_django.commanding.bus import QueueCommandBus
from enode_django.equeue.producer import Producer
from enode_django.equeue.transports.redis_streams import RedisStreamsTransport
from enode_django.eventing.messages import decode_published
from enode_django.eventing.publisher import dead_letter_topic
from enode_django.eventstore.base import StreamRecord
from enode_django.eventstore.statements import TABLE
from enode_django.exceptions import UnknownTopic
from enode_django.runtime import use_bus
from enode_django.serialization.plain import unpack
from sample_project.embedded import Postgres, Redis
from tests.acceptance.invariants import Facts, variety, violations
from tests.acceptance.journal import Journal
from tests.acceptance.load import Client, Load
from tests.acceptance.processors import PROJECT, Processors
from tests.acceptance.waiting import wait_until

TEMPLATE = "acceptance"
REDIS_STREAMS = "enode_django.equeue.transports.redis_streams.RedisStreamsTransport"
SLOW_REDIS_STREAMS = "tests.acceptance.slow_transport.SlowRedisStreams"
QUEUES = 4
GROUP, COMMANDS, EVENTS = "processors", "commands", "events"
ENODE = {"QUEUES_PER_TOPIC": QUEUES, "LEASE": 2.0, "GRACE": 8.0, "COMMIT_INTERVAL": 0.3, "HANDLER_TIME_LIMIT": 20.0}
ROUNDS = 500
SHOWN = 20
LOG_SHOWN = 20_000


class Stack:
    """``with`` makes and removes it. ``client`` and loads send from this process and write the ``journal``."""

    def __init__(self, postgres: Postgres, redis: Redis, directory: Path) -> None:
        self.postgres = postgres
        self.redis = redis
        self.journal = Journal()
        self.client = Client(self.journal)
        self._directory = directory
        self._name = f"acceptance_{uuid.uuid4().hex}"
        self._started: list[Processors] = []
        self.transport = RedisStreamsTransport(redis.url, prefix=self._name, timeout=3.0)
        self._closing = contextlib.ExitStack()

    def __enter__(self) -> Stack:
        with psycopg.connect(self.postgres.url, autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {self._name} TEMPLATE {TEMPLATE}")
        self.transport.create_topic(EVENTS, QUEUES)
        for queue in range(QUEUES):  # by a group that commits nothing, so that what was published can be looked at
            self.transport.acquire("onlooker", EVENTS, queue, "onlooker", 1)
        self.transport.create_topic(COMMANDS, QUEUES)
        bus = QueueCommandBus(self.transport, Producer(self.transport, queues=QUEUES), COMMANDS)
        self._closing.callback(bus.close)
        self._closing.callback(self._close_processors)
        self._closing.enter_context(use_bus(bus))
        return self

    def __exit__(self, *exception: object) -> None:
        self._closing.close()

    def _close_processors(self) -> None:
        for processors in self._started:
            processors.close()
            print(f"---- {processors.log_path.name}\n{_without_noise(processors.log)[-LOG_SHOWN:]}")

    # -- what runs on it ------------------------------------------------------------------------------------------

    def start(
        self,
        processes: int = 2,
        *options: str,
        role: str = "command",
        apps: str = "tests.acceptance.faulty",
        transport: str = REDIS_STREAMS,
        **enode: Any,
    ) -> Processors:
        """A ``runprocessors`` that has just been started, with options and ``ENODE`` settings of its own."""
        environment = self._environment(apps, transport, enode)
        log = self._directory / f"{self._name}-{len(self._started)}.log"
        processors = Processors(environment, log, processes, "--role", role, *options)
        self._started.append(processors)
        return processors

    def migrate(self, apps: str) -> None:
        """Make the tables of apps that the template database does not know."""
        environment = self._environment(apps, REDIS_STREAMS, {})
        command = [sys.executable, "manage.py", "migrate", "--verbosity=0"]
        subprocess.run(command, cwd=PROJECT, env={**os.environ, **environment}, check=True, timeout=60)

    def _environment(self, apps: str, transport: str, enode: dict[str, Any]) -> dict[str, str]:
        queue = {
            "BACKEND": transport,
            "LOCATION": self.redis.url,
            "OPTIONS": {"prefix": self._name, "timeout": 3.0},
        }
        return {
            "DJANGO_SETTINGS_MODULE": "tests.acceptance.settings",
            "DATABASE_URL": self.postgres.url_of(self._name),
            "ACCEPTANCE_APPS": apps,
            "ACCEPTANCE_ENODE": json.dumps({"QUEUE": queue, **ENODE, **enode}),
        }

    def start_ready(self, processes: int = 2, *options: str, **settings: Any) -> Processors:
        processors = self.start(processes, *options, **settings)
        processors.wait_ready()
        return processors

    @contextlib.contextmanager
    def load(self, seed: int) -> Iterator[Load]:
        """Senders at work inside the block; it begins when all of them have got answers, and ends when each kind of
        command has had its chance."""
        with Load(self.journal, seed) as load:
            wait_until(lambda: load.under_way, "senders get answers")
            yield load
            wait_until(lambda: load.rounds > ROUNDS, "senders have done enough")

    def query(self, statement: str, *parameters: object) -> list[tuple[Any, ...]]:
        with psycopg.connect(self.postgres.url_of(self._name), autocommit=True) as connection:
            return connection.execute(statement.encode(), parameters).fetchall()

    def execute(self, statement: str) -> None:
        with psycopg.connect(self.postgres.url_of(self._name), autocommit=True) as connection:
            connection.execute(statement.encode())

    # -- what must hold -------------------------------------------------------------------------------------------

    def check(self, *, loaded: bool = True) -> None:
        """Wait until every command has its end, then fail for each invariant that does not hold."""
        wait_until(self._is_quiet, "all commands are finished and committed", 30)
        found = violations(self._facts())
        kinds = variety(self.journal)
        print(kinds)
        assert not found, f"{len(found)} violations:\n" + "\n".join(found[:SHOWN])
        if loaded:
            wanted = {"SUCCESS", "repeats", "bank.InsufficientFunds", "AggregateNotFound", "AggregateAlreadyExists"}
            assert all(kinds.get(kind) for kind in wanted), f"too little was tried: {kinds}"

    def _is_quiet(self) -> bool:
        return self.transport.committed(GROUP, COMMANDS) == self.transport.end_offsets(COMMANDS)

    def _facts(self) -> Facts:
        return Facts(
            self.journal,
            self.stored(),
            [decode_published(body).record for body in self._messages(EVENTS)],
            self.transport.committed(GROUP, COMMANDS),
            self.transport.end_offsets(COMMANDS),
        )

    def stored(self) -> list[StreamRecord]:
        columns = ", ".join(StreamRecord._fields)
        rows = self.query(f"SELECT {columns} FROM {TABLE} ORDER BY sequence")
        records = [StreamRecord(*row) for row in rows]
        return [record._replace(created_at=record.created_at.astimezone(UTC)) for record in records]

    def dead_letters(self) -> list[Any]:
        """``[[topic, queue, offset], [error, message], body]`` of each."""
        try:
            return [unpack(body) for body in self._messages(dead_letter_topic(COMMANDS))]
        except UnknownTopic:
            return []

    def _messages(self, topic: str) -> Iterator[bytes]:
        for queue, end in self.transport.end_offsets(topic).items():
            offset = 0
            while offset < end:
                (batch,) = self.transport.pull(topic, {queue: offset}, limit=5_000, wait=0)
                yield from batch.bodies
                offset = batch.offsets[-1] + 1


def _without_noise(log: str) -> str:
    """The load opens accounts again and again, and each time the log says so."""
    return "".join(line for line in log.splitlines(keepends=True) if "there is a BankAccount with the id" not in line)
