"""Failovers to a standby. Proxies then lead to the new server, like a virtual address or a name."""

from __future__ import annotations

import signal
from collections.abc import Sequence

import psycopg
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from chaos.errors import ChaosError
from chaos.faults.base import Fault, Skipped
from chaos.names import REDIS, Setup
from chaos.processes import signal_process
from chaos.waiting import wait_until
from sample_project.embedded import Redis

SYNC_SECONDS = 5.0
TAKE_OVER_SECONDS = 40.0


class RedisFailover(Fault):
    """The master refuses writes until its replica has all earlier ones; then it dies and the replica takes over, so
    that nothing is lost. The old master returns as a replica."""

    name = "redis-failover"
    shortest, longest = 0.5, 3.0

    @classmethod
    def targets(cls, setup: Setup) -> list[str]:
        return [REDIS] if setup.transport == REDIS else []

    def begin(self) -> str:
        services = self.world.services
        master, replica = services.redis, services.redis_replica
        if replica is None:
            raise Skipped("there is no replica")
        try:
            with client_of(master) as one, client_of(replica) as other:
                self._bring_level(one, other)
                master.kill()
                other.replicaof("NO", "ONE")
                other.config_rewrite()  # otherwise it is a replica again after a restart
        except (redis.RedisError, ChaosError) as error:
            master.start()
            raise Skipped(f"the replica cannot take over: {error}") from error
        services.use_redis(replica, master)
        return f"killed process on port {master.port}, and let that on port {replica.port} take over"

    def _bring_level(self, master: redis.Redis, replica: redis.Redis) -> None:
        master.client_pause(int(2_000 * SYNC_SECONDS), all=False)

        def is_level() -> bool:
            ours, theirs = master.info("replication"), replica.info("replication")
            linked = theirs.get("master_link_status") == "up"
            return linked and ours["master_repl_offset"] == theirs["slave_repl_offset"]

        try:
            wait_until(is_level, "the replica has all writes", SYNC_SECONDS)
        except ChaosError:
            master.client_unpause()
            raise

    def end(self) -> None:
        old = self.world.services.redis_replica
        if old is not None:
            old.start()
            with client_of(old) as client:
                client.replicaof("127.0.0.1", self.world.services.redis.port)
                client.config_rewrite()


class PostgresFailover(Fault):
    """The primary dies and its synchronous standby is promoted. This happens once per server: it has one standby."""

    name = "postgres-failover"

    @classmethod
    def targets(cls, setup: Setup) -> list[str]:
        return setup.postgres

    def begin(self) -> str:
        number, services = int(self.planned.target.split()[1]), self.world.services
        standby = services.standbys.get(number)
        if standby is None:
            raise Skipped("its standby has taken over already")
        old = services.postgres[number]
        # It ends at once, as in a crash, but removes its shared memory, because it is never restarted.
        signal_process(old.pid, signal.SIGQUIT)
        old.stop()
        with psycopg.connect(standby.url, autocommit=True) as connection:
            connection.execute("SELECT pg_promote(true, %s)", [int(TAKE_OVER_SECONDS)])
        services.use_standby(number)
        return f"crashed the server on port {old.port}, and promoted that on port {standby.port}"


def client_of(server: Redis) -> redis.Redis:
    """Return a client that does not retry: it raises at once while the server is unavailable."""
    once = Retry(NoBackoff(), 0)
    return redis.Redis(
        port=server.port, password=server.password, decode_responses=True, socket_timeout=SYNC_SECONDS, retry=once
    )


KINDS: Sequence[type[Fault]] = (RedisFailover, PostgresFailover)
