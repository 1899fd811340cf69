"""A worker process: from its start by the supervisor to its end."""

from __future__ import annotations

import logging
import os
import signal
import sys
import time
from collections.abc import Sequence
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any, NamedTuple

from enode_django.concurrency.garbage import collect_seldom, map_large_blocks
from enode_django.processes.children import STOP_SIGNALS, Job
from enode_django.processors.control import Role, receive, send
from enode_django.processors.logs import log_to_console
from enode_django.processors.wakeup import Wakeup

if TYPE_CHECKING:  # each role imports only what it needs
    from enode_django.processors.event_pipeline import EventPipeline
    from enode_django.processors.pipeline import Pipeline

logger = logging.getLogger("enode_django.worker")

BEAT_INTERVAL = 0.5
CLOSE_TIMEOUT = 1.0


class WorkerOptions(NamedTuple):
    """``name`` owns the leases and names the worker's database sessions (63 bytes of it count)."""

    name: str
    role: Role
    grace: float
    verbosity: int


PIPELINES = {Role.COMMAND: "enode_django.processors.wiring", Role.EVENT: "enode_django.processors.event_pipeline"}
NOTES = {Role.COMMAND: 1, Role.EVENT: 2}
"""The number of integers that a thread notes: a position, and for a subscriber also the number of a step."""


def worker_job(options: WorkerOptions, seats: Sequence[str]) -> Job:
    """Return the job that runs a worker. ``seats`` are the groups of the threads that note their work in hand: a
    command mailbox notes one integer, a subscriber two."""
    values = (options.name, options.role.value, options.grace, options.verbosity, "\n".join(seats))
    notes = len(seats) * NOTES[options.role]
    return Job(options.name, run_worker, values, notes, [PIPELINES[options.role]])


def run_worker(
    connection: Connection, notes: Any, name: str, role: str, grace: float, verbosity: int, seats: str
) -> None:
    """Run a worker process. ``notes`` is shared memory of 64-bit integers. ``seats`` names the group that each is for,
    one in each line. The rest are the worker's `WorkerOptions`."""
    options = WorkerOptions(name, Role(role), grace, verbosity)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the supervisor forwards it
    load_project()
    log_to_console(options.verbosity)
    name_sessions(options.name)
    sys.exit(_Worker(options, connection, note_places(notes, NOTES[options.role]), seats.split("\n")).run())


def load_project() -> None:
    """Set up Django, unless the process was forked with everything loaded."""
    from django.apps import apps

    if not apps.ready:
        import django

        django.setup()


def name_sessions(name: str) -> None:
    """Name this process's database sessions after it, so that a successor can end them."""
    from django.db import connections

    for alias in connections:
        database = connections[alias]
        if database.vendor == "postgresql":
            database.settings_dict.setdefault("OPTIONS", {})["application_name"] = name


class _Worker:
    def __init__(
        self, options: WorkerOptions, connection: Connection, notes: Sequence[Any], seats: Sequence[str]
    ) -> None:
        from enode_django.processors.statistics import Statistics
        from enode_django.runtime import make_transport

        self._options = options
        self._connection = connection
        self._statistics = Statistics()
        self._transport = make_transport()
        self._pipeline = self._make_pipeline(notes, seats)
        self._grace: float | None = None
        self._next_beat = 0.0
        self._wakeup = Wakeup()
        signal.signal(signal.SIGTERM, self._on_sigterm)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)

    def _make_pipeline(self, notes: Sequence[Any], seats: Sequence[str]) -> Pipeline | EventPipeline:
        from enode_django.conf import conf
        from enode_django.runtime import make_store

        owner, statistics = self._options.name, self._statistics
        if self._options.role == Role.EVENT:
            from enode_django.processors.event_pipeline import EventPipeline

            # Notes go by name: this process may know other subscribers than its supervisor, which was started earlier.
            named = dict(zip(seats, notes, strict=False))
            return EventPipeline(conf(), self._transport, make_store(), owner=owner, notes=named, statistics=statistics)
        from enode_django.processors.wiring import make_pipeline

        return make_pipeline(conf(), self._transport, make_store(), owner=owner, markers=notes, statistics=statistics)

    def _on_sigterm(self, number: int, frame: object) -> None:
        self._grace = self._options.grace
        self._wakeup.wake()

    def run(self) -> int:
        """Run until told to stop. Return the exit status: 0 if everything that was pulled is finished."""
        collect_seldom()
        map_large_blocks()
        self._pipeline.start()
        while self._grace is None:
            try:
                self._beat()
                self._listen()
            except (EOFError, OSError):
                logger.warning("the supervisor of %s is gone; draining", self._options.name)
                self._grace = self._options.grace
        begun = time.monotonic()
        drained = self._pipeline.drain(self._grace)
        lasted = time.monotonic() - begun
        if drained:
            self._pipeline.close(CLOSE_TIMEOUT)
        try:
            send(self._connection, self._statistics.report())
        except OSError:
            logger.debug("nobody reads the last report of %s", self._options.name)
        self._transport.close()
        if not drained:
            text = "%s could not finish: it ends after %.1f of %.1f s, and what is left comes again"
            logger.error(text, self._options.name, lasted, self._grace)
        return 0 if drained else 1

    def _beat(self) -> None:
        if time.monotonic() >= self._next_beat:
            send(self._connection, self._statistics.report())
            self._next_beat = time.monotonic() + BEAT_INTERVAL

    def _listen(self) -> None:
        self._wakeup.wait([self._connection], max(0.0, self._next_beat - time.monotonic()))
        if self._connection.poll():
            self._grace = receive(self._connection)


def note_places(notes: Any, width: int) -> Sequence[Any]:
    """Return views of ``width`` integers of the shared array, which are cheaper to write than a ctypes array."""
    view = memoryview(notes).cast("B").cast("q")
    return [view[start : start + width] for start in range(0, len(notes), width)]


def worker_name(supervisor: str, role: Role, number: int) -> str:
    """Return a name that is unique for each start of a process, and short enough for an ``application_name``."""
    return f"{supervisor}/{'' if role is Role.COMMAND else f'{role}-'}{number}-{os.urandom(3).hex()}"
