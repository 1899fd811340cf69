"""The services of the demo and the tests: PostgreSQL and Redis, without an installation.

``python -m sample_project.embedded -- COMMAND…`` runs a command with both up. What ``DATABASE_URL`` or ``REDIS_URL``
already name is used as it is.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence

from sample_project.embedded_process import Server, ServerUnavailable
from sample_project.embedded_servers import Postgres, Redis

__all__ = ["Postgres", "Redis", "Server", "ServerUnavailable", "embedded_services"]


@contextlib.contextmanager
def embedded_services() -> Iterator[None]:
    """Start what ``DATABASE_URL`` and ``REDIS_URL`` do not name, and name it there until the block ends.

    Raises `ServerUnavailable` when a service neither is named nor can be started.
    """
    with contextlib.ExitStack() as stack:
        for kind in (Postgres, Redis):
            if not os.environ.get(kind.variable):
                server = stack.enter_context(kind())
                os.environ[kind.variable] = server.url
                stack.callback(os.environ.pop, kind.variable, None)
        yield


def main(arguments: Sequence[str]) -> int:
    """Run a command with the services up; returns its exit code, or 128 + the signal that ended it."""
    command = list(arguments[1:] if arguments[:1] == ["--"] else arguments)
    if not command:
        print("usage: python -m sample_project.embedded -- COMMAND…", file=sys.stderr)
        return 2
    with embedded_services():
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the command too; it decides, we clean up
        process = subprocess.Popen(command, preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL))
        signal.signal(signal.SIGTERM, lambda number, frame: process.terminate())
        code = process.wait()
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
