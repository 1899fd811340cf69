"""Ends a server whose owner was killed: ``python embedded_guard.py OWNER_PID DIRECTORY``.

The owner starts it beside each embedded server, in a session of its own, so that neither Ctrl-C nor a kill of the
owner's process group reaches it. When the owner is gone it ends whatever works in the directory and removes that.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import sys
from pathlib import Path

import psutil

GRACE_SECONDS = 8
"""More than the 5 s after which PostgreSQL itself kills children that do not follow an immediate shutdown."""


def processes_working_in(directory: Path) -> list[psutil.Process]:
    """Found by working directory: it is set before the server's program starts, and its children keep it."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.pid != os.getpid() and Path(process.cwd()).is_relative_to(directory):
                found.append(process)
    return found


def end(processes: list[psutil.Process]) -> None:
    for process in processes:
        with contextlib.suppress(psutil.Error):
            process.resume()
            process.send_signal(signal.SIGQUIT)
    _, alive = psutil.wait_procs(processes, timeout=GRACE_SECONDS)
    for process in alive:
        with contextlib.suppress(psutil.Error):
            process.kill()
    psutil.wait_procs(alive, timeout=GRACE_SECONDS)


def wait_for_end_of(pid: int) -> None:
    with contextlib.suppress(psutil.NoSuchProcess):
        owner = psutil.Process(pid)
        if os.getppid() == pid:  # else the owner died before we looked, and the pid may be another process by now
            owner.wait()


def main(owner_pid: str, directory: str) -> None:
    wait_for_end_of(int(owner_pid))
    end(processes_working_in(Path(directory)))
    shutil.rmtree(directory, ignore_errors=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
