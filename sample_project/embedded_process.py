"""A server process that ends with the process that started it, even after a SIGKILL (see `embedded_watch`)."""

from __future__ import annotations

import contextlib
import os
import pwd
import random
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import ClassVar, Protocol, Self

import psutil

from sample_project.embedded_guard import wait_for_end

START_SECONDS = 60.0
STOP_SECONDS = 60.0
PORTS = range(15_000, 32_000)
"""Below the ephemeral ports: among them, a client that reconnects to a stopped server can connect to itself."""

_random = random.SystemRandom()
"""A generator without a seed: processes with one seed, such as tests, must not try the same ports."""
_reserved: dict[int, socket.socket] = {}


class ServerUnavailable(Exception):
    """An embedded server is not installed or did not start. The message says what to do."""


class ServerProcess(Protocol):
    """A process as its server sees it: a part of `subprocess.Popen`."""

    @property
    def pid(self) -> int: ...

    def poll(self) -> int | None: ...

    def send_signal(self, number: int, /) -> None: ...

    def wait(self, timeout: float | None = None) -> int: ...


class Server(ABC):
    """A server process. Directory, port and password stay the same across restarts; `close` removes the directory.

    All methods block. Not thread-safe.
    """

    package: ClassVar[str]
    variable: ClassVar[str]
    stop_signal: ClassVar[signal.Signals]
    parent: ClassVar[str | None] = None
    """The directory in which the server's directory is made. None: the system's temporary directory."""

    def __init__(self, settings: Mapping[str, str] | None = None) -> None:
        self.settings = dict(settings or {})
        self.port = free_port()
        self.password = secrets.token_hex(16)
        self._directory: Path | None = None
        self._guard: subprocess.Popen[bytes] | None = None
        self._process: ServerProcess | None = None

    @property
    @abstractmethod
    def url(self) -> str: ...

    @abstractmethod
    def _prepare(self) -> None:
        """Fill the new directory."""

    @abstractmethod
    def _command(self) -> Sequence[str | Path]: ...

    @abstractmethod
    def _answers(self) -> bool: ...

    @property
    def _account(self) -> pwd.struct_passwd | None:
        """The user to run as; None for the current user."""
        return None

    @property
    def directory(self) -> Path:
        if self._directory is None:
            raise ServerUnavailable(f"{type(self).__name__} was never started; call start() first")
        return self._directory

    @property
    def pid(self) -> int:
        """The pid of the main process. Raises `ServerUnavailable` if there is none."""
        if self._process is None:
            raise ServerUnavailable(f"{type(self).__name__} is not running; call start() first")
        return self._process.pid

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        """Start the server and return when it answers. Does nothing if it is running."""
        if self.running:
            return
        if self._directory is None:
            prefix = f"enode-{type(self).__name__.lower()}-"
            self._directory = Path(tempfile.mkdtemp(prefix=prefix, dir=self.parent)).resolve()
            self._guard = _start_guard(self._directory)
            self._prepare()
        with (self.directory / "server.log").open("ab") as log:
            self._process = self._spawn(self._command(), log.fileno())
        if not wait_until(self._answers_or_ended, START_SECONDS) or not self.running:
            self.kill()
            raise ServerUnavailable(f"{type(self).__name__} did not start; its log ends with:\n{self.log_tail()}")

    def stop(self) -> None:
        """End the server as an operator does: sessions are closed, everything is flushed. Safe to call twice."""
        if self._process is None:
            return
        self.resume()
        family = self._family()
        self._process.send_signal(self.stop_signal)
        try:
            self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.kill()
            return
        wait_for_end(family, STOP_SECONDS)
        self._process = None

    def restart(self) -> None:
        self.stop()
        self.start()

    def kill(self) -> None:
        """Kill the server and all its children by SIGKILL. Safe to call twice."""
        if self._process is None:
            return
        family = self._family()
        for process in family:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        self._process.wait()
        wait_for_end(family, STOP_SECONDS)
        self._process = None

    def pause(self) -> None:
        """Freeze the server and its children (SIGSTOP), and return then. Connections stay open and unanswered."""
        family = self._family()
        for process in family:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.suspend()
        wait_until(lambda: all(stands(process.pid) for process in family), STOP_SECONDS)

    def resume(self) -> None:
        for process in self._family():
            with contextlib.suppress(psutil.NoSuchProcess):
                process.resume()

    def close(self) -> None:
        """Stop the server and remove its data. Safe to call twice."""
        self.stop()
        if self._directory is not None:
            shutil.rmtree(self._directory, ignore_errors=True)
            self._directory = None
        if self._guard is not None:
            self._guard.kill()
            self._guard.wait()
            self._guard = None
        release_port(self.port)

    def log_tail(self) -> str:
        with contextlib.suppress(OSError):
            return (self.directory / "server.log").read_text(errors="replace")[-2_000:]
        return "(no log)"

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _answers_or_ended(self) -> bool:
        return not self.running or self._answers()

    def _spawn(self, command: Sequence[str | Path], log: int) -> ServerProcess:
        return subprocess.Popen(
            command,
            cwd=self.directory,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            user=self._account and self._account.pw_uid,
            group=self._account and self._account.pw_gid,
            extra_groups=[] if self._account else None,
        )

    def _family(self) -> list[psutil.Process]:
        """Return the main process and its children. It is first, so that a frozen one makes no more children."""
        if not self.running:
            return []
        with contextlib.suppress(psutil.NoSuchProcess):
            main = psutil.Process(self.pid)
            return [main, *main.children(recursive=True)]
        return []


