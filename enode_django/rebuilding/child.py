"""A process that replays for another one: ``python -m enode_django.rebuilding.child FD``.

It receives tasks over the connection with this file descriptor, one at a time, and answers each. When the connection
is closed, it exits at once, even during a task: its parent is gone or has given it up.
"""

from __future__ import annotations

import os
import queue
import signal
import sys
import traceback
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING

from enode_django.concurrency.threads import start_thread

if TYPE_CHECKING:
    from enode_django.rebuilding.replaying import Replayed
    from enode_django.rebuilding.task_messages import Failed

KEEP_CONNECTIONS = 1.0
"""Seconds without a task after which the connections are closed."""


def main(number: int) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the parent ends this process
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT, signal.SIGTERM})
    connection = Connection(number)
    tasks = _received(connection)
    _load_project()
    from enode_django.rebuilding.task_messages import send_answer

    while True:
        send_answer(connection, _answer(_next(tasks)))


def _load_project() -> None:
    import django

    from enode_django.concurrency.garbage import collect_seldom

    django.setup()
    collect_seldom()


def _received(connection: Connection) -> queue.SimpleQueue[bytes]:
    """Start the thread that receives tasks, and return its queue."""
    tasks: queue.SimpleQueue[bytes] = queue.SimpleQueue()

    def receive() -> None:
        while True:
            try:
                tasks.put(connection.recv_bytes())
            except (EOFError, OSError):
                os._exit(0)

    start_thread("rebuild-tasks", receive, vital=True)
    return tasks


def _next(tasks: queue.SimpleQueue[bytes]) -> bytes:
    """Return the next task. If it does not come soon, close the connections meanwhile."""
    from django.db import connections

    try:
        return tasks.get(timeout=KEEP_CONNECTIONS)
    except queue.Empty:
        connections.close_all()
        return tasks.get()


def _answer(task: bytes) -> Replayed | Failed:
    from django.db import connections

    from enode_django.rebuilding.task_messages import Failed

    try:
        return _done(task)
    except Exception as error:
        connections.close_all()  # it may be theirs
        return Failed(type(error).__name__, str(error), traceback.format_exc())


def _done(data: bytes) -> Replayed:
    from enode_django.eventstore.scanning import raw_time, scan_raw
    from enode_django.rebuilding.catch_up_tasks import work_off
    from enode_django.rebuilding.replaying import replayer
    from enode_django.rebuilding.task_messages import unpacked_task

    task = unpacked_task(data)
    if task.catch_up is not None:
        return work_off(task.shadow, [task.catch_up])
    with replayer(task.shadow) as replaying:
        if task.scan is None:
            return replaying.catch_up(task.todo)
        return replaying.replay(scan_raw(task.scan), raw_time)


if __name__ == "__main__":
    main(int(sys.argv[1]))
