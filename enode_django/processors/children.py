"""How the supervisor's child processes are started.

On Linux they are forked from a server process of `multiprocessing`, which has imported libraries and nothing else: no
settings and no application, which might keep threads or connections that must not be forked. So a worker is there in
a fraction of the time that the imports take, and workers share that memory. Elsewhere, and where the directory for
temporary files cannot hold that server's socket, each is a process of its own from the beginning.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import tempfile
from multiprocessing import resource_tracker
from multiprocessing.context import ForkServerContext, SpawnContext
from multiprocessing.process import BaseProcess

UNKNOWN_STATUS = 255
"""So `multiprocessing` says if the process that forked a child is gone. The child may live on: whoever started it ends
their connection, so that it ends, too."""
STOP_SIGNALS = frozenset({signal.SIGINT, signal.SIGTERM})

PRELOADED = [
    *("django.core.management", "django.core.cache", "django.db.backends.postgresql.base", "django.db.models"),
    *("django.forms", "django.http", "django.urls", "psycopg", "mmh3", "msgpack", "redis", "redis.sentinel", "celery"),
    *("celery.app.base", "celery.app.builtins", "kombu.serialization"),
    *("enode_django.processors.pipeline", "enode_django.processors.event_pipeline", "enode_django.processors.worker"),
    *("enode_django.equeue.transports.redis_streams", "enode_django.equeue.transports.broker"),
]
"""What is not installed, or not found from the working directory, is left to each process."""


LONGEST_DIRECTORY = 60
"""Bytes of its path: a socket has 108, and its own name and that of a directory are behind it."""


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


def start_undisturbed(process: BaseProcess) -> None:
    """Start a process with `STOP_SIGNALS` blocked. The mask is inherited, so that a signal to the whole group ends
    neither a process that has not got as far as to handle it, nor the one that forks: whoever is started lifts it."""
    resource_tracker.ensure_running()  # else starting the process does it, and unblocks signals on the way
    before = signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
    try:
        process.start()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
