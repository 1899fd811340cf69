"""The embedded servers for a run: with their own environment, on small file systems, and as standbys."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path

from sample_project.embedded import Broker, Postgres, ServerUnavailable

ROOM, POSTGRES_ROOM = 128, 512
"""The sizes of the small file systems in MiB."""
BACKUP_SECONDS = 60.0
PRIVATE = "CHAOS_PRIVATE_MOUNTS"
"""The environment variable of a driver with private mounts, which end with its processes."""


@lru_cache
def can_mount() -> bool:
    """Return True if this process may mount a private file system."""
    if os.geteuid() != 0 or not all(map(shutil.which, ("unshare", "mount", "umount"))):
        return False
    return subprocess.run(["unshare", "--mount", "true"], stderr=subprocess.DEVNULL).returncode == 0


def take_private_mounts(arguments: Sequence[str]) -> None:
    """Replace this process by a new ``python -m chaos`` with private mounts. Does nothing if it has them already."""
    if not os.environ.get(PRIVATE):
        os.environ[PRIVATE] = "1"
        os.execvp("unshare", ["unshare", "--mount", sys.executable, "-m", "chaos", *arguments])


def mount_small(directory: Path, options: str) -> None:
    """Mount an empty file system. Raises `ServerUnavailable` if it would not be private."""
    if not os.environ.get(PRIVATE):
        raise ServerUnavailable("a small file system is mounted by a driver with private mounts only")
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "enode-chaos", directory], check=True)


def unmount(directory: Path) -> None:
    subprocess.run(["umount", "--lazy", directory], check=False)


class DialledBroker(Broker):
    """A broker with environment variables, such as that of `chaos.dials`. If ``small``, its messages are in a file
    system of `ROOM`."""

    def __init__(
        self, environment: Mapping[str, str], settings: Mapping[str, str] | None = None, *, small: bool = False
    ) -> None:
        super().__init__(settings)
        self._environment = environment
        self._small = small

    @property
    def queue_directory(self) -> Path:
        """The directory of the messages."""
        return self.directory / "queue"

    def _prepare(self) -> None:
        if self._small:
            mount_small(self.directory, f"size={ROOM}m")
        super()._prepare()

    def _command(self) -> Sequence[str | Path]:
        variables = [f"{name}={value}" for name, value in self._environment.items()]
        return ["/usr/bin/env", *variables, *super()._command()]

    def close(self) -> None:
        self.stop()
        if self._small and self._directory is not None:
            unmount(self._directory)
        super().close()


class SmallPostgres(Postgres):
    """A server whose data and write-ahead log are in a file system of `POSTGRES_ROOM`, enough until it is filled."""

    def __init__(self, settings: Mapping[str, str]) -> None:
        super().__init__({"max_wal_size": "128MB", **settings})

    def _prepare(self) -> None:
        data = self.directory / "data"
        data.mkdir()
        account = self._account
        owner = f",uid={account.pw_uid},gid={account.pw_gid}" if account else ""
        mount_small(data, f"size={POSTGRES_ROOM}m,mode=700{owner}")
        super()._prepare()

    def close(self) -> None:
        self.stop()
        if self._directory is not None:
            unmount(self._directory / "data")
        super().close()


class Standby(Postgres):
    """A synchronous standby of a running server, which starts with a copy of its data."""

    def __init__(self, primary: Postgres) -> None:
        super().__init__(primary.settings)
        self.password = primary.password
        self._primary = primary

    def _prepare(self) -> None:
        self._binaries = self._reachable_binaries()
        if self._account is not None:
            os.chown(self.directory, self._account.pw_uid, self._account.pw_gid)
        with (self.directory / "server.log").open("ab") as log:
            copying = self._spawn(
                [
                    self._binaries / "pg_basebackup",
                    *("-D", self.directory / "data", "-d", self._primary.url),
                    *("--checkpoint=fast", "--wal-method=stream", "--write-recovery-conf", "--no-sync"),
                ],
                log.fileno(),
            )
        if copying.wait(BACKUP_SECONDS):
            raise ServerUnavailable(f"pg_basebackup failed; its log ends with:\n{self.log_tail()}")

    def _command(self) -> Sequence[str | Path]:
        return [*super()._command(), "-c", f"port={self.port}"]
