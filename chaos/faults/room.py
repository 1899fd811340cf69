"""Memories that are full."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

import redis

from chaos.faults.base import Fault, Skipped
from chaos.faults.failovers import client_of
from chaos.names import REDIS, Setup
from sample_project.embedded import Redis


class FullRedis(Fault):
    """Redis refuses what needs more memory."""

    name = "full-redis"
    shortest, longest = 1.0, 5.0

    @classmethod
    def targets(cls, setup: Setup) -> list[str]:
        return ["memory redis"] if setup.transport == REDIS else []

    def begin(self) -> str:
        try:
            fill(self.world.services.redis)
        except redis.RedisError as error:
            raise Skipped(f"redis does not answer: {error}") from error
        return "let it have no memory left"

    def end(self) -> None:
        make_room(self.world.services.redis)


def fill(server: Redis) -> None:
    """Raises `redis.RedisError`, within seconds."""
    with client_of(server) as client:
        client.config_set("maxmemory", 1)


def make_room(server: Redis) -> None:
    """Ends a pause of the server, too: a stopped one cannot be told, and would stay full for as long."""
    server.resume()
    with contextlib.suppress(redis.RedisError), client_of(server) as client:  # it starts without a limit
        client.config_set("maxmemory", 0)


KINDS: Sequence[type[Fault]] = (FullRedis,)
