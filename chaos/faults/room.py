"""Disks and memories that are full."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from pathlib import Path

import redis

from chaos.faults.base import Fault, Skipped
from chaos.faults.failovers import client_of
from chaos.names import Setup
from chaos.servers import can_mount

BALLAST = "ballast"
PIECE = 64 * 1024


class FullDisk(Fault):
    """The file system of the broker's messages, a small one of its own, has no room left for a while."""

    name = "full-disk"
    default = False
    shortest, longest = 1.0, 5.0

    @classmethod
    def targets(cls, setup: Setup) -> list[str]:
        return ["room broker"] if setup.transport == "broker" and can_mount() else []

    @property
    def _ballast(self) -> Path:
        return self.world.services.broker.queue_directory.parent / BALLAST

    def begin(self) -> str:
        size = 0
        with contextlib.suppress(OSError), self._ballast.open("wb", buffering=0) as file:
            while True:
                size += file.write(bytes(PIECE))
        return f"filled it with {size / 1024 / 1024:.1f} MiB"

    def end(self) -> None:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._ballast)


class FullRedis(Fault):
    """Redis refuses what needs more memory."""

    name = "full-redis"
    default = False
    shortest, longest = 1.0, 5.0

    @classmethod
    def targets(cls, setup: Setup) -> list[str]:
        return ["memory redis"] if setup.transport == "redis" else []

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


KINDS: Sequence[type[Fault]] = (FullDisk, FullRedis)
