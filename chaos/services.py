"""The servers of one round, and the proxies to them."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import psycopg
import redis

from chaos.names import (
    BEAT,
    BROKER,
    CELERY,
    CELERY_DATABASE,
    CLIENTS,
    CLUSTER,
    DRIVER,
    GUEST,
    HOSTS,
    NODES,
    PREFIX,
    REDIS,
    TIMEOUT,
    Setup,
)
from chaos.proxy import Proxy
from chaos.redis_servers import RedisCluster, told_port
from chaos.servers import DialledBroker, SmallPostgres, Standby, can_mount
from enode_django.conf import groups
from enode_django.equeue.transport import Transport
from enode_django.equeue.transports.broker import BrokerTransport
from enode_django.equeue.transports.redis_streams import RedisStreamsTransport
from sample_project.embedded import Postgres, Redis

QUERY_SECONDS = 3


class Services:
    """The servers and proxies. ``with`` starts and ends them. ``postgres`` and ``redis`` are the current primaries.

    ``ways`` are the proxies to the queue by the name of the user; for a Redis Cluster, by the name of the node, because
    clients use the addresses that nodes announce. Another proxy leads to Redis as cache and Celery's broker, and one to
    each PostgreSQL with a standby. A failover changes the targets of the proxies.
    """

    def __init__(self, setup: Setup, broker_environment: Mapping[str, str]) -> None:
        self.setup = setup
        has_small_disks = "full-disk" in setup.faults and can_mount()
        make_postgres = SmallPostgres if has_small_disks else Postgres
        self.postgres: list[Postgres] = [make_postgres({"fsync": "off"}) for _ in range(setup.shards)]
        self.standbys: dict[int, Standby] = {}
        self.redis = Redis({"appendfsync": "always"})
        self.redis_replica: Redis | None = None
        self.cluster: RedisCluster | None = None
        self.broker = DialledBroker(broker_environment, small=has_small_disks)
        self.ways: dict[str, Proxy] = {}
        self.transport: Transport
        """The transport of the driver."""
        self._to_redis: Proxy
        self._to_postgres: list[Proxy] = []
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> Services:
        try:
            self._start_servers()
            self._start_proxies()
            self.transport = self._stack.enter_context(contextlib.closing(self._make_transport()))
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(self, *exception: object) -> None:
        self._stack.close()

    @property
    def uses_broker(self) -> bool:
        return self.setup.transport == BROKER

    @property
    def queue_server(self) -> DialledBroker | Redis:
        return self.broker if self.uses_broker else self.redis

    def _start_servers(self) -> None:
        servers = [*self.postgres, self.redis, *([self.broker] if self.uses_broker else [])]
        for server in servers:
            self._stack.callback(server.close)
        with ThreadPoolExecutor() as starting:
            list(starting.map(lambda server: server.start(), servers))
        for number, server in enumerate(self.postgres if self.setup.shards > 1 else []):
            with psycopg.connect(server.url, autocommit=True) as connection:
                connection.execute(f"CREATE DATABASE events{number}".encode())
        if self.setup.transport == CLUSTER:
            # Without the second setting, a dead master would stop the other ones, too.
            settings = {"appendfsync": "always", "cluster-require-full-coverage": "no"}
            self.cluster = RedisCluster(len(NODES), more=settings, tell=self._way_to_node)
            self._stack.callback(self.cluster.close)
        if "redis-failover" in self.setup.faults and self.setup.transport == REDIS:
            self._start_replica()
        if "postgres-failover" in self.setup.faults:
            self._start_standbys()

    def _start_replica(self) -> None:
        following = {"replicaof": f"127.0.0.1 {self.redis.port}", "masterauth": self.redis.password}
        replica = Redis({**self.redis.settings, **following, "repl-diskless-sync-delay": "0"})
        replica.password = self.redis.password
        self.redis_replica = self._stack.enter_context(replica)
        with redis.Redis(port=self.redis.port, password=self.redis.password) as client:
            client.config_set("masterauth", self.redis.password)

    def _start_standbys(self) -> None:
        for number, primary in enumerate(self.postgres):
            self.standbys[number] = self._stack.enter_context(Standby(primary))
            with psycopg.connect(primary.url, autocommit=True) as connection:
                connection.execute("ALTER SYSTEM SET synchronous_standby_names = '*'")
                connection.execute("SELECT pg_reload_conf()")

    def _way_to_node(self, port: int) -> int:
        """Make a proxy to the next node, and return its port."""
        proxy = self.ways[NODES[len(self.ways)]] = self._proxy(port)
        return proxy.port

    def _start_proxies(self) -> None:
        for name in () if self.cluster else (*HOSTS, GUEST, CLIENTS, CELERY, BEAT, DRIVER):
            self.ways[name] = self._proxy(self.queue_server.port)
        self._to_redis = self._proxy(self.redis.port)
        if self.standbys:
            self._to_postgres = [self._proxy(server.port) for server in self.postgres]

    def _proxy(self, port: int) -> Proxy:
        proxy = Proxy(port)
        self._stack.callback(proxy.close)
        return proxy

    # -- addresses for the processes ------------------------------------------------------------------------------

    def _make_transport(self) -> Transport:
        if self.uses_broker:
            return BrokerTransport(self._queue_url(DRIVER), timeout=TIMEOUT)
        return RedisStreamsTransport(self._queue_url(DRIVER), prefix=PREFIX, timeout=TIMEOUT)

    def queue_setting(self, name: str) -> dict[str, Any]:
        """Return the setting ``QUEUE`` of the processes that use the way ``name``."""
        if self.uses_broker:
            return {"BACKEND": groups.BROKER, "LOCATION": self._queue_url(name), "OPTIONS": {"timeout": TIMEOUT}}
        options = {"prefix": PREFIX, "timeout": TIMEOUT}
        return {"BACKEND": groups.REDIS_STREAMS, "LOCATION": self._queue_url(name), "OPTIONS": options}

    def _queue_url(self, name: str) -> str:
        if self.cluster:
            return self.cluster.url
        return _changed(self.queue_server.url, port=self.ways[name].port)

    @property
    def queue_left(self) -> dict[str, str]:
        """The place of the queue, for the checker."""
        if self.uses_broker:
            return {"kind": BROKER, "directory": str(self.broker.queue_directory)}
        node = self.cluster.servers[0] if self.cluster else self.redis
        url = _changed(node.url, port=told_port(node))
        return {"kind": self.setup.transport, "url": url, "prefix": PREFIX}

    @property
    def celery_url(self) -> str:
        """The URL of Redis as Celery's broker; the cache is another database of it."""
        return _changed(self.redis.url, port=self._to_redis.port, path=f"/{CELERY_DATABASE}")

    @property
    def database_url(self) -> str:
        """The URL of the read database for the processes."""
        return self._behind_proxy(0, self.read_database)

    @property
    def shard_urls(self) -> list[str]:
        """The URLs of the event store's databases for the processes; empty if the read database has the events."""
        urls = self.shards if self.setup.shards > 1 else []
        return [self._behind_proxy(number, url) for number, url in enumerate(urls)]

    def _behind_proxy(self, number: int, url: str) -> str:
        return _changed(url, port=self._to_postgres[number].port) if self._to_postgres else url

    # -- direct addresses -----------------------------------------------------------------------------------------

    @property
    def read_database(self) -> str:
        return self.postgres[0].url

    @property
    def shards(self) -> list[str]:
        if self.setup.shards == 1:
            return [self.read_database]
        return [server.url_of(f"events{number}") for number, server in enumerate(self.postgres)]

    def query(self, statement: str) -> list[tuple[Any, ...]]:
        """Return the rows of a query to the read database."""
        with psycopg.connect(self.read_database, autocommit=True, connect_timeout=QUERY_SECONDS) as connection:
            return connection.execute(statement.encode()).fetchall()

    def postgres_of(self, target: str) -> Postgres:
        """Return the current server for a target of `Setup.postgres`."""
        return self.postgres[int(target.split()[1])]

    # -- failovers ------------------------------------------------------------------------------------------------

    def use_redis(self, server: Redis, replica: Redis) -> None:
        """Make ``server`` the master, and lead all ways to it."""
        self.redis, self.redis_replica = server, replica
        for proxy in (self._to_redis, *([] if self.uses_broker else self.ways.values())):
            proxy.lead_to(server.port)

    def use_standby(self, number: int) -> None:
        """Replace a server by its standby."""
        self.postgres[number] = self.standbys.pop(number)
        self._to_postgres[number].lead_to(self.postgres[number].port)


def _changed(url: str, *, port: int, path: str | None = None) -> str:
    parts = urlsplit(url)
    place = f"{parts.netloc.rpartition(':')[0]}:{port}"
    return urlunsplit(parts._replace(netloc=place, path=parts.path if path is None else path))
