"""One ``manage.py runprocessors``, in a process group of its own, with its log."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import psutil

from chaos.processes import PROJECT, is_running
from sample_project.embedded_process import stands
from tests import warm
from tests.acceptance.waiting import PATIENCE, wait_until

_QUEUES = re.compile(r"\d+ command workers, (\d+) queues of topic ")
_STARTED = re.compile(r"started worker (\S+), process (\d+)")
_STARTED_EVENT = re.compile(r"started event worker (\S+), process (\d+)")
_FOLLOWS = re.compile(r"INFO (\S+) enode_django\.equeue: acquired events/")
_ACQUIRED = re.compile(r"INFO (\S+) enode_django\.equeue: acquired commands/([\d, ]+) for ")


def stop(pid: int) -> None:
    """Stop a process (SIGSTOP), and return when none of its threads goes on."""
    os.kill(pid, signal.SIGSTOP)
    wait_until(lambda: stands(pid), f"process {pid} stands still")


class Group:
    """Processes of one process group, with the log of the first."""

    log_path: Path
    pid: int
    _process: subprocess.Popen[bytes] | warm.Started

    # -- its output -----------------------------------------------------------------------------------------------

    @property
    def log(self) -> str:
        return self.log_path.read_text(errors="replace")

    def wait_for(self, text: str, *, times: int = 1, seconds: float = PATIENCE) -> None:
        """Wait until the log matches the regular expression ``text`` at least ``times`` times."""
        wait_until(lambda: self.count(text) >= times, f"{text!r} in the log of process {self.pid}", seconds)

    def count(self, text: str) -> int:
        """Return the number of matches of a regular expression in the log."""
        return len(re.findall(text, self.log))

    # -- signals and ends -----------------------------------------------------------------------------------------

    def stop(self) -> None:
        """Stop the first process (SIGSTOP), and return when it stands still."""
        stop(self.pid)

    def signal(self, number: int) -> None:
        self._process.send_signal(number)

    def signal_group(self, number: int) -> None:
        os.killpg(self.pid, number)

    def wait_end(self, seconds: float = PATIENCE) -> int:
        """The exit status."""
        return self._process.wait(seconds)

    @property
    def is_running(self) -> bool:
        return self._process.poll() is None

    def members(self) -> list[int]:
        """The living processes of its group."""
        found = []
        for pid in psutil.pids():
            with contextlib.suppress(ProcessLookupError):
                if os.getpgid(pid) == self.pid and is_running(pid):
                    found.append(pid)
        return found

    def wait_gone(self, seconds: float = PATIENCE) -> None:
        """Wait until all processes of the group have ended."""
        self._process.wait(seconds)
        wait_until(lambda: not self.members(), f"the end of the processes of group {self.pid}", seconds)

    def close(self) -> None:
        """Kill whatever of the group still lives. Safe to call twice."""
        for _ in range(2):  # a supervisor may have been starting a worker
            for pid in self.members():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            self._process.wait(PATIENCE)
        wait_until(lambda: not self.members(), f"the end of the processes of group {self.pid}")


class Processors(Group):
    def __init__(self, environment: Mapping[str, str], log: Path, processes: int, *options: str) -> None:
        self.log_path = log
        self.processes = processes
        with log.open("wb") as output:
            self._process = warm.start(
                [PROJECT / "manage.py", "runprocessors", "--processes", str(processes), *options],
                cwd=log.parent,  # by which the guard of that directory finds them
                env={**os.environ, **environment, "PYTHONUNBUFFERED": "1"},
                stdout=output,
                start_new_session=True,
            )
        self.pid = self._process.pid

    def wait_ready(self) -> None:
        """Wait until all workers run and share the queues evenly. No queue moves after that."""
        wait_until(self._is_divided, f"{self.processes} workers share the queues evenly")

    def _is_divided(self) -> bool:
        held = Counter(self.owners().values())
        shares = [held[name] for name in self.living_workers()]
        queues = _QUEUES.search(self.log)
        return (
            queues is not None
            and len(shares) == self.processes
            and sum(shares) == int(queues[1])
            and max(shares) - min(shares) <= 1
        )

    def wait_owning(self, *names: str) -> None:
        wait_until(lambda: {name for name, _ in self._acquired()}.issuperset(names), f"{names} own queues")

    def _acquired(self) -> list[tuple[str, str]]:
        return [(name, queue) for name, queues in _ACQUIRED.findall(self.log) for queue in queues.split(", ")]

    def owners(self) -> dict[int, str]:
        """Return, for each queue, the worker that acquired it last."""
        return {int(queue): name for name, queue in self._acquired()}

    def workers(self) -> dict[str, int]:
        """Process ids by name, of all command workers that were ever started, in that order."""
        return {name: int(pid) for name, pid in _STARTED.findall(self.log)}

    def living_workers(self) -> dict[str, int]:
        return {name: pid for name, pid in self.workers().items() if is_running(pid)}

    def event_workers(self) -> dict[str, int]:
        return {name: int(pid) for name, pid in _STARTED_EVENT.findall(self.log)}

    def living_event_workers(self) -> dict[str, int]:
        return {name: pid for name, pid in self.event_workers().items() if is_running(pid)}

    def following_event_workers(self) -> dict[str, int]:
        """Return the living event workers that own queues."""
        following = set(_FOLLOWS.findall(self.log))
        return {name: pid for name, pid in self.living_event_workers().items() if name in following}
