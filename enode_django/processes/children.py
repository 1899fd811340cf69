"""The supervisor's child processes. `Children` has two implementations.

This one starts children by `multiprocessing`, if the process with the loaded project must not be forked. On Linux they
are forked from its fork server, which has imported libraries, but no settings and no application. On other systems, and
if the path of the temporary directory is too long for that server's socket, they are spawned.
"""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import signal
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerContext, SpawnContext
from multiprocessing.process import BaseProcess
from typing import Any, NamedTuple, Protocol

UNKNOWN_STATUS = 255
"""The exit status that `multiprocessing` reports if the process that forked a child is gone. The child may live on. It
ends when its starter closes their connection."""
STOP_SIGNALS = frozenset({signal.SIGINT, signal.SIGTERM})

PRELOADED = [
    *("django.core.management", "django.core.cache", "django.db.backends.postgresql.base", "django.db.models"),
    *("django.forms", "django.http", "django.urls", "psycopg", "mmh3", "msgpack", "redis", "redis.sentinel", "celery"),
    *("celery.app.base", "celery.app.builtins", "kombu.serialization"),
    *("enode_django.processors.wiring", "enode_django.processors.event_pipeline", "enode_django.processors.worker"),
    *("enode_django.equeue.transports.redis_streams", "enode_django.equeue.transports.broker"),
    "enode_django.processes.forkserver",
]
"""Modules to preload. A module that cannot be imported in the fork server is left to each process."""

LONGEST_DIRECTORY = 60
"""Bytes of the temporary directory's path. A socket's path has at most 108, with the names of its directory and its
own."""


class ChildProcess(Protocol):
    """A child as its supervisor sees it: a part of `multiprocessing.Process`."""

    @property
    def pid(self) -> int | None: ...
    @property
    def sentinel(self) -> int:
        """A file descriptor that becomes readable when the process has ended."""

    @property
    def exitcode(self) -> int | None:
        """The exit status: None while the process lives, negative for a signal, `UNKNOWN_STATUS` if the process that
        forked it is gone."""

    def is_alive(self) -> bool: ...
    def join(self, timeout: float | None = None) -> None: ...
    def terminate(self) -> None: ...
    def kill(self) -> None: ...


class Job(NamedTuple):
    """A call in a child process: ``run(connection, notes, *arguments)``. ``run`` is a function of a module; arguments
    are numbers and texts.

    ``notes`` is the number of 64-bit integers in shared memory that the child writes and its supervisor reads. Modules
    in ``imports`` are imported before the fork, if the child is forked from a process that has the project loaded.
    """

    name: str
    run: Callable[..., object]
    arguments: tuple[Any, ...]
    notes: int = 0
    imports: Sequence[str] = ()


class Started(NamedTuple):
    """A child, the supervisor's side of its connection, and the shared memory."""

    process: ChildProcess
    connection: Connection
    notes: Any


class Children(Protocol):
    """Starts child processes. A child starts with `STOP_SIGNALS` blocked, and unblocks them itself."""

    def start(self, job: Job) -> Started: ...

    def close(self) -> None:
        """Send SIGTERM to living children, and wait until all have ended. Safe to call twice."""


class ContextChildren:
    """Starts children that import the project by themselves."""

    def __init__(self) -> None:
        self._living: list[BaseProcess] = []

    def start(self, job: Job) -> Started:
        context = children_context()
        notes = context.RawArray(ctypes.c_int64, job.notes)
        ours, theirs = context.Pipe()
        # If the parent exits without the supervisor's doing (--reload), a daemon gets SIGTERM, which drains it.
        process = context.Process(target=job.run, args=(theirs, notes, *job.arguments), name=job.name, daemon=True)
        resource_tracker.ensure_running()  # else starting the process does it, and unblocks signals on the way
        try:
            with stop_signals_blocked():
                process.start()
        except BaseException:  # a signal handler may raise, too
            ours.close()  # ends a child that lives though its start has failed
            raise
        finally:
            theirs.close()
        self._living = [*filter(BaseProcess.is_alive, self._living), process]
        return Started(process, ours, notes)

    def close(self) -> None:
        end(self._living)


def ending(status: int | None) -> str:
    """Return how a child has ended, for a log.

    >>> ending(3), ending(-9)
    ('exit status 3', 'killed by SIGKILL')
    """
    if status is not None and status < 0:
        return f"killed by {signal.Signals(-status).name}"
    if status == UNKNOWN_STATUS:
        return "nobody knows how, since the process that forks has died, too"
    return f"exit status {status}"


def end(processes: Sequence[ChildProcess]) -> None:
    """Send SIGTERM to living processes, and wait until all have ended."""
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
    except FileNotFoundError:  # there is no writable temporary directory
        return False


def receive_signals() -> None:
    """Receive the stop signals, and the exit statuses of children, whatever the parent of this process has blocked or
    ignored: both are inherited. While SIGCHLD is ignored, a child that has ended seems to live. Only the main thread
    may change that."""
    if threading.current_thread() is threading.main_thread():
        if signal.getsignal(signal.SIGCHLD) is signal.SIG_IGN:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)


@contextmanager
def stop_signals_blocked() -> Iterator[None]:
    """Block the stop signals while a process is started. The mask is inherited, so a signal to the process group ends
    neither a child that cannot handle it yet, nor the process that forks. Children unblock the signals."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
