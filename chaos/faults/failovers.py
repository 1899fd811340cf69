"""Servers whose standby takes over. Proxies lead to the new one, as a virtual address or a name would."""

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
    """The master takes no more writes; once its replica has all of them, the master dies and the replica takes over:
    nothing is lost. The old master comes back as a replica."""

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
                other.config_rewrite()  # else it is a replica again when it is started anew
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
    """The primary dies and its synchronous standby is promoted. It happens once to a server: there is no third one."""

    name = "postgres-failover"
    default = False

    @classmethod
    def targets(cls, setup: Setup) -> list[str]:
        return setup.postgres

    def begin(self) -> str:
        number, services = int(self.planned.target.split()[1]), self.world.services
        standby = services.standbys.get(number)
        if standby is None:
            raise Skipped("its standby has taken over already")
        old = services.postgres[number]
        # It ends at once, as in a crash, but takes its shared memory along: nobody starts it again to clear up.
        signal_process(old.pid, signal.SIGQUIT)
        old.stop()
        with psycopg.connect(standby.url, autocommit=True) as connection:
            connection.execute("SELECT pg_promote(true, %s)", [int(TAKE_OVER_SECONDS)])
        services.use_standby(number)
        return f"crashed the server on port {old.port}, and promoted that on port {standby.port}"


def client_of(server: Redis) -> redis.Redis:
    """A client that raises at once, without tries of its own, while the server is away."""
    once = Retry(NoBackoff(), 0)
    return redis.Redis(
        port=server.port, password=server.password, decode_responses=True, socket_timeout=SYNC_SECONDS, retry=once
    )


KINDS: Sequence[type[Fault]] = (RedisFailover, PostgresFailover)