def free_port() -> int:
    """Reserve a loopback port on which nobody listens.

    No other caller on this machine gets it before `release_port` or the end of this process: until then the UDP port of
    the same number is bound, which the kernel allows once.
    """
    for port in _random.sample(PORTS, 100):
        reservation = socket.socket(type=socket.SOCK_DGRAM)
        try:
            reservation.bind(("127.0.0.1", port))
            with socket.socket() as probe:
                probe.bind(("127.0.0.1", port))
        except OSError:
            reservation.close()
            continue
        _reserved[port] = reservation
        return port
    raise ServerUnavailable(f"no free port among 100 tried in {PORTS!r}; close some servers")


def unprivileged_account() -> pwd.struct_passwd | None:
    """Return the user for a server that refuses to run as root; None if the current user is not root."""
    return pwd.getpwnam("nobody") if os.geteuid() == 0 else None


def release_port(port: int) -> None:
    """Release a reserved port. Does nothing for another port."""
    if (reservation := _reserved.pop(port, None)) is not None:
        reservation.close()


def wait_until(condition: Callable[[], bool], seconds: float) -> bool:
    """Return True as soon as the condition holds, or False after ``seconds``."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() >= deadline:
            return False
        time.sleep(0.005)
    return True


def stands(pid: int) -> bool:
    """Return True if each thread of the process is stopped, or has ended. After a SIGSTOP, threads go on for some
    milliseconds until the one that gets the signal runs on a busy processor."""
    tasks = Path(f"/proc/{pid}/task")
    try:
        if not tasks.exists():  # not Linux, or ended
            return psutil.Process(pid).status() in (psutil.STATUS_STOPPED, psutil.STATUS_ZOMBIE)
        states = [path.read_text().rpartition(") ")[2][0] for path in tasks.glob("*/stat")]
    except (OSError, psutil.NoSuchProcess):
        return not psutil.pid_exists(pid)
    return all(state in "TtZX" for state in states)


def _start_guard(directory: Path) -> subprocess.Popen[bytes]:
    watch = Path(__file__).with_name("embedded_watch.py")
    return subprocess.Popen(
        [sys.executable, "-I", "-S", watch, str(os.getpid()), directory],
        cwd="/",
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        start_new_session=True,
    )
