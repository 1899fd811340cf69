"""The services of the demo and the tests: PostgreSQL, Redis and the queue's broker, without an installation.

``python -m sample_project.embedded -- COMMAND…`` runs a command with PostgreSQL and Redis, and
``python -m sample_project.embedded postgres broker -- COMMAND…`` with the named services. A service that
``DATABASE_URL``, ``REDIS_URL`` or ``QUEUE_URL`` already names is not started.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence

from sample_project.celery import SETTINGS_NAMED
from sample_project.embedded_process import Server, ServerUnavailable
from sample_project.embedded_servers import Broker, Postgres, Redis

__all__ = ["Broker", "Postgres", "Redis", "Server", "ServerUnavailable", "embedded_services"]

KINDS: dict[str, type[Server]] = {"postgres": Postgres, "redis": Redis, "broker": Broker}
USAGE = f"usage: python -m sample_project.embedded [{'|'.join(KINDS)} …] -- COMMAND…"


@contextlib.contextmanager
def embedded_services(servers: Sequence[Server] | None = None) -> Iterator[None]:
    """Start the servers (by default PostgreSQL and Redis) that no environment variable names, and set their variables
    until the block ends.

    Raises `ServerUnavailable` if a service is neither named nor can be started.
    """
    with contextlib.ExitStack() as stack:
        for server in (Postgres(), Redis()) if servers is None else servers:
            if not os.environ.get(server.variable):
                stack.enter_context(server)
                os.environ[server.variable] = server.url
                stack.callback(os.environ.pop, server.variable, None)
        yield


def main(arguments: Sequence[str]) -> int:
    """Run a command with the services. Return its exit code, or 128 + the signal that ended it."""
    place = arguments.index("--") if "--" in arguments else -1
    names, command = arguments[: max(place, 0)], list(arguments[place + 1 :])
    if not command or not KINDS.keys() >= set(names):
        print(USAGE, file=sys.stderr)
        return 2
    with embedded_services([KINDS[name]() for name in names] or None):
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the command, which decides what to do
        environment = dict(os.environ)
        if not SETTINGS_NAMED:  # importing the sample has set it, and the command may belong to another project
            environment.pop("DJANGO_SETTINGS_MODULE", None)
        process = subprocess.Popen(
            command, env=environment, preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL)
        )
        signal.signal(signal.SIGTERM, lambda number, frame: process.terminate())
        code = process.wait()
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
