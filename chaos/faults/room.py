"""Memories that are full."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

import redis

from chaos.faults.base import Fault, Skipped
from chaos.faults.failovers import client_of
from chaos.names import REDIS, Setup


class FullRedis(Fault):
    """Redis refuses what needs more memory."""

    name = "full-redis"
    shortest, longest = 1.0, 5.0

    @classmethod
    def targets(cls, setup: Setup) -> list[str]:
        return ["memory redis"] if setup.transport == REDIS else []

    def begin(self) -> str:
        try:
            self._limit(1)
        except redis.RedisError as error:
            raise Skipped(f"redis does not answer: {error}") from error
        return "let it have no memory left"

    def end(self) -> None:
        with contextlib.suppress(redis.RedisError):  # it starts without a limit
            self._limit(0)

    def _limit(self, size: int) -> None:
        with client_of(self.world.services.redis) as client:
            client.config_set("maxmemory", size)


KINDS: Sequence[type[Fault]] = (FullRedis,)
