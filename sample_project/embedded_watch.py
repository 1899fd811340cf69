"""Waits for the end of a server's owner, and becomes its guard then.

Run as ``python -I -S embedded_watch.py OWNER_PID DIRECTORY``. One runs beside each embedded server, nearly always in
vain. So it imports next to nothing (see `embedded_guard`).
"""

from __future__ import annotations

import os
import select
import sys

GUARD = "embedded_guard.py"


def wait_for_owner(pid: int) -> None:
    """Return when the owner has ended, or at once where the system cannot tell; the guard itself waits then."""
    if sys.platform == "linux":
        try:
            owner = os.pidfd_open(pid)
        except OSError:
            return
        if os.getppid() == pid:  # otherwise the owner has ended, and its pid may be reused
            select.select([owner], [], [])


def main(owner_pid: str, directory: str) -> None:
    wait_for_owner(int(owner_pid))
    guard = os.path.join(os.path.dirname(os.path.abspath(__file__)), GUARD)
    os.execv(sys.executable, [sys.executable, guard, owner_pid, directory])  # noqa: S606 - this Python, and no shell


if __name__ == "__main__":
    main(*sys.argv[1:])
