"""Duties of a supervisor beside supervising, each in a thread of its own: an unresponsive database or queue must never
keep it from its workers."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Generic, TypeVar

from django.db import connections

from enode_django.concurrency.threads import start_thread
from enode_django.databases import heal_connections

logger = logging.getLogger("enode_django.supervisor")

Answer = TypeVar("Answer")

STALE_AFTER = 4
"""The number of intervals after which an answer no longer counts: what does not answer must not look well."""


class Watch(Generic[Answer]):
    """Calls ``ask`` every ``interval`` seconds in a daemon thread, and goes on if it raises. The first of several
    failures is logged, and so is the first success after them.

    ``last`` is called in that thread after `stop`, when ``ask`` has returned. The answer may be read by any thread.
    """

    def __init__(
        self,
        name: str,
        ask: Callable[[], Answer],
        interval: float,
        *,
        last: Callable[[], object] | None = None,
    ) -> None:
        self.name = name
        self.answered_at: float | None = None
        """The time of the last answer, on the clock of `time.monotonic`; None before the first."""
        self._answer: Answer | None = None
        self._ask = ask
        self._last = last
        self._interval = interval
        self._fails = False
        self._stopping = threading.Event()
        self._thread = start_thread(f"enode-{name}", self._run)

    @property
    def answer(self) -> Answer | None:
        """The newest answer; None before the first one, after a failure, and `STALE_AFTER` intervals after it."""
        return self._answer if self.has_answered(STALE_AFTER * self._interval) else None

    def stop(self, timeout: float) -> bool:
        """Stop, and wait up to ``timeout`` seconds for the thread. Return True if it has ended."""
        self._stopping.set()
        self._thread.join(timeout)
        return not self._thread.is_alive()

    def has_answered(self, within: float) -> bool:
        """Return True if there was an answer in the last ``within`` seconds."""
        return self.answered_at is not None and time.monotonic() - self.answered_at <= within

    def _run(self) -> None:
        try:
            while not self._stopping.is_set():
                self._once(self._keep_answer)
                self._stopping.wait(self._interval)
            if self._last is not None:
                self._once(self._last)
        finally:
            connections.close_all()

    def _keep_answer(self) -> None:
        self._answer = self._ask()

    def _once(self, call: Callable[[], object]) -> None:
        try:
            heal_connections()
            call()
        except Exception as error:  # the thread goes on
            self._answer = None
            if not self._fails:
                logger.warning("%s: %s; trying again every %g s", self.name, error, self._interval)
            self._fails = True
            return
        if self._fails:
            logger.info("%s: works again", self.name)
        self._fails = False
        self.answered_at = time.monotonic()
