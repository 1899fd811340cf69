"""The services of the demo and the tests: PostgreSQL, Redis and the queue's broker, without an installation.

``python -m sample_project.embedded -- COMMAND…`` runs a command with PostgreSQL and Redis up, and
``python -m sample_project.embedded postgres broker -- COMMAND…`` with those that it names. What ``DATABASE_URL``,
``REDIS_URL`` or ``QUEUE_URL`` already name is used as it is.
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
    """Start those servers (by default PostgreSQL and Redis) that no environment variable names, and name them there
    until the block ends.

    Raises `ServerUnavailable` when a service neither is named nor can be started.
    """
    with contextlib.ExitStack() as stack:
        for server in (Postgres(), Redis()) if servers is None else servers:
            if not os.environ.get(server.variable):
                stack.enter_context(server)
                os.environ[server.variable] = server.url
                stack.callback(os.environ.pop, server.variable, None)
        yield


def main(arguments: Sequence[str]) -> int:
    """Run a command with the services up; returns its exit code, or 128 + the signal that ended it."""
    place = arguments.index("--") if "--" in arguments else -1
    names, command = arguments[: max(place, 0)], list(arguments[place + 1 :])
    if not command or not KINDS.keys() >= set(names):
        print(USAGE, file=sys.stderr)
        return 2
    with embedded_services([KINDS[name]() for name in names] or None):
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the command too; it decides, we clean up
        environment = dict(os.environ)
        if not SETTINGS_NAMED:  # importing the sample names its settings, and the command may be of another project
            environment.pop("DJANGO_SETTINGS_MODULE", None)
        process = subprocess.Popen(
            command, env=environment, preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL)
        )
        signal.signal(signal.SIGTERM, lambda number, frame: process.terminate())
        code = process.wait()
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
