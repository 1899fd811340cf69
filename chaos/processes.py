"""Processes under test, each with its own process group and log."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import psutil

from chaos.waiting import wait_until

PROJECT = Path(__file__).resolve().parent.parent
WATCH = PROJECT / "sample_project" / "embedded_watch.py"
END_SECONDS = 60.0
_STARTED = re.compile(r"started (event )?worker (\S+), process (\d+)")


@contextlib.contextmanager
def guarded_directory(prefix: str = "enode-chaos-") -> Iterator[Path]:
    """Make a directory for the block. It is removed with the end of this process, and processes that work in it are
    ended, even after a kill -9."""
    directory = Path(tempfile.mkdtemp(prefix=prefix)).resolve()
    command: list[str | Path] = [sys.executable, "-I", "-S", WATCH, str(os.getpid()), directory]
    guard = subprocess.Popen(command, cwd="/", start_new_session=True)
    try:
        yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)
        guard.kill()
        guard.wait()


class Child:
    """A process and its group. ``start`` may be called again after its end, and then appends to the log."""

    def __init__(self, name: str, command: Sequence[str | Path], environment: Mapping[str, str], log: Path) -> None:
        self.name = name
        self.log_path = log
        self.wanted = False
        """True if it should be running; if it is not, it is started again."""
        self.is_restarting = False
        """True if it was told to end and is to be started again."""
        self._command = command
        self._environment = environment
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start the process. Does nothing if it is running."""
        self.wanted = True
        if self.is_running:
            return
        self.is_restarting = False
        with self.log_path.open("ab") as log:
            self._process = subprocess.Popen(
                self._command,
                cwd=self.log_path.parent,  # so that the guard of the directory finds it
                env={**os.environ, **self._environment},
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        """The pid, also after its end; 0 if it was never started."""
        return self._process.pid if self._process else 0

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def status(self) -> int | None:
        """The exit status; None while it is running."""
        return self._process.poll() if self._process else None

    def send_signal(self, number: int) -> None:
        if self._process is not None:
            self._process.send_signal(number)

    def restart(self) -> None:
        """Tell the process to end. `World.tend` starts it again afterwards."""
        self.is_restarting = True
        self.send_signal(signal.SIGTERM)

    def signal_group(self, number: int) -> None:
        """Send a signal to every process of the group. Does nothing if none is left."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, number) if self.pid else None

    def close_input(self) -> None:
        """Close its standard input, which tells a client to finish."""
        if self._process is not None and self._process.stdin is not None:
            self._process.stdin.close()

    def wait_end(self, seconds: float = END_SECONDS) -> int:
        """Block until the process has ended, and return its exit status. Raises `ChaosError` after ``seconds``."""
        wait_until(lambda: not self.is_running, f"the end of {self.name}, process {self.pid}", seconds)
        return self.status or 0

    def kill_group(self) -> None:
        """Kill the process and the rest of its group, and return when all have ended. Safe to call twice."""
        self.wanted = False
        if self._process is None:
            return
        for _ in range(2):  # it may have been starting another process
            self.signal_group(signal.SIGKILL)
            self._process.wait(END_SECONDS)
        wait_until(lambda: not self.members(), f"the end of the group of {self.name}", END_SECONDS)
        self.close_input()

    def members(self) -> list[int]:
        """Return the pids of the running processes of the group."""
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error, ProcessLookupError):
                if os.getpgid(process.pid) == self.pid and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process.pid)
        return found


class Supervisor(Child):
    """A ``manage.py runprocessors`` with command and event workers."""

    def workers(self, role: str) -> list[int]:
        """Return the pids of its running workers; ``role`` is "command" or "event"."""
        text = self.log_path.read_text(errors="replace")
        found = [int(pid) for event, _, pid in _STARTED.findall(text) if bool(event) == (role == "event")]
        return [pid for pid in found if is_running(pid)]

    def fork_server(self) -> int | None:
        """Return the pid of the process that forks the workers; None if there is none."""
        with contextlib.suppress(psutil.NoSuchProcess):
            for child in psutil.Process(self.pid).children():
                with contextlib.suppress(psutil.Error):
                    if any("multiprocessing.forkserver" in part for part in child.cmdline()):
                        return child.pid
        return None


def is_running(pid: int) -> bool:
    with contextlib.suppress(psutil.NoSuchProcess):
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    return False


def signal_process(pid: int, number: int) -> bool:
    """Send a signal. Return False if the process has ended."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)
        return True
    return False
