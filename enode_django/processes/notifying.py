"""Tell systemd that a service is ready, alive, or stopping. See sd_notify(3)."""

from __future__ import annotations

import logging
import os
import socket
import time
from collections.abc import Callable, MutableMapping

logger = logging.getLogger("enode_django.supervisor")

STATUS_INTERVAL = 5.0


class Notifier:
    """Does nothing without ``NOTIFY_SOCKET`` in the environment. Removes systemd's variables, so that children do not
    speak for this process. One thread calls all methods, any number of times. They do not block, and do not raise."""

    def __init__(
        self,
        environment: MutableMapping[str, str] = os.environ,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        address = environment.pop("NOTIFY_SOCKET", "")
        self._clock = clock
        self._address = f"\0{address[1:]}" if address.startswith("@") else address
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) if address else None
        self._watchdog = _watchdog_interval(environment)
        self._next_beat = self._next_status = clock()
        self._status = ""
        self._is_ready = self._is_stopping = False

    def ready(self) -> None:
        if not self._is_ready:
            self._is_ready = self._send("READY=1")

    def alive(self, status: str = "") -> None:
        """Call this in the watched loop. If the calls stop, systemd restarts the service."""
        now = self._clock()
        if self._watchdog is not None and now >= self._next_beat:
            self._next_beat = now + self._watchdog
            self._send("WATCHDOG=1")
        if status != self._status and now >= self._next_status:
            self._status, self._next_status = status, now + STATUS_INTERVAL
            self._send(f"STATUS={status}")

    def stopping(self) -> None:
        if not self._is_stopping:
            self._is_stopping = self._send("STOPPING=1")

    def _send(self, text: str) -> bool:
        """Send a text. Return False if that failed, so that it has to be sent again."""
        if self._socket is None:
            return True
        try:
            self._socket.sendto(text.encode(), self._address)
        except OSError as error:
            logger.debug("systemd did not take %s: %s", text, error)
            return False
        return True


def forget_systemd() -> None:
    """Remove systemd's variables, so that neither this process nor its children speak for the service."""
    for name in ("NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"):
        os.environ.pop(name, None)


def _watchdog_interval(environment: MutableMapping[str, str]) -> float | None:
    """Return the seconds between two beats: a third of systemd's limit, so that one late beat does no harm. None if
    systemd does not watch this process. Removes the variables.

    >>> _watchdog_interval({"WATCHDOG_USEC": "30000000"}), _watchdog_interval({})
    (10.0, None)
    >>> _watchdog_interval({"WATCHDOG_USEC": "30000000", "WATCHDOG_PID": "1"})
    """
    limit, pid = environment.pop("WATCHDOG_USEC", ""), environment.pop("WATCHDOG_PID", "")
    if not limit.isdigit() or pid not in ("", str(os.getpid())):
        return None
    return int(limit) / 3_000_000
