"""Connect a process to `enodedev` at its start: the process sends its steps there, and ends when `enodedev` has
ended."""

from __future__ import annotations

import atexit
import contextlib
import gc
import logging
import multiprocessing
import os
import signal
import socket
import time

from django.conf import settings
from django.core.signals import request_started

from enode_django.concurrency.threads import start_thread
from enode_django.development.steps import encode_step
from enode_django.telemetry.steplog import logger as flow_logger

ADDRESS = "ENODE_DEVELOPMENT"
"""The environment variable with the socket's path."""
PATIENCE = "ENODE_DEVELOPMENT_PATIENCE"
"""Seconds that a process goes on after `enodedev` has died: others may need it until they have ended."""
LIFELINE = "ENODE_DEVELOPMENT_LIFELINE"
"""The `identity_of` the pipe that parts have as their standard input."""
MIDDLEWARE = "enode_django.middleware.EnodeMiddleware"
SEND_TIMEOUT = 1.0
_STANDARD_INPUT = 0


def join(address: str) -> None:
    """Called once, by every process that has the variable, the reloaders' and the workers' among them."""
    end_soon()
    flow_logger.addHandler(StepHandler(address))
    open_log()
    request_started.connect(open_log)
    if multiprocessing.parent_process() is None and _has_lifeline():  # workers and broker watch their supervisor
        start_thread("enode-lifeline", _end_with_the_lifeline)


def end_soon() -> None:
    """Let the interpreter not look for garbage at its end, which takes long with a project loaded: somebody who has
    pressed Ctrl-C waits for it."""
    atexit.register(gc.freeze)


def open_log(**_: object) -> None:
    """Done again with every request: making the WSGI application sets up logging anew, and disables loggers that the
    project does not name."""
    flow_logger.setLevel(logging.DEBUG)
    flow_logger.propagate = flow_logger.disabled = False
    if MIDDLEWARE in settings.MIDDLEWARE:  # which tells of requests; of those that fail, Django says more
        logging.getLogger("django.server").setLevel(logging.WARNING)


class StepHandler(logging.Handler):
    """Sends each record as a datagram; a line that nobody takes in time is lost, and nothing else."""

    def __init__(self, address: str) -> None:
        super().__init__()
        self._address = address
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.settimeout(SEND_TIMEOUT)

    def emit(self, record: logging.LogRecord) -> None:
        with contextlib.suppress(OSError):
            self._socket.sendto(encode_step(record), self._address)


def identity_of(descriptor: int) -> str:
    status = os.fstat(descriptor)
    return f"{status.st_dev}:{status.st_ino}"


def _has_lifeline() -> bool:
    """Not so a process that application code starts with another standard input, which may be at its end or say
    something: it has inherited the environment only."""
    with contextlib.suppress(OSError):
        return identity_of(_STANDARD_INPUT) == os.environ.get(LIFELINE)
    return False


def _end_with_the_lifeline() -> None:
    """The standard input is a pipe that `enodedev` holds and never writes to: it ends with that process, however that
    comes about."""
    with contextlib.suppress(OSError):
        while os.read(_STANDARD_INPUT, 1024):
            pass
    time.sleep(float(os.environ.get(PATIENCE, "0")))
    os.kill(os.getpid(), signal.SIGTERM)
