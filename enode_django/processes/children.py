"""The supervisor's child processes, and two ways to start them: see `Children`.

Where the project must not be forked, children are started through `multiprocessing`. On Linux they are forked from its
server process, which has imported libraries and nothing else: no settings and no application. Elsewhere, and where the
directory for temporary files cannot hold that server's socket, each is a process of its own from the beginning.
"""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerContext, SpawnContext
from multiprocessing.process import BaseProcess
from typing import Any, NamedTuple, Protocol

UNKNOWN_STATUS = 255
"""So `multiprocessing` says if the process that forked a child is gone. The child may live on: whoever started it ends
their connection, so that it ends, too."""
STOP_SIGNALS = frozenset({signal.SIGINT, signal.SIGTERM})

PRELOADED = [
    *("django.core.management", "django.core.cache", "django.db.backends.postgresql.base", "django.db.models"),
    *("django.forms", "django.http", "django.urls", "psycopg", "mmh3", "msgpack", "redis", "redis.sentinel", "celery"),
    *("celery.app.base", "celery.app.builtins", "kombu.serialization"),
    *("enode_django.processors.wiring", "enode_django.processors.event_pipeline", "enode_django.processors.worker"),
    *("enode_django.equeue.transports.redis_streams", "enode_django.equeue.transports.broker"),
    "enode_django.processes.forkserver",
]
"""Modules to preload. Those that are not installed, or not found from the working directory, are left to each
process."""

LONGEST_DIRECTORY = 60
"""Bytes of its path: a socket has 108, and its own name and that of a directory are behind it."""


class ChildProcess(Protocol):
    """A child as its supervisor sees it: the part of `multiprocessing.Process` that is used here."""

    @property
    def pid(self) -> int | None: ...
    @property
    def sentinel(self) -> int:
        """Ready to be read when the process has ended."""

    @property
    def exitcode(self) -> int | None:
        """None while it lives; negative for a signal; `UNKNOWN_STATUS` if the process that forked it is gone."""

    def is_alive(self) -> bool: ...
    def join(self, timeout: float | None = None) -> None: ...
    def terminate(self) -> None: ...
    def kill(self) -> None: ...


class Job(NamedTuple):
    """A call in a child process: ``run(connection, notes, *arguments)``. ``run`` is a function of a module; arguments
    are numbers and texts.

    ``notes`` says how many 64-bit integers of shared memory the child writes and its supervisor reads. The modules
    named by ``imports`` are imported before the fork if the child is forked from a process that has the project loaded.
    """

    name: str
    run: Callable[..., object]
    arguments: tuple[Any, ...]
    notes: int = 0
    imports: Sequence[str] = ()


class Started(NamedTuple):
    """A child, this side of its connection, and the memory that it shares."""

    process: ChildProcess
    connection: Connection
    notes: Any


class Children(Protocol):
    """Starts child processes. A child has `STOP_SIGNALS` blocked, and lifts that itself."""

    def start(self, job: Job) -> Started: ...

    def close(self) -> None:
        """Send SIGTERM to the children that still live, and wait for their ends. Safe to call twice."""


class ContextChildren:
    """Each child imports the project for itself."""

    def __init__(self) -> None:
        self._living: list[BaseProcess] = []

    def start(self, job: Job) -> Started:
        context = children_context()
        notes = context.RawArray(ctypes.c_int64, job.notes)
        ours, theirs = context.Pipe()
        # A daemon is sent SIGTERM, which drains it, when its parent exits without the supervisor's doing (--reload).
        process = context.Process(target=job.run, args=(theirs, notes, *job.arguments), name=job.name, daemon=True)
        resource_tracker.ensure_running()  # else starting the process does it, and unblocks signals on the way
        try:
            with stop_signals_blocked():
                process.start()
        except BaseException:  # a signal handler may raise, too
            ours.close()  # a child that lives though its start has failed ends with it
            raise
        finally:
            theirs.close()
        self._living = [*filter(BaseProcess.is_alive, self._living), process]
        return Started(process, ours, notes)

    def close(self) -> None:
        end(self._living)


def end(processes: Sequence[ChildProcess]) -> None:
    """Send SIGTERM to those that live, and wait for the end of all."""
    for process in processes:
        if process.is_alive():
            process.terminate()
    for process in processes:
        process.join()


def children_context() -> ForkServerContext | SpawnContext:
    if sys.platform != "linux" or not _can_hold_a_socket():
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    return context


def _can_hold_a_socket() -> bool:
    try:
        return len(os.fsencode(tempfile.gettempdir())) <= LONGEST_DIRECTORY
    except FileNotFoundError:  # none can be written to
        return False


@contextmanager
def stop_signals_blocked() -> Iterator[None]:
    """Block the stop signals while a process is started. The mask is inherited, so that a signal to the whole group
    ends neither a process that cannot handle it yet, nor the one that forks. The started process lifts it."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
