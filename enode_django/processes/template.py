"""Children that are forked from a template: a process that has the project loaded, and does nothing else.

The template itself is forked from the supervisor's process, which has loaded the project when ``manage.py`` runs it, at
a moment at which it has one thread and no connection: `why_not` looks. It keeps that one thread and waits for jobs. So
a child takes a few milliseconds to start, and shares the memory of what is loaded with all others.

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

from enode_django.conf import Conf
from enode_django.processes.children import (
    UNKNOWN_STATUS,
    ChildProcess,
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
_NUMBER = struct.Struct("q")
_CONNECTED = ("socket:", "anon_inode:")
"""So links in ``/proc/self/fd`` begin for what two processes must not share: connections, and what watches them."""


def make_children(conf: Conf) -> Children:
    """To be called before this process starts threads or opens connections of its own. Those of Django are closed."""
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
    """Why this process must not be forked with all that it has loaded; None if it may be."""
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
    """Forks the template when it is made. What it cannot start, when the template has died, ``others`` start."""

    def __init__(self, others: Children) -> None:
        self._others = others
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        gc.freeze()  # a collection in this process would have to copy all that it looks at
        # No daemon: those may have no children. It ends with the socket, so that nobody waits for it in vain.
        self._template = multiprocessing.get_context("fork").Process(
            target=_serve, args=(theirs, self._socket), name="enode-template"
        )
        with stop_signals_blocked():
            self._template.start()
        theirs.close()
        self._living: list[ChildProcess] = []
        self._is_gone = False

    def start(self, job: Job) -> Started:
        if not self._is_gone:
            try:
                return self._start(job)
            except (OSError, EOFError):
                logger.error("the process that forks cannot do it any more; from now on each child loads the project")
                self._is_gone = True
        return self._others.start(job)

    def _start(self, job: Job) -> Started:
        ours, theirs = multiprocessing.Pipe()
        memory, notes = _shared_notes(job.notes)
        status, theirs_of_status = multiprocessing.Pipe(duplex=False)
        try:
            socket.send_fds(self._socket, [_packed(job)], [theirs.fileno(), memory, theirs_of_status.fileno()])
            theirs_of_status.close()  # else the end of the template could not be seen
            process = ForkedChild(status)
        except BaseException:  # a signal handler may raise, too
            ours.close()  # a child that lives though its start has failed ends with it
            status.close()
            raise
        finally:
            theirs.close()
            os.close(memory)
            theirs_of_status.close()
        self._living = [*filter(_is_alive, self._living), process]
        return Started(process, ours, notes)

    def close(self) -> None:
        try:
            end(self._living)
            self._others.close()
        finally:  # else the template would never end, and the interpreter waits for it
            self._socket.close()
            self._template.join()


def _is_alive(process: ChildProcess) -> bool:
    return process.is_alive()


class ForkedChild:
    """A child of the template, which tells through a pipe of its process id and of its end. Safe for threads: with
    ``--reload`` the supervisor's thread watches it while the main thread waits for its end."""

    def __init__(self, status: Connection) -> None:
        """Raises `EOFError` when the template cannot fork it."""
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
    """A file descriptor for a child, and what it will write there, as so many 64-bit integers."""
    memory = os.memfd_create("enode-notes")
    os.ftruncate(memory, mmap.PAGESIZE * (count * _NUMBER.size // mmap.PAGESIZE + 1))
    return memory, _mapped(memory, count)


def _mapped(memory: int, count: int) -> memoryview:
    return memoryview(mmap.mmap(memory, 0)).cast("q")[:count]


# -- the template's side ----------------------------------------------------------------------------------------------


class _Running(NamedTuple):
    """A child of the template; where its supervisor is told of it; and a file descriptor that is ready when it has
    ended, even if children of its own live on with what they have inherited."""

    process: BaseProcess
    status: Connection
    end: int


def _serve(requests: socket.socket, supervisors: socket.socket) -> None:
    """The main function of the template. It ends with its supervisor, and lets its children go: they see it, too."""
    supervisors.close()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    forget_systemd()  # no child is to speak for the supervisor
    gc.disable()  # a collection would write to the memory that is shared
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
    """Start a process for the job. If that fails, the end of the pipe tells the supervisor."""
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
    except Exception:  # a module of the project is broken, or the system refuses: the supervisor is told
        logger.exception("%s cannot be forked", job.name)
        status.close()
        return []
    finally:
        os.close(connection)
        os.close(memory)
    assert process.pid is not None
    status.send_bytes(_NUMBER.pack(process.pid))
    return [_Running(process, status, os.pidfd_open(process.pid))]


def _has_ended(one: _Running) -> bool:
    """Tell the supervisor when a child has ended; then it is forgotten here."""
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
