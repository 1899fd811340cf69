"""Start children by forking a template: a process that has the project loaded, and does nothing else.

The template is forked from the supervisor's process after ``manage.py`` has loaded the project, while it has one thread
and no connection; `why_not` checks this. The template keeps one thread and waits for jobs. So a child starts within
milliseconds, and shares the memory of the loaded project with the others.

    supervisor ── job, and three file descriptors ──► template ── fork ──► child
         ▲                                                │                  │
         └───────────────── process id, exit status ◄─────┘                  │
         └───────────────── connection, notes (shared memory) ◄──────────────┘
"""

from __future__ import annotations

import gc
import importlib
import logging
import mmap
import multiprocessing
import os
import signal
import socket
import struct
import sys
import threading
from contextlib import suppress
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import NamedTuple

from django.db import connections

from enode_django.conf.groups import Conf
from enode_django.processes.children import (
    UNKNOWN_STATUS,
    Children,
    ContextChildren,
    Job,
    Started,
    end,
    stop_signals_blocked,
)
from enode_django.processes.notifying import forget_systemd
from enode_django.serialization.plain import pack, unpack

logger = logging.getLogger("enode_django.supervisor")

LONGEST_JOB = 65_536
"""Bytes."""
ANSWERS_WITHIN = 60.0
"""The seconds that the template has to fork a child. It imports what the child needs first."""
_NUMBER = struct.Struct("q")
_CONNECTED = ("socket:", "anon_inode:")
"""Prefixes of link targets in ``/proc/self/fd``. Two processes must not share these files: sockets, event pollers."""


def make_children(conf: Conf) -> Children:
    """Return the way to start children. Call this before this process starts threads or opens connections of its own.
    Closes Django's connections if ``PRELOAD`` is set."""
    others = ContextChildren()
    if not conf.WORKERS.PRELOAD:
        return others
    connections.close_all()
    reason = why_not()
    if reason is not None:
        logger.info("each worker loads the project by itself: %s", reason)
        return others
    return TemplateChildren(others)


def why_not() -> str | None:
    """Return the reason why this process must not be forked; None if it may be."""
    if sys.platform != "linux":
        return f"on {sys.platform} nothing is forked"
    if threading.current_thread() is not threading.main_thread():
        return "this is not the main thread"
    if others := [thread.name for thread in threading.enumerate() if thread is not threading.main_thread()]:
        return f"the project has started threads: {', '.join(others)}"
    if (threads := len(os.listdir("/proc/self/task"))) > 1:
        return f"a library that the project loads has started {threads - 1} threads"
    if opened := _connections():
        return f"the project has opened connections: {', '.join(opened)}"
    return None if _sees_ends() else "this kernel has no pidfd_open"


def _connections() -> list[str]:
    """Return the connections that this process has opened or inherited, except its standard streams."""
    found = []
    for number in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):  # the directory itself, while it is listed
            name = os.readlink(f"/proc/self/fd/{number}")
            if int(number) > 2 and name.startswith(_CONNECTED):
                found.append(f"file descriptor {number}, {name}")
    return found


def _sees_ends() -> bool:
    try:
        os.close(os.pidfd_open(os.getpid()))
    except (AttributeError, OSError):
        return False
    return True


def _packed(job: Job) -> bytes:
    return pack([job.run.__module__, job.run.__qualname__, job.name, list(job.arguments), job.notes, list(job.imports)])


def _unpacked(data: bytes) -> Job:
    module, function, name, arguments, notes, imports = unpack(data)
    return Job(name, getattr(importlib.import_module(module), function), tuple(arguments), notes, imports)


# -- the supervisor's side --------------------------------------------------------------------------------------------


class TemplateChildren:
    """Forks the template at construction. ``others`` start a child that the template cannot fork, and all children
    after the template's death. A template that hangs is killed."""

    def __init__(self, others: Children) -> None:
        self._others = others
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        gc.freeze()  # a garbage collection would write to the shared memory, so that the kernel copies it
        # Not a daemon, since daemons may have no children. The template ends with the socket.
        self._template = multiprocessing.get_context("fork").Process(
            target=_serve, args=(theirs, self._socket), name="enode-template"
        )
        with stop_signals_blocked():
            self._template.start()
        theirs.close()
        self._living: list[ForkedChild] = []
        self._is_gone = False

    def start(self, job: Job) -> Started:
        if not self._is_gone:
            try:
                return self._start(job)
            except (OSError, EOFError) as error:
                if isinstance(error, TimeoutError):
                    self._kill()
                self._is_gone = not self._template.is_alive()  # one that is just dying is found dead at the next start
                if self._is_gone:
                    logger.error(
                        "the process that forks workers is gone; from now on each worker loads the project itself"
                    )
                else:
                    logger.error("%s was not forked (%r); it loads the project itself", job.name, error)
        return self._others.start(job)

    def _start(self, job: Job) -> Started:
        ours, theirs = multiprocessing.Pipe()
        memory, notes = _shared_notes(job.notes)
        status, theirs_of_status = multiprocessing.Pipe(duplex=False)
        try:
            socket.send_fds(self._socket, [_packed(job)], [theirs.fileno(), memory, theirs_of_status.fileno()])
            theirs_of_status.close()  # else the pipe would not end with the template
            process = ForkedChild(status)
        except BaseException:  # a signal handler may raise, too
            ours.close()  # ends a child that lives though its start has failed
            status.close()
            raise
        finally:
            theirs.close()
            os.close(memory)
            theirs_of_status.close()
        self._living = [*filter(ForkedChild.is_alive, self._living), process]
        return Started(process, ours, notes)

    def _kill(self) -> None:
        """End a template that hangs. Its children are let go, as after its death: it would not tell of their ends."""
        logger.error("the process that forks workers has not answered for %g s; killing it", ANSWERS_WITHIN)
        self._template.kill()
        self._template.join()

    def close(self) -> None:
        try:
            end(self._living)
            self._others.close()
        finally:  # else the template would never end, and the interpreter would wait for it
            self._socket.close()
            self._template.join()


