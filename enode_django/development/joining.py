"""Connect a process to `enodedev` at its start. The process sends its steps there, and ends when `enodedev` has
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
"""The environment variable with the seconds that a process goes on after the end of `enodedev`. Other processes may
need it until they have ended."""
LIFELINE = "ENODE_DEVELOPMENT_LIFELINE"
"""The environment variable with the `identity_of` the pipe that is the standard input of parts."""
MIDDLEWARE = "enode_django.middleware.EnodeMiddleware"
SEND_TIMEOUT = 1.0
_STANDARD_INPUT = 0


def join(address: str) -> None:
    """Connect this process. Called once in every process that has the variable, including reloaders and workers."""
    end_soon()
    flow_logger.addHandler(StepHandler(address))
    open_log()
    request_started.connect(open_log)
    if multiprocessing.parent_process() is None and _has_lifeline():  # workers and broker watch their supervisor
        start_thread("enode-lifeline", _end_with_the_lifeline)


def end_soon() -> None:
    """Skip the garbage collection at the interpreter's end. With a project loaded it takes long after Ctrl-C."""
    atexit.register(gc.freeze)


def open_log(**_: object) -> None:
    """Enable the log of steps. Called with every request, too: making the WSGI application configures logging again,
    which disables loggers that the project does not name."""
    flow_logger.setLevel(logging.DEBUG)
    flow_logger.propagate = flow_logger.disabled = False
    if MIDDLEWARE in settings.MIDDLEWARE:  # it logs requests; of Django's lines keep those about failed ones
        logging.getLogger("django.server").setLevel(logging.WARNING)


class StepHandler(logging.Handler):
    """Sends each record as a datagram. A record that cannot be sent within `SEND_TIMEOUT` seconds is dropped."""

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
    """Return True if the standard input is the pipe of `enodedev`. A process that application code starts may have
    inherited the environment, but not the pipe."""
    with contextlib.suppress(OSError):
        return identity_of(_STANDARD_INPUT) == os.environ.get(LIFELINE)
    return False


def _end_with_the_lifeline() -> None:
    """Wait for the end of the standard input, then end this process. `enodedev` holds the other end of the pipe and
    never writes to it, so it ends with `enodedev` in any case."""
    with contextlib.suppress(OSError):
        while os.read(_STANDARD_INPUT, 1024):
            pass
    time.sleep(float(os.environ.get(PATIENCE, "0")))
    os.kill(os.getpid(), signal.SIGTERM)
