"""``manage.py enodedev``."""

from __future__ import annotations

import signal
import socket
import tempfile
from argparse import ArgumentParser
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError
from django.db import DatabaseError, connections
from django.db.migrations.executor import MigrationExecutor

from enode_django.conf import conf
from enode_django.conf.groups import BROKER, Conf
from enode_django.databases import migrate_command
from enode_django.development.joining import ADDRESS, end_soon
from enode_django.development.lines import Lines
from enode_django.development.parts import Plan, head_of_command_line
from enode_django.development.session import Development
from enode_django.equeue.transport import Transport
from enode_django.equeue.transports.memory import MemoryTransport
from enode_django.exceptions import ConfigurationError
from enode_django.management.own_broker import answers, check_would_be_found
from enode_django.management.systems import check_linux
from enode_django.runtime import make_transport

WORKERS_END = 2.0
"""Seconds beyond the workers' grace time for which the broker goes on if `enodedev` was killed."""


class Command(BaseCommand):
    help = "For development: runs web server, processors and, unless one answers, the broker, with one log."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("addrport", nargs="?", help="the web server's port, or address:port, as for runserver")
        parser.add_argument("--processes", type=int, default=1, help="worker processes of each role")

    def handle(self, *, addrport: str | None, processes: int, verbosity: int, **options: Any) -> None:
        check_linux("enodedev")
        end_soon()
        current = conf()
        transport = self._make_transport()
        self._check_migrations()
        needs_broker = self._needs_broker(current, transport)
        common = [f"--{name}={options[name]}" for name in ("settings", "pythonpath") if options.get(name)]
        head, quieter = head_of_command_line(), f"--verbosity={max(0, verbosity - 1)}"
        plans = [
            Plan("processors", [*head, "runprocessors", "--reload", f"--processes={processes}", quieter, *common]),
            Plan("web", [*head, "runserver", *([addrport] if addrport else []), *common]),
        ]
        if needs_broker:
            plans.insert(0, Plan("broker", [*head, "runbroker", quieter, *common], current.WORKERS.GRACE + WORKERS_END))
        status = self._run(plans, current, lambda: not needs_broker or answers(transport))
        transport.close()
        if status:
            raise SystemExit(status)

    def _run(self, plans: Sequence[Plan], current: Conf, is_ready: Callable[[], bool]) -> int:
        with tempfile.TemporaryDirectory(prefix="enode-") as directory, _socket_in(directory) as steps:
            development = Development(
                plans,
                steps=steps,
                environment={ADDRESS: steps.getsockname()},
                grace=current.WORKERS.GRACE,
                lines=Lines(coloured=self.style.SUCCESS("x") != "x"),
                write=self._write,
            )
            for number in (signal.SIGINT, signal.SIGTERM):
                signal.signal(number, lambda *_: development.stop())
            development.say(f"starting {', '.join(plan.name for plan in plans)}; Ctrl-C ends")
            return development.run(is_ready)

    def _write(self, line: str) -> None:
        self.stdout.write(line)
        self.stdout.flush()

    # -- requirements ---------------------------------------------------------------------------------------------

    def _check_migrations(self) -> None:
        missing: list[str] = []
        for alias in connections:
            try:
                executor = MigrationExecutor(connections[alias])
                plan = executor.migration_plan(executor.loader.graph.leaf_nodes())
            except DatabaseError as error:
                raise CommandError(f"the database {alias!r} cannot be reached: {error}") from error
            finally:
                connections[alias].close()
            if plan:
                first, *_ = (f"{migration.app_label}.{migration.name}" for migration, _ in plan)
                missing.append(
                    f"{len(plan)} migrations are not applied to {alias!r}, the first is {first}; "
                    f"run {migrate_command(alias)}"
                )
        if missing:
            raise CommandError("\n".join(missing))

    def _make_transport(self) -> Transport:
        try:
            transport = make_transport()
        except ConfigurationError as error:
            raise CommandError(f"{error}\nsee ENODE['QUEUE'] in the settings") from error
        if isinstance(transport, MemoryTransport):
            raise CommandError(
                "ENODE['QUEUE'] names the queue in memory, which processes cannot share; leave it out to use the broker"
            )
        return transport

    def _needs_broker(self, current: Conf, transport: Transport) -> bool:
        """Return True if a broker has to be started. Raises `CommandError` if the queue does not answer, and a broker
        that is started here would listen at another address."""
        if current.QUEUE.BACKEND != BROKER or answers(transport):
            return False
        check_would_be_found(current, transport)
        return True


def _socket_in(directory: str) -> socket.socket:
    """Return the socket to which processes send their steps. Other users cannot enter the directory."""
    steps = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    steps.bind(str(Path(directory) / "steps"))
    return steps
