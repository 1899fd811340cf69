"""Everything that one round runs on: databases, queue, proxies, supervisors, Celery, clients."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit, urlunsplit

import psycopg

from chaos.dials import VARIABLE, Dials
from chaos.errors import ChaosError
from chaos.journal import Journal
from chaos.processes import PROJECT, Child, Supervisor
from chaos.proxy import Proxy
from chaos.servers import DialledBroker
from enode_django.conf import BROKER, REDIS_STREAMS
from enode_django.equeue.transports.base import Transport
from enode_django.equeue.transports.broker import BrokerTransport
from enode_django.equeue.transports.redis_streams import RedisStreamsTransport
from sample_project.embedded import Postgres, Redis

QUEUES = 4
TIMEOUT = 3.0
GROUP, COMMANDS, EVENTS = "processors", "commands", "events"
OBSERVERS = ("chaos.observer",)
SUBSCRIBERS = (
    "bank.AccountSummaries",
    "bank.Ledger",
    "bank.balance_cache",
    "bank.transfers",
    "notes.Notes",
    *OBSERVERS,
)
HOSTS = ("first", "second")
"""The supervisors that are there all the time; each has a way to the queue of its own."""
GUEST = "guest"
"""A supervisor that comes and goes."""
CLIENTS = ("clients",)
PREFIX = "chaos"
CELERY_DATABASE = 5
MIGRATE_SECONDS = 120.0
ENODE: Mapping[str, Any] = {
    "QUEUES_PER_TOPIC": QUEUES,
    "LEASE": 2.0,
    "GRACE": 8.0,
    "COMMIT_INTERVAL": 0.3,
    "HANDLER_TIME_LIMIT": 20.0,
    "SWEEP_INTERVAL": 5.0,
    "MAX_ABNORMAL_ENDS": 1_000,  # kills at random are no command's fault
    "REPORTS": {"INTERVAL": None},
    "JOBS": {"LEASE": 3.0},
    "SPARK": {"MASTER": "none"},
    "BROKER": {"CHUNK_SIZE": 4 * 1024 * 1024},
}


class Setup(NamedTuple):
    """What kind of world it is. ``transport`` is "broker" or "redis", ``faults`` are the kinds switched on."""

    transport: str
    shards: int
    faults: frozenset[str] = frozenset()


class World:
    """``with`` makes it and ends it. ``directory`` is for what the processes need, ``run`` for what the checker reads.

    Everything is called by the driver's thread.
    """

    def __init__(self, setup: Setup, directory: Path, run: Path, seed: int) -> None:
        self.setup, self.run, self.seed = setup, run, seed
        self.directory = directory
        self.faults = Journal(run / "faults.jsonl")
        self.ended_by_themselves: list[str] = []
        self._stack = contextlib.ExitStack()
        self._names = [*HOSTS, GUEST, *CLIENTS]
        for part in ("tmp", "logs"):
            (directory / part).mkdir()
        self.dials = {name: Dials(directory / f"{name}.dials") for name in [*self._names, "broker", "celery"]}
        self.postgres = [Postgres({"fsync": "off"}) for _ in range(setup.shards)]
        self.redis = Redis({"appendfsync": "always"})
        self.broker = DialledBroker(self._base_environment("broker"))
        self.proxies: dict[str, Proxy] = {}
        self.supervisors: dict[str, Supervisor] = {}
        self.celery: Child | None = None
        self.transport: Transport
        """The driver's own way to the queue, past the proxies."""

    def __enter__(self) -> World:
        try:
            self._start_servers()
            self._migrate()
            self.transport = self._stack.enter_context(contextlib.closing(self._make_transport()))
            self._make_topics()
            self._make_processes()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *exception: object) -> None:
        self._stack.close()
        for dials in self.dials.values():
            dials.close()
        self.faults.close()

    # -- servers --------------------------------------------------------------------------------------------------

    @property
    def queue_server(self) -> DialledBroker | Redis:
        return self.broker if self.setup.transport == "broker" else self.redis

    def _start_servers(self) -> None:
        servers = [*self.postgres, self.redis, *([self.broker] if self.setup.transport == "broker" else [])]
        with ThreadPoolExecutor() as starting:
            for server in servers:
                self._stack.callback(server.close)
            list(starting.map(lambda server: server.start(), servers))
        for name in self._names:
            self.proxies[name] = proxy = Proxy(self.queue_server.port)
            self._stack.callback(proxy.close)

    def _migrate(self) -> None:
        for number, server in enumerate(self.postgres if self.setup.shards > 1 else []):
            with psycopg.connect(server.url, autocommit=True) as connection:
                connection.execute(f"CREATE DATABASE events{number}".encode())
        aliases = ["default", *(f"events{number}" for number in range(len(self.shard_urls)))]
        commands = [["manage.py", "migrate", "--verbosity=0", f"--database={alias}"] for alias in aliases]
        with ThreadPoolExecutor() as migrating:
            list(migrating.map(self._manage, commands))

    def _manage(self, arguments: Sequence[str]) -> None:
        done = subprocess.run(
            ["/usr/bin/env", *self._assignments("first"), sys.executable, *arguments],
            cwd=PROJECT,
            capture_output=True,
            text=True,
            timeout=MIGRATE_SECONDS,
        )
        if done.returncode:
            raise ChaosError(f"{' '.join(arguments)} ended with {done.returncode}:\n{done.stdout}{done.stderr}")

    @property
    def shard_urls(self) -> list[str]:
        """The event store's databases; none if the read database has the events, too."""
        if self.setup.shards == 1:
            return []
        return [server.url_of(f"events{number}") for number, server in enumerate(self.postgres)]

    def _make_topics(self) -> None:
        """With a group that commits nothing, so that what was sent can be looked at in the end."""
        for topic in (COMMANDS, EVENTS):
            for queue in range(self.transport.create_topic(topic, QUEUES)):
                self.transport.acquire("onlooker", topic, queue, "onlooker", 1)

    def _make_transport(self) -> Transport:
        if self.setup.transport == "broker":
            return BrokerTransport(self.broker.url, timeout=TIMEOUT)
        return RedisStreamsTransport(self.redis.url, prefix=PREFIX, timeout=TIMEOUT)

    # -- processes ------------------------------------------------------------------------------------------------

    def _make_processes(self) -> None:
        for name in (*HOSTS, GUEST):
            self.supervisors[name] = Supervisor(
                name,
                [sys.executable, PROJECT / "manage.py", "runprocessors", "--processes", "1"],
                self._environment(name),
                self.log_of(name),
            )
        self.celery = Child("celery", self._celery_command(), self._environment("celery"), self.log_of("celery"))
        for child in (*self.supervisors.values(), self.celery):
            self._stack.callback(child.kill_group)
        for child in (*(self.supervisors[name] for name in HOSTS), self.celery):
            child.start()

    def _celery_command(self) -> list[str | Path]:
        options = ["--pool=prefork", "--concurrency=1", "--without-mingle", "--without-gossip", "--loglevel=INFO"]
        return [sys.executable, "-m", "celery", "-A", "sample_project", "worker", *options]

    def client(self, name: str, seed: int) -> Child:
        """A process of senders that is not started yet."""
        child = Child(
            name,
            [sys.executable, "-m", "chaos.clients", name, str(seed)],
            self._environment("clients"),
            self.log_of(name),
        )
        self._stack.callback(child.kill_group)
        return child

    @property
    def children(self) -> list[Child]:
        return [*self.supervisors.values(), *([self.celery] if self.celery else [])]

    def log_of(self, name: str) -> Path:
        return self.directory / "logs" / f"{name}.log"

    def tend(self) -> None:
        """Start again what should live and has ended by itself, as whoever runs services would."""
        for child in self.children:
            if child.wanted and not child.is_running:
                self.ended_by_themselves.append(f"{child.name} with status {child.status}")
                child.start()

    # -- what processes are told ----------------------------------------------------------------------------------

    def _base_environment(self, name: str) -> dict[str, str]:
        return {
            "DJANGO_SETTINGS_MODULE": "chaos.settings",
            "CHAOS_DIRECTORY": str(self.run),
            "CHAOS_ENODE": json.dumps(dict(ENODE)),
            VARIABLE: str(self.directory / f"{name}.dials"),
            "PYTHONPATH": f"{PROJECT / 'chaos' / 'preload'}:{PROJECT}",
            "PYTHONUNBUFFERED": "1",
            "TMPDIR": str(self.directory / "tmp"),
        }

    def _environment(self, name: str) -> dict[str, str]:
        proxy = self.proxies.get(name, self.proxies["clients"])
        return {
            **self._base_environment(name),
            "DATABASE_URL": self.postgres[0].url,
            "EVENT_DATABASE_URLS": " ".join(self.shard_urls),
            "REDIS_URL": _with(self.redis.url, path=f"/{CELERY_DATABASE}"),
            "CHAOS_ENODE": json.dumps({**ENODE, "QUEUE": self._queue_behind(proxy)}),
        }

    def _assignments(self, name: str) -> list[str]:
        return [f"{variable}={value}" for variable, value in self._environment(name).items()]

    def _queue_behind(self, proxy: Proxy) -> dict[str, Any]:
        url = _with_port(self.queue_server.url, proxy.port)
        if self.setup.transport == "broker":
            return {"BACKEND": BROKER, "LOCATION": url, "OPTIONS": {"timeout": TIMEOUT}}
        return {"BACKEND": REDIS_STREAMS, "LOCATION": url, "OPTIONS": {"prefix": PREFIX, "timeout": TIMEOUT}}

    # -- what the checker is told ---------------------------------------------------------------------------------

    def describe(self, *, finished: bool) -> None:
        """Write ``run.json``."""
        queue = (
            {"kind": "broker", "directory": str(self.broker.queue_directory)}
            if self.setup.transport == "broker"
            else {"kind": "redis", "url": self.redis.url, "prefix": PREFIX}
        )
        about = {
            "seed": self.seed,
            "transport": self.setup.transport,
            "read_database": self.postgres[0].url,
            "shards": self.shard_urls or [self.postgres[0].url],
            "queue": queue,
            "command_topic": COMMANDS,
            "event_topic": EVENTS,
            "group": GROUP,
            "subscribers": list(OBSERVERS),
            "faults": sorted(self.setup.faults),
            "finished": finished,
        }
        (self.run / "run.json").write_text(json.dumps(about, indent=1))

    def query(self, statement: str, *parameters: object, server: int = 0) -> list[tuple[Any, ...]]:
        """Ask the read database, or the database of another server."""
        with psycopg.connect(self.postgres[server].url, autocommit=True, connect_timeout=3) as connection:
            return connection.execute(statement.encode(), parameters).fetchall()

    def processes_of(self, name: str) -> Iterator[int]:
        yield from self.supervisors[name].members()


def _with(url: str, **parts: str) -> str:
    return urlunsplit(urlsplit(url)._replace(**parts))


def _with_port(url: str, port: int) -> str:
    place = urlsplit(url).netloc
    return _with(url, netloc=f"{place.rpartition(':')[0]}:{port}")
