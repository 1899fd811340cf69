"""A pool of processes that replay, each with the project loaded and its own connections.

The processes are started as new programs. A job has threads and connections, so it must not be forked, see decision
0026, and `multiprocessing` starts no processes in Celery's children. A process that dies during a task, for example
for lack of memory, is replaced, and the task is repeated: the shadow's checkpoints show what was done already.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection, wait
from typing import NamedTuple

from enode_django.concurrency import stopping
from enode_django.exceptions import RebuildError
from enode_django.processes.children import stop_signals_blocked
from enode_django.processes.settings_module import SETTINGS_VARIABLE, settings_module
from enode_django.rebuilding.replaying import Replayed
from enode_django.rebuilding.task_messages import Failed, Task, receive_answer
from enode_django.serialization.plain import pack

TRIES = 4
"""Attempts at a task whose process dies, as many as Spark makes."""
LOOK_EVERY = 0.2
"""Seconds between checks whether the work has to stop."""

Tell = Callable[[int, Replayed], object]
"""Called in the waiting thread with the number of tasks that are done, and their total."""


class Pool:
    """A pool of at most ``size`` processes, started on demand. Not thread-safe."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._idle: list[_Child] = []

    def run(self, tasks: Iterable[Task], tell: Tell = lambda done, total: None) -> Replayed:
        """Do all tasks and return their total. Blocks; calls ``tell`` at least every `LOOK_EVERY` seconds.

        Raises the error of a task, `RebuildError` for a task whose process has died `TRIES` times, what ``tell``
        raises, and what `stopping` raises to end the surrounding work. Busy processes are killed then.
        """
        work = _Work(tasks)
        busy: dict[Connection, _Child] = {}
        try:
            while work.waiting or busy:
                self._give(work, busy)
                for connection in wait([*busy], LOOK_EVERY):
                    assert isinstance(connection, Connection)
                    self._take(busy.pop(connection), work)
                stopping.check()
                tell(work.done, work.total)
        finally:
            for child in busy.values():
                child.kill()
        return work.total

    def _give(self, work: _Work, busy: dict[Connection, _Child]) -> None:
        while work.waiting and len(busy) < self.size:
            child = self._idle.pop() if self._idle else _Child()
            busy[child.connection] = child
            child.give(work.waiting.popleft())

    def _take(self, child: _Child, work: _Work) -> None:
        try:
            answer = receive_answer(child.connection)
        except (EOFError, OSError):
            work.give_back(child.attempt, child.kill())
            return
        self._idle.append(child)
        if isinstance(answer, Failed):
            raise answer.error() from _InChild(f"in a process of the rebuild:\n{answer.trace}")
        work.done += 1
        work.total += answer

    def close(self) -> None:
        """End the processes. Safe to call twice."""
        while self._idle:
            self._idle.pop().kill()


class _Attempt(NamedTuple):
    task: Task
    number: int


class _Work:
    def __init__(self, tasks: Iterable[Task]) -> None:
        self.waiting = deque(_Attempt(task, 1) for task in tasks)
        self.done = 0
        self.total = Replayed()

    def give_back(self, attempt: _Attempt, status: int) -> None:
        if attempt.number >= TRIES:
            how = f"signal {-status}" if status < 0 else f"exit status {status}"
            raise RebuildError(
                f"{TRIES} processes that replayed {_text(attempt.task)} have ended one after the other, the last by "
                f"{how}; what kills them is in their output or in the system's log: memory may be short, then allow "
                "fewer PROCESSES in ENODE['REBUILDS']"
            )
        self.waiting.append(attempt._replace(number=attempt.number + 1))


class _Child:
    def __init__(self) -> None:
        ours, theirs = socket.socketpair()
        for one in (ours, theirs):
            os.set_blocking(one.fileno(), True)  # sockets of gevent are not, and the process would read nothing
        with theirs:
            try:
                with stop_signals_blocked():
                    self._process = subprocess.Popen(
                        [sys.executable, "-m", "enode_django.rebuilding.child", str(theirs.fileno())],
                        env=_environment(),
                        stdin=subprocess.DEVNULL,
                        pass_fds=[theirs.fileno()],
                    )
            except BaseException:
                ours.close()
                raise
        self.connection = Connection(ours.detach())
        self.attempt: _Attempt

    def give(self, attempt: _Attempt) -> None:
        self.attempt = attempt
        with suppress(OSError):  # the process is gone; receiving its answer fails, too
            self.connection.send_bytes(pack(attempt.task))

    def kill(self) -> int:
        """Kill the process and return its exit status. The server rolls its transaction back."""
        self.connection.close()
        self._process.kill()
        return self._process.wait()


def _environment() -> dict[str, str]:
    """Return the environment in which a process finds the same modules and settings."""
    path: Sequence[str] = [os.path.abspath(place) for place in sys.path]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(path), SETTINGS_VARIABLE: settings_module()}


def _text(task: Task) -> str:
    if task.catch_up is not None:
        return f"the aggregates from {task.catch_up.low!r} to {task.catch_up.high!r} that have changed meanwhile"
    if task.scan is None:
        return f"{len(task.todo)} aggregates from {task.todo[0].aggregate_root_id!r} on"
    return f"the aggregates from {task.scan.low!r} to {task.scan.high!r}"


class _InChild(Exception):
    """Holds the traceback of the other process."""
