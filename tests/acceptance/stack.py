"""One event store, one set of queues, the processors on them, and the senders' bus."""

from __future__ import annotations

import contextlib
import json
import math
import os
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import psycopg
import redis

from enode_django.bus.command_bus import QueueCommandBus
from enode_django.bus.messages import decode_published
from enode_django.conf.groups import BROKER
from enode_django.equeue.producer import Producer
from enode_django.equeue.transport import Transport
from enode_django.equeue.transports.broker import BrokerTransport
from enode_django.equeue.transports.redis_streams import RedisStreamsTransport
from enode_django.eventstore.base import StreamRecord
from enode_django.eventstore.buckets import select_queue
from enode_django.eventstore.rows import record_of
from enode_django.eventstore.statements import TABLE
from enode_django.runtime import use_bus
from sample_project.embedded import Broker, Postgres, Redis
from sample_project.layers import merged
from tests import warm
from tests.acceptance.invariants import Facts, variety, violations
from tests.acceptance.journal import Journal
from tests.acceptance.load import Client, Load
from tests.acceptance.processors import PROJECT, Group, Processors
from tests.acceptance.waiting import PATIENCE, wait_until
from tests.template import ACCEPTANCE

QUICKLY = "STRATEGY FILE_COPY"
REDIS_STREAMS = "enode_django.equeue.transports.redis_streams.RedisStreamsTransport"
SLOW_REDIS_STREAMS = "tests.acceptance.slow_transport.SlowRedisStreams"
QUEUES = 4
TIMEOUT, OWN_TIMEOUT = 3.0, 30.0
"""Seconds that processes under test and this one wait for their queue."""
GROUP, COMMANDS, EVENTS = "processors", "commands", "events"
SUBSCRIBERS = ("bank.AccountSummaries", "bank.Ledger", "bank.balance_cache", "bank.transfers", "notes.Notes")
"""The sample's."""
HINDERED = "tests.acceptance.hindered"
ENODE: dict[str, dict[str, Any]] = {
    "QUEUE": {"QUEUES_PER_TOPIC": QUEUES},
    "WORKERS": {"LEASE": 2.0, "GRACE": 30.0, "COMMIT_INTERVAL": 0.3},
    "COMMANDS": {"TIME_LIMIT": 40.0},
}
"""A slow machine drains a worker and handles a command within these times. The sum is below `PATIENCE`."""
ROUNDS = 60
TRANSFERS, NOTES = 12, 5
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
        self.directory = directory / self._name
        """Holds files that tell something to the workers' apps."""
        self.subscribers = list(SUBSCRIBERS)
        self._apps = "tests.acceptance.faulty"
        self._started: list[Group] = []
        self.transport = self._make_transport()
        self._closing = contextlib.ExitStack()

    def __enter__(self) -> Stack:
        with psycopg.connect(self.postgres.url, autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {self._name} TEMPLATE {ACCEPTANCE} {QUICKLY}")
        self.directory.mkdir()
        self.transport.create_topic(EVENTS, QUEUES)
        for queue in range(QUEUES):  # the group commits nothing, so published messages can be inspected
            self.transport.acquire("onlooker", EVENTS, queue, "onlooker", 1)
        self.transport.create_topic(COMMANDS, QUEUES)
        bus = QueueCommandBus(self.transport, Producer(self.transport, queues=QUEUES, selector=select_queue), COMMANDS)
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

    def _make_transport(self) -> Transport:
        return RedisStreamsTransport(self.redis.url, prefix=self._name, timeout=OWN_TIMEOUT)

    def _queue(self, transport: str) -> dict[str, Any]:
        """The setting ``QUEUE`` of the processes."""
        return {
            "BACKEND": transport,
            "LOCATION": self.redis.url,
            "OPTIONS": {"prefix": self._name, "timeout": TIMEOUT},
        }

    # -- what runs on it ------------------------------------------------------------------------------------------

    def start(
        self,
        processes: int = 1,
        *options: str,
        role: str = "command",
        apps: str | None = None,
        transport: str = REDIS_STREAMS,
        **enode: Any,
    ) -> Processors:
        """A ``runprocessors`` that has just been started, with options and ``ENODE`` settings of its own."""
        environment = self._environment(apps, transport, enode)
        log = self._directory / f"{self._name}-{len(self._started)}.log"
        processors = Processors(environment, log, processes, "--role", role, *options)
        self._started.append(processors)
        return processors

    def install(self, app: str, subscribers: Iterable[str] = ()) -> None:
        """An app more, for everything that is started from now on without ``apps`` of its own."""
        self._apps += f" {app}"
        self.subscribers += subscribers

    def python(self, *arguments: str, apps: str | None = None, given: str = "", **enode: Any) -> str:
        """Run Python with the settings of the processors and with ``given`` as its standard input; returns what it
        prints. A failure fails the test."""
        environment = {**os.environ, **self._environment(apps, REDIS_STREAMS, enode)}
        done = warm.run(arguments, cwd=PROJECT, env=environment, seconds=PATIENCE, given=given)
        assert done.returncode == 0, f"{arguments} ended with {done.returncode}:\n{done.stdout}{done.stderr}"
        return done.stdout

    @contextlib.contextmanager
    def beside(self, *arguments: str, apps: str | None = None, **enode: Any) -> Iterator[Path]:
        """Run Python beside the processors until the block ends. Yield the file of its output."""
        environment = {**os.environ, **self._environment(apps, REDIS_STREAMS, enode), "PYTHONPATH": str(PROJECT)}
        output = self.directory / "beside.log"
        with output.open("wb") as file:
            process = warm.start(arguments, cwd=self.directory, env=environment, stdout=file)
        try:
            yield output
            assert process.poll() is None, f"{arguments} ended early"
        except BaseException:
            print(f"---- {' '.join(arguments)}\n{output.read_text()}")
            raise
        finally:
            process.kill()
            process.wait()

    def _environment(self, apps: str | None, transport: str, enode: dict[str, Any]) -> dict[str, str]:
        return {
            "DJANGO_SETTINGS_MODULE": "tests.acceptance.settings",
            "DATABASE_URL": self.postgres.url_of(self._name),
            "ACCEPTANCE_APPS": self._apps if apps is None else apps,
            "ACCEPTANCE_DIRECTORY": str(self.directory),
            "ACCEPTANCE_ENODE": json.dumps(merged(ENODE, {"QUEUE": self._queue(transport)}, enode)),
        }

    def start_ready(self, processes: int = 1, *options: str, **settings: Any) -> Processors:
        processors = self.start(processes, *options, **settings)
        processors.wait_ready()
        return processors

    @contextlib.contextmanager
    def load(self, seed: int, *, rounds: int = ROUNDS, **kind: Any) -> Iterator[Load]:
        """Senders at work inside the block, as `Load` says of a ``kind``; it begins when all of them have got answers,
        and ends when each kind of command has had its chance."""
        with Load(self.journal, seed, **kind) as load:
            wait_until(lambda: load.under_way, "senders get answers")
            yield load
            wait_until(lambda: load.rounds > rounds, "senders have done enough")
            if load.varied:
                wait_until(lambda: load.transfers >= TRANSFERS, "enough transfers are begun")
                wait_until(lambda: load.notes >= NOTES, "enough notes are written")

    def query(self, statement: str, *parameters: object) -> list[tuple[Any, ...]]:
        with psycopg.connect(self.postgres.url_of(self._name), autocommit=True) as connection:
            return connection.execute(statement.encode(), parameters).fetchall()

    def execute(self, statement: str) -> None:
        with psycopg.connect(self.postgres.url_of(self._name), autocommit=True) as connection:
            connection.execute(statement.encode())

    def delete_end(self, topic: str, share: float) -> list[bytes]:
        """Let Redis forget the last messages of each queue, in this share. Return their bodies."""
        ends = self.transport.end_offsets(topic)
        return self.delete_from(topic, {queue: math.floor(end * (1 - share)) for queue, end in ends.items()})

    def delete_from(self, topic: str, offsets: Mapping[int, int]) -> list[bytes]:
        """Let Redis forget the messages from these offsets on. Return their bodies."""
        lost: list[bytes] = []
        with redis.from_url(self.redis.url) as client:
            for queue, offset in offsets.items():
                log = f"{self._name}:{{{topic}:{queue}}}:log"
                entries = client.xrange(log, min=f"{offset + 1}-0")
                if entries:  # a queue may have got none since
                    assert client.xdel(log, *[id for id, _ in entries]) == len(entries)
                lost += [fields[b"b"] for _, fields in entries]
        assert lost, f"there was nothing to delete in {topic}"
        return lost

    # -- invariants -----------------------------------------------------------------------------------------------

    def check(self, *, loaded: bool = True, published: bool = True) -> None:
        """Wait until every command has its end, then fail for each invariant that does not hold. ``published`` must be
        False if event messages were deleted."""
        found = self.violations(published)
        kinds = variety(self.journal)
        print(kinds)
        assert not found, f"{len(found)} violations:\n" + "\n".join(found[:SHOWN])
        if loaded:
            wanted = {"SUCCESS", "repeats", "bank.InsufficientFunds", "AggregateNotFound", "AggregateAlreadyExists"}
            assert all(kinds.get(kind) for kind in wanted), f"too little was tried: {kinds}"

    def violations(self, published: bool) -> list[str]:
        """Judge a moment at which all commands are finished. Process managers may send each command once more, when it
        has had no effect: then a later moment is judged."""
        while True:
            wait_until(self.is_quiet, "all commands are finished and committed")
            ends = self.transport.end_offsets(COMMANDS)
            if self.transport.committed(GROUP, COMMANDS) != ends:
                continue  # sent after it was quiet
            found = violations(self._facts(published))
            if self.transport.end_offsets(COMMANDS) == ends:
                return found

    def is_quiet(self) -> bool:
        return self.transport.committed(GROUP, COMMANDS) == self.transport.end_offsets(COMMANDS)

    def check_read_side(self, *options: str) -> dict[str, Any]:
        """Fail for each difference between the store and the results of the subscribers. Return figures. Call this when
        all is quiet. As in `violations`, it judges again if something came meanwhile."""
        while True:
            ends = self._ends()
            found = json.loads(self.python("-m", "tests.acceptance.read_side", *options))
            problems = found["problems"]
            if not problems or self._ends() == ends:
                break
            print(f"judged again, for more came meanwhile: {problems[:SHOWN]}")
            self.wait_followed()
        assert not problems, f"{len(problems)} problems:\n" + "\n".join(problems[:SHOWN])
        print(found["figures"])
        return dict(found["figures"])

    def wait_followed(self, topic: str = EVENTS, *, is_fed: Callable[[], bool] = lambda: True) -> None:
        """Wait until every command is finished, every event followed, and nothing more comes of it.

        A command is committed when its events are published, and an event when the commands that follow from it are
        sent. ``is_fed`` says that the topic has all events.
        """
        names = ", ".join(self.subscribers)
        wait_until(lambda: self._is_followed(topic, is_fed), f"{names} are done with {topic}")

    def _is_followed(self, topic: str, is_fed: Callable[[], bool]) -> bool:
        before = self._ends(topic)
        done = self.is_quiet() and is_fed() and all(self.is_through(name, topic) for name in self.subscribers)
        return done and self._ends(topic) == before

    def _ends(self, *topics: str) -> list[object]:
        return [self.transport.end_offsets(topic) for topic in (COMMANDS, EVENTS, *topics)]

    def wait_subscribed(self) -> None:
        """Wait until every subscriber has begun: one that begins at *now* misses all events stored before."""
        begun = "SELECT subscriber FROM enode_django_subscription"
        wait_until(lambda: {*self.subscribers} <= {name for (name,) in self.query(begun)}, "subscribers have begun")

    def wait_swept(self) -> None:
        """Wait until every subscriber has compared its checkpoints with all streams that are stored by now."""
        ((position,),) = self.query("SELECT pg_snapshot_xmin(pg_current_snapshot())::text::bigint")
        behind = "SELECT subscriber FROM enode_django_subscription WHERE swept_position < %s"
        wait_until(lambda: not self.query(behind, position), f"all sweeps have passed {position}")

    def is_through(self, group: str, topic: str = EVENTS) -> bool:
        """Return True if the group has committed all messages of the topic."""
        ends = self.transport.end_offsets(topic)
        behind = {queue: at for queue, at in self.transport.committed(group, topic).items() if at < ends[queue]}
        return not self.transport.pull(topic, behind, limit=1, wait=0)

    def _facts(self, published: bool) -> Facts:
        return Facts(
            self.journal,
            self.stored(),
            [decode_published(body).record for body in self.messages(EVENTS)] if published else None,
            self.transport.committed(GROUP, COMMANDS),
            self.transport.end_offsets(COMMANDS),
        )

    def stored(self) -> list[StreamRecord]:
        columns = ", ".join(StreamRecord._fields)
        return list(map(record_of, self.query(f"SELECT {columns} FROM {TABLE} ORDER BY sequence")))

    def dead_letters(self) -> list[tuple[str, str]]:
        """Command type and error type of each, the oldest first."""
        return self.query("SELECT command_type, error_type FROM enode_django_deadletter ORDER BY id")  # type: ignore[return-value]

    def messages(self, topic: str) -> Iterator[bytes]:
        """Yield the messages of a topic. Redis keeps messages that a group has not committed."""
        for queue, end in self.transport.end_offsets(topic).items():
            offset = 0
            while offset < end:
                (batch,) = self.transport.pull(topic, {queue: offset}, limit=5_000, wait=0)
                yield from batch.bodies
                offset = batch.offsets[-1] + 1


class BrokerStack(Stack):
    """Its queues are in a broker."""

    def __init__(self, postgres: Postgres, redis: Redis, directory: Path, broker: Broker) -> None:
        self.broker = broker
        super().__init__(postgres, redis, directory)

    def _make_transport(self) -> Transport:
        return BrokerTransport(self.broker.url, timeout=OWN_TIMEOUT)

    def _queue(self, transport: str) -> dict[str, Any]:
        return {"BACKEND": BROKER, "LOCATION": self.broker.url, "OPTIONS": {"timeout": TIMEOUT}}


def _without_noise(log: str) -> str:
    """The load opens accounts again and again, and each time the log says so."""
    noise = ("BankAccount '", "exists already")
    return "".join(line for line in log.splitlines(keepends=True) if not all(part in line for part in noise))
