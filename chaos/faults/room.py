"""Servers whose memory is full."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

import redis

from chaos.faults.base import Fault, Skipped
from chaos.faults.failovers import client_of
from chaos.names import REDIS, Setup
from sample_project.embedded import Redis


class FullRedis(Fault):
    """Redis refuses commands that need more memory."""

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
    """Make the server's memory full. Raises `redis.RedisError`, within seconds."""
    with client_of(server) as client:
        client.config_set("maxmemory", 1)


def make_room(server: Redis) -> None:
    """Remove the limit of the server's memory. Resumes a paused server, because it would stay full."""
    server.resume()
    with contextlib.suppress(redis.RedisError), client_of(server) as client:  # a restarted server has no limit
        client.config_set("maxmemory", 0)


KINDS: Sequence[type[Fault]] = (FullRedis,)
