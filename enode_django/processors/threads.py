"""The threads of a worker: all of them are vital, and each closes its database connections at its end."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial

from django.db import connections

from enode_django.concurrency.threads import start_thread, thread_died

PULL_WAIT = 0.2
"""Seconds between checks for changes that wake no thread: room for more commands, due commands, committed offsets."""


def start_worker_thread(
    name: str, run: Callable[[], None], status: Callable[[], int] = thread_died
) -> threading.Thread:
    """Start a vital thread. If ``run`` raises, the process ends with ``status()``. Its connections are closed."""
    return start_thread(name, partial(_then_disconnect, run), vital=True, status=status)


def _then_disconnect(run: Callable[[], None]) -> None:
    try:
        run()
    finally:
        connections.close_all()