class ForkedChild:
    """A child of the template, which sends its process id and exit status through a pipe. Safe for threads: with
    ``--reload`` the supervisor's thread watches it while the main thread waits for its end."""

    def __init__(self, status: Connection) -> None:
        """Block until the template has forked the child. Raises `EOFError` if it cannot, and `TimeoutError` if it does
        not answer."""
        if not status.poll(ANSWERS_WITHIN):
            raise TimeoutError(f"no answer within {ANSWERS_WITHIN:g} s")
        self._status = status
        self._reading = threading.Lock()
        self.pid = self._read()
        self._exitcode: int | None = None

    def _read(self) -> int:
        number: int
        (number,) = _NUMBER.unpack(self._status.recv_bytes())
        return number

    @property
    def sentinel(self) -> int:
        return self._status.fileno()

    @property
    def exitcode(self) -> int | None:
        self.join(0)
        return self._exitcode

    def is_alive(self) -> bool:
        return self.exitcode is None

    def join(self, timeout: float | None = None) -> None:
        if self._exitcode is not None or not self._status.poll(timeout):
            return
        with self._reading:
            if self._exitcode is None:  # else another thread has read it since
                try:
                    self._exitcode = self._read()
                except (EOFError, OSError):
                    self._exitcode = UNKNOWN_STATUS

    def terminate(self) -> None:
        self._signal(signal.SIGTERM)

    def kill(self) -> None:
        self._signal(signal.SIGKILL)

    def _signal(self, number: int) -> None:
        if self.is_alive():
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)


def _shared_notes(count: int) -> tuple[int, memoryview]:
    """Return a file descriptor of shared memory for a child, and the memory as ``count`` 64-bit integers."""
    memory = os.memfd_create("enode-notes")
    os.ftruncate(memory, mmap.PAGESIZE * (count * _NUMBER.size // mmap.PAGESIZE + 1))
    return memory, _mapped(memory, count)


def _mapped(memory: int, count: int) -> memoryview:
    return memoryview(mmap.mmap(memory, 0)).cast("q")[:count]


# -- the template's side ----------------------------------------------------------------------------------------------


class _Running(NamedTuple):
    """A child of the template. ``status`` is the pipe to the supervisor. ``end`` is a file descriptor that becomes
    ready when the child has ended, even if its own children live on with inherited descriptors."""

    process: BaseProcess
    status: Connection
    end: int


def _serve(requests: socket.socket, supervisors: socket.socket) -> None:
    """Run the template. It ends with its supervisor, and does not wait for its children, which end by themselves."""
    supervisors.close()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    forget_systemd()  # children must not speak for the supervisor
    gc.disable()  # a collection would write to the shared memory
    running: list[_Running] = []
    while True:
        ready = wait([requests, *(one.end for one in running)])
        running = [one for one in running if not _has_ended(one)]
        if requests not in ready:
            continue
        data, received, *_ = socket.recv_fds(requests, LONGEST_JOB, 3)
        if not data:
            os._exit(0)
        not_for_it = [requests.fileno(), *(number for one in running for number in (one.status.fileno(), one.end))]
        running += _start(_unpacked(data), received, not_for_it)


def _start(job: Job, received: list[int], not_for_it: list[int]) -> list[_Running]:
    """Start a process for the job. If that fails, leave no process, and close the pipe, so that the supervisor gets
    `EOFError`."""
    if len(received) < 3:  # too many files are open, so the kernel has closed the others
        for number in received:
            os.close(number)
        logger.error("%s cannot be forked: too many open files; raise LimitNOFILE or ulimit -n", job.name)
        return []
    connection, memory, writable = received
    status = Connection(writable, readable=False)
    try:
        for name in job.imports:
            importlib.import_module(name)
        gc.freeze()
        process = multiprocessing.get_context("fork").Process(
            target=_be_child, args=(job, connection, memory, [*not_for_it, writable]), name=job.name, daemon=True
        )
        process.start()
        return [_watched(process, status)]
    except Exception:  # a module of the project is broken, or the system refuses to fork
        logger.exception("%s cannot be forked", job.name)
        status.close()
        return []
    finally:
        os.close(connection)
        os.close(memory)


def _watched(process: BaseProcess, status: Connection) -> _Running:
    """Tell the supervisor of a new process. If that fails, the process is killed: nobody would watch it."""
    assert process.pid is not None
    try:
        running = _Running(process, status, os.pidfd_open(process.pid))
        status.send_bytes(_NUMBER.pack(process.pid))
    except OSError:
        process.kill()
        process.join()
        raise
    return running


def _has_ended(one: _Running) -> bool:
    """Return True if the child has ended. Its exit status is sent to the supervisor, and its descriptors are closed."""
    if one.process.is_alive():
        return False
    with suppress(OSError):
        one.status.send_bytes(_NUMBER.pack(one.process.exitcode))
    one.status.close()
    os.close(one.end)
    one.process.close()
    return True


def _be_child(job: Job, connection: int, memory: int, not_for_it: list[int]) -> None:
    for number in not_for_it:
        os.close(number)
    gc.enable()
    notes = _mapped(memory, job.notes)
    os.close(memory)
    job.run(Connection(connection), notes, *job.arguments)
