"""Hide from the package the modules that only POSIX has, and the names in other modules that only POSIX has.

Other packages see them as they are, so this is not Windows. It finds what an import, or a line that runs, asks for.
"""

from __future__ import annotations

import builtins
import errno
import os
import signal
import types
from typing import Any

MISSING_MODULES = {"fcntl", "grp", "pty", "pwd", "resource", "termios"}
MISSING = {
    "os": """
        fdatasync fork forkpty getegid geteuid getgid getuid getpgid getpgrp getsid killpg memfd_create nice pidfd_open
        posix_fadvise posix_fallocate pread preadv pwrite pwritev register_at_fork sched_getaffinity sched_yield
        sendfile
        setsid statvfs sysconf uname wait wait3 wait4 waitid WNOHANG WUNTRACED O_CLOEXEC O_DIRECTORY O_NOFOLLOW O_SYNC
        """,
    "errno": "EUCLEAN",
    "signal": """
        SIGALRM SIGCHLD SIGCONT SIGHUP SIGKILL SIGQUIT SIGSTOP SIGTSTP SIGUSR1 SIGUSR2 SIG_BLOCK SIG_SETMASK SIG_UNBLOCK
        alarm pause pthread_kill pthread_sigmask setitimer sigpending sigtimedwait sigwait sigwaitinfo
        """,
}
"""The names that https://docs.python.org/3/library marks as available on Unix or on Linux."""


def _without(module: types.ModuleType, names: list[str]) -> types.ModuleType:
    other = types.ModuleType(module.__name__)
    other.__dict__.update({name: value for name, value in vars(module).items() if name not in names})
    return other


SEEN = {module.__name__: _without(module, MISSING[module.__name__].split()) for module in (errno, os, signal)}
_import = builtins.__import__


def _seen(name: str, globals: Any = None, *arguments: Any, **options: Any) -> Any:
    if globals and str(globals.get("__name__", "")).partition(".")[0] == "enode_django":
        if name in MISSING_MODULES:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        if name in SEEN:
            return SEEN[name]
    return _import(name, globals, *arguments, **options)


builtins.__import__ = _seen
