"""Slow and full disks of PostgreSQL and of the broker."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Sequence
from pathlib import Path

import psycopg

from chaos.faults.base import Fault, Skipped
from chaos.names import BROKER, Setup
from chaos.servers import POSTGRES_ROOM, ROOM, SmallPostgres, can_mount
from chaos.waiting import wait_until
from sample_project.embedded import Postgres

SHORTEST_DELAY, LONGEST_DELAY = 0.005, 0.25
LONGEST_FLUSH = 0.1
"""Seconds, the maximum of PostgreSQL's ``commit_delay``."""
MEND_SECONDS = 30.0
BALLAST = "ballast"
ROOM_OF_BROKER = "room broker"
PIECE = 64 * 1024


class SlowDisk(Fault):
    """Every write and flush of the broker is delayed."""

    name = "slow-disk"
    shortest, longest = 1.0, 6.0

    @classmethod
    def targets(cls, setup: Setup) -> list[str]:
        return ["disk broker"] if setup.transport == BROKER else []

    def begin(self) -> str:
        delay = SHORTEST_DELAY + (LONGEST_DELAY - SHORTEST_DELAY) * self.planned.share
        self.world.dials[BROKER].disk_delay = delay
        return f"let each write take {1000 * delay:.0f} ms more"

    def end(self) -> None:
        self.world.dials[BROKER].disk_delay = 0.0


class SlowPostgresDisk(Fault):
    """Every flush of PostgreSQL's write-ahead log is real and delayed, so that each commit waits for it.

    The server itself waits, by its setting ``commit_delay``, which has an effect only with ``fsync``.
    """

    name = "slow-postgres-disk"
    shortest, longest = 1.0, 6.0

    @classmethod
    def targets(cls, setup: Setup) -> list[str]:
        return setup.postgres

    def begin(self) -> str:
        delay = SHORTEST_DELAY + (LONGEST_FLUSH - SHORTEST_DELAY) * self.planned.share
        try:
            slow_down(self._server, delay)
        except psycopg.Error as error:
            self.end()
            raise Skipped(f"{self.planned.target} does not answer: {error}") from error
        return f"let each flush of its log take {1000 * delay:.0f} ms more"

    def end(self) -> None:
        wait_until(lambda: speed_up(self._server), f"{self.planned.target} takes its settings back", MEND_SECONDS)

    @property
    def _server(self) -> Postgres:
        return self.world.services.postgres_of(self.planned.target)


def slow_down(server: Postgres, seconds: float) -> None:
    """Delay each flush of the log by ``seconds``, at most `LONGEST_FLUSH`. Raises psycopg's errors."""
    settings = {"fsync": "on", "commit_siblings": "0", "commit_delay": f"{1_000_000 * seconds:.0f}"}
    _configure(server, [f"ALTER SYSTEM SET {name} = {value}" for name, value in settings.items()])


def speed_up(server: Postgres) -> bool:
    """Undo `slow_down`. Safe to call twice. Return False if the server does not answer."""
    with contextlib.suppress(psycopg.Error):
        _configure(server, [f"ALTER SYSTEM RESET {name}" for name in ("commit_delay", "commit_siblings", "fsync")])
        return True
    return False


def _configure(server: Postgres, statements: Iterable[str]) -> None:
    with psycopg.connect(server.url, autocommit=True, connect_timeout=2) as connection:
        for statement in (*statements, "SELECT pg_reload_conf()"):
            connection.execute(statement.encode())


class FullDisk(Fault):
    """The small file system of the broker's messages, or of a PostgreSQL, is full for a while. A PostgreSQL that cannot
    write its log crashes; it is restarted when there is room."""

    name = "full-disk"
    shortest, longest = 1.0, 5.0

    @classmethod
    def targets(cls, setup: Setup) -> list[str]:
        if not can_mount():
            return []
        return [*setup.postgres, *([ROOM_OF_BROKER] if setup.transport == BROKER else [])]

    @property
    def _postgres(self) -> Postgres | None:
        is_broker = self.planned.target == ROOM_OF_BROKER
        return None if is_broker else self.world.services.postgres_of(self.planned.target)

    @property
    def _ballast(self) -> Path:
        """A file in the server's file system that fills it."""
        server = self._postgres
        directory = server.directory / "data" if server else self.world.services.broker.directory
        return directory / BALLAST

    def begin(self) -> str:
        if not isinstance(self._postgres, SmallPostgres | None):
            raise Skipped("its standby has taken over, which has no file system of its own")
        return f"filled it with {fill(self._ballast) / 1024 / 1024:.1f} MiB"

    def end(self) -> None:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._ballast)
        if self._postgres:
            self._postgres.start()


def fill(path: Path) -> int:
    """Write a file until its (small) file system is full, and return its size in bytes."""
    size, most = 0, 2 * max(ROOM, POSTGRES_ROOM) * 1024 * 1024
    with contextlib.suppress(OSError), path.open("wb", buffering=0) as file:
        while size < most:
            size += file.write(bytes(PIECE))
    return size


KINDS: Sequence[type[Fault]] = (SlowDisk, SlowPostgresDisk, FullDisk)
