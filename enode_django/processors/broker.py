"""The broker of ``runprocessors --with-broker``: a child process, started first, watched, and stopped last."""

from __future__ import annotations

import logging
import os
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any

from enode_django.concurrency.threads import start_thread
from enode_django.conf.groups import Conf
from enode_django.exceptions import ConfigurationError, DirectoryInUse, QueueError, TransportUnavailable
from enode_django.processes.children import Children, Job, ending
from enode_django.processors.logs import log_to_console
from enode_django.processors.worker import load_project

logger = logging.getLogger("enode_django.supervisor")

START_SECONDS = 60.0
STOP_SECONDS = 30.0
RESTART_DELAY = 1.0
LOOK_AGAIN = 0.2
BEYOND_GRACE = 5.0
"""Seconds beyond the workers' grace time that the broker outlives its supervisor: workers need it until they end."""
_STOP = b"stop"


class BrokerProcess:
    """The broker's process. All methods are called by the supervisor's thread. `wait_ready` and `stop` block."""

    def __init__(self, conf: Conf, children: Children, *, verbosity: int) -> None:
        self._children = children
        self._orphaned_for = conf.WORKERS.GRACE + BEYOND_GRACE
        self._verbosity = verbosity
        self._due = 0.0
        self._start()

    def _start(self) -> None:
        job = Job("enode-broker", run_broker, (self._orphaned_for, self._verbosity))
        self._process, self._connection, _ = self._children.start(job)

    def wait_ready(self) -> str:
        """Return the location. Raises `ConfigurationError` if it ends, `TransportUnavailable` if it takes too long."""
        seconds = self._orphaned_for + START_SECONDS
        if not self._connection.poll(seconds):
            raise TransportUnavailable(f"the broker did not start within {seconds:g} s; see its log")
        try:
            location: str = self._connection.recv_bytes().decode()
        except (EOFError, OSError):
            self._process.join()
            raise ConfigurationError(
                f"the broker did not start ({ending(self._process.exitcode)}); its log says why"
            ) from None
        logger.info("the broker listens on %s, process %s", location, self._process.pid)
        return location

    @property
    def pid(self) -> int | None:
        return self._process.pid

    @property
    def ends(self) -> list[int]:
        """The file descriptors to wait on: one becomes readable when the broker dies. Empty while it is dead."""
        return [self._process.sentinel] if self._process.is_alive() else []

    def look(self) -> None:
        """Restart the broker if it has died. Its clients retry meanwhile. An error of the start, which must not end the
        living workers, is logged, and the start tried again."""
        if self._process.is_alive() or time.monotonic() < self._due:
            return
        logger.error("the broker died: %s; starting another", ending(self._process.exitcode))
        self._due = time.monotonic() + RESTART_DELAY
        self._connection.close()
        try:
            self._start()
        except Exception:  # memory or process ids are used up
            logger.exception("the broker cannot be started; trying again")

    def stop(self) -> bool:
        """Stop the broker when no process needs it. Return True if it ended well."""
        with suppress(OSError):  # it has died, and may not have been restarted
            self._connection.send_bytes(_STOP)
        self._process.join(STOP_SECONDS)
        if self._process.is_alive():
            logger.error("the broker did not end within %g s; killing it", STOP_SECONDS)
            self._process.kill()
            self._process.join()
        self._connection.close()
        return self._process.exitcode == 0


def run_broker(connection: Connection, notes: Any, orphaned_for: float, verbosity: int) -> None:
    """Run the broker's process until its supervisor says so through the connection. It goes on for ``orphaned_for``
    seconds after its supervisor has died, and waits that long for an earlier broker that does so."""
    # The stop signals stay blocked: a terminal and service managers send them to the whole process group, and draining
    # workers need the broker.
    load_project()
    log_to_console(verbosity)
    from enode_django.conf import conf
    from enode_django.equeue.broker.server import run
    from enode_django.processors.broker_options import broker_options

    start_thread("enode-supervised", lambda: _end_when_told(connection, orphaned_for))
    try:
        options = broker_options(conf())
        status = when_free(
            lambda: run(options, on_ready=lambda location: connection.send_bytes(location.encode())), orphaned_for
        )
    except (ConfigurationError, QueueError) as error:
        logger.error("%s", error)
        status = 1
    sys.exit(status)


def when_free(run: Callable[[], int], seconds: float) -> int:
    """Run the broker and return its exit status. Wait ``seconds`` for its directory, then raise `DirectoryInUse`."""
    until = time.monotonic() + seconds
    is_told = False
    while True:
        try:
            return run()
        except DirectoryInUse as error:
            if time.monotonic() > until:
                raise
            if not is_told:
                logger.warning("%s; waiting for up to %g s, in case its supervisor was killed", error, seconds)
                is_told = True
        time.sleep(LOOK_AGAIN)


def _end_when_told(connection: Connection, orphaned_for: float) -> None:
    """Block until the supervisor says so, or is dead for that long. Then let one SIGTERM take effect: this one and one
    that the process group has got since the start are pending as one."""
    try:
        connection.recv_bytes()
    except (EOFError, OSError):
        logger.warning("the supervisor is gone; the broker ends in %g s", orphaned_for)
        time.sleep(orphaned_for)
    os.kill(os.getpid(), signal.SIGTERM)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})  # in this thread, which ends: later ones stay blocked
