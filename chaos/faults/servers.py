"""Servers that are killed, paused or restarted: the broker, Redis, PostgreSQL."""

from __future__ import annotations

import signal
from collections.abc import Sequence

import psycopg

from chaos.faults.base import Fault, Skipped
from chaos.names import BROKER, CLUSTER, NODES, REDIS, Setup
from chaos.processes import signal_process
from sample_project.embedded import Redis, Server

PAUSED = 0.3
"""The share of dead nodes that are only paused."""


class _ServerFault(Fault):
    @classmethod
    def targets(cls, setup: Setup) -> list[str]:
        return [*setup.postgres, REDIS, *([BROKER] if setup.transport == BROKER else [])]

    @property
    def _server(self) -> Server:
        services, target = self.world.services, self.planned.target
        if target in (BROKER, REDIS):
            return services.broker if target == BROKER else services.redis
        return services.postgres_of(target)


class KillServer(_ServerFault):
    name = "kill-server"
    longest = 3.0
    weight = 2.0

    def begin(self) -> str:
        pid = self._server.pid
        self._server.kill()
        return f"killed process {pid} with its children"

    def end(self) -> None:
        self._server.start()


class PauseServer(_ServerFault):
    name = "pause-server"
    shortest, longest = 0.5, 5.0
    weight = 2.0

    def begin(self) -> str:
        self._server.pause()
        return f"stopped process {self._server.pid} with its children"

    def end(self) -> None:
        self._server.resume()


class RestartServer(_ServerFault):
    name = "restart-server"
    longest = 3.0

    def begin(self) -> str:
        pid = self._server.pid
        self._server.stop()
        return f"ended process {pid}"

    def end(self) -> None:
        self._server.start()


class DeadClusterNode(Fault):
    """A master of a Redis Cluster is killed or paused; no other node has its slots. It returns with its log."""

    name = "dead-cluster-node"
    shortest, longest = 1.0, 8.0

    @classmethod
    def targets(cls, setup: Setup) -> list[str]:
        return list(NODES) if setup.transport == CLUSTER else []

    @property
    def _node(self) -> Redis:
        cluster = self.world.services.cluster
        assert cluster is not None, "only a world with a cluster has its nodes as targets"
        return cluster.servers[NODES.index(self.planned.target)]

    def begin(self) -> str:
        pid = self._node.pid
        if self.planned.share < PAUSED:
            self._node.pause()
            return f"stopped process {pid}"
        self._node.kill()
        return f"killed process {pid}"

    def end(self) -> None:
        self._node.resume()
        self._node.start()


class _PostgresFault(Fault):
    @classmethod
    def targets(cls, setup: Setup) -> list[str]:
        return setup.postgres

    def _ask(self, statement: str) -> list[int]:
        """Return the first column of a query. Raises `Skipped` if the server is unavailable."""
        server = self.world.services.postgres_of(self.planned.target)
        try:
            with psycopg.connect(server.url, autocommit=True, connect_timeout=2) as connection:
                return [int(row[0]) for row in connection.execute(statement.encode())]
        except psycopg.Error as error:
            raise Skipped(f"{self.planned.target} does not answer: {error}") from error


SESSIONS = "FROM pg_stat_activity WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()"


class EndSessions(_PostgresFault):
    """All sessions are ended at once, as by an administrator or a pooler."""

    name = "end-sessions"
    weight = 2.0

    def begin(self) -> str:
        ended = self._ask(f"SELECT pg_terminate_backend(pid)::int {SESSIONS}")
        return f"ended {len(ended)} sessions"


class KillBackend(_PostgresFault):
    """The process of one session is killed: PostgreSQL ends all others and recovers."""

    name = "kill-backend"

    def begin(self) -> str:
        pids = self._ask(f"SELECT pid {SESSIONS} ORDER BY pid")
        if not pids:
            raise Skipped(f"{self.planned.target} has no session")
        pid = pids[int(self.planned.share * len(pids))]
        signal_process(pid, signal.SIGKILL)
        return f"killed the backend {pid}"


KINDS: Sequence[type[Fault]] = (KillServer, PauseServer, RestartServer, DeadClusterNode, EndSessions, KillBackend)
