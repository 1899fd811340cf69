"""Ends a server whose owner was killed: ``python embedded_guard.py OWNER_PID DIRECTORY``.

The owner starts one for each embedded server, in a separate session, so that neither Ctrl-C nor a kill of the owner's
process group reaches it. When the owner has ended, the guard ends all processes that work in the directory, and removes
the directory.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import psutil

GRACE_SECONDS = 8
"""More than the 5 s after which PostgreSQL kills children that do not end in an immediate shutdown."""

LOOK_SECONDS = 0.5


def processes_working_in(directory: Path) -> list[psutil.Process]:
    """Return the processes whose working directory is inside ``directory``. It is set before the server's program
    starts, and children inherit it."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.pid != os.getpid() and Path(process.cwd()).is_relative_to(directory):
                found.append(process)
    return found


def wait_for_end(processes: Sequence[psutil.Process], seconds: float) -> list[psutil.Process]:
    """Wait for the end of the processes, and return those that still run. A zombie counts as ended: in a container its
    parent may never collect it."""
    deadline = time.monotonic() + seconds
    while (alive := [process for process in processes if _runs(process)]) and time.monotonic() < deadline:
        time.sleep(0.005)
    return alive


def _runs(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def end(processes: Sequence[psutil.Process]) -> None:
    pids = {process.pid for process in processes}
    for process in processes:
        with contextlib.suppress(psutil.Error):
            process.resume()
            if process.ppid() not in pids:  # a server ends its own children; their sudden end would be a crash to it
                process.send_signal(signal.SIGQUIT)
    for process in wait_for_end(processes, GRACE_SECONDS):
        with contextlib.suppress(psutil.Error):
            process.kill()
    wait_for_end(processes, GRACE_SECONDS)


def wait_for_owner(pid: int) -> None:
    with contextlib.suppress(psutil.NoSuchProcess):
        owner = psutil.Process(pid)
        if os.getppid() == pid:  # otherwise the owner has ended, and its pid may be reused
            while _runs(owner):  # its parent may collect it late, or never
                with contextlib.suppress(psutil.TimeoutExpired):
                    owner.wait(LOOK_SECONDS)


def main(owner_pid: str, directory: str) -> None:
    wait_for_owner(int(owner_pid))
    end(processes_working_in(Path(directory)))
    shutil.rmtree(directory, ignore_errors=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
