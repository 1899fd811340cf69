"""Log an outage when it begins, once a minute while it lasts, and when it ends, however many callers see it.

Each retrying caller has its `Attempts`, and reports their outcomes. An outage is identified by what is unavailable: a
database, the queue, a subscriber that waits for its migrations, or anything else that raises errors of one class.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import Counter
from collections.abc import Callable
from types import TracebackType
from weakref import WeakSet

from enode_django.exceptions import EnodeError, StoreUnavailable, SubscriberUnavailable, TransportUnavailable

logger = logging.getLogger("enode_django.outages")

EVERY = 60.0
"""Seconds between two lines about a lasting outage."""
QUIET = 10.0
"""Seconds after the first line of an outage during which its repetitions are not logged."""
REASONS = 3
"""The most different errors in one line."""

_DATABASE, _QUEUE = "a database", "the queue"
_AWAY = ((StoreUnavailable, _DATABASE), (SubscriberUnavailable, _DATABASE), (TransportUnavailable, _QUEUE))


def end_of(error: EnodeError) -> str:
    """Return how to say that the outage is over which the error, or the error that caused it, is about.

    >>> end_of(StoreUnavailable()), end_of(TransportUnavailable()), end_of(EnodeError())
    ('a database answers again', 'the queue answers again', 'EnodeError answers again')
    """
    cause: BaseException = error
    while isinstance(cause.__cause__, EnodeError):
        cause = cause.__cause__
    if isinstance(cause, SubscriberUnavailable) and cause.waiting:
        return f"{cause.waiting} goes on"
    return _answers_again(next((what for kind, what in _AWAY if isinstance(cause, kind)), type(cause).__name__))


def _answers_again(what: str) -> str:
    return f"{what} answers again"


class Outages:
    """Collects the failed attempts of all threads of a process, and logs each outage. An outage is identified by the
    text that says that it is over. Thread-safe; nothing blocks."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self.forget()

    def forget(self) -> None:
        """Reset: in a forked child, the callers and the lock belong to its parent."""
        self._lock = threading.Lock()
        self._outages: dict[str, _Outage] = {}

    def failed(self, caller: Attempts, end: str, reason: str, level: int) -> None:
        with self._lock:
            outage = self._outages.setdefault(end, _Outage())
            line = outage.failed(caller, reason, self._clock())
        if line:
            logger.log(level, "%s", line)

    def worked(self, caller: Attempts, end: str) -> None:
        with self._lock:
            outage = self._outages.get(end)
            tries = outage.worked(caller, self._clock()) if outage is not None else ""
        if tries:
            logger.warning("%s, after %s", end, tries)

    def given_up(self, caller: Attempts, end: str) -> None:
        with self._lock:
            if end in self._outages:
                self._outages[end].callers.discard(caller)


outages = Outages()
"""The outages of this process."""
if hasattr(os, "register_at_fork"):  # Windows has no fork
    os.register_at_fork(after_in_child=outages.forget)


class Attempts:
    """One caller's attempts. As a context manager, the block counts as successful unless it raises. A deleted instance
    counts as given up.

    ``is_rare`` attempts are so far apart that the end of an outage does not wait for them.
    """

    def __init__(self, *, is_rare: bool = False, outages: Outages = outages) -> None:
        self.is_rare = is_rare
        self._outages = outages
        self._ends: set[str] = set()

    def failed(self, error: EnodeError) -> None:
        """Count an attempt that failed with this error and will be repeated."""
        self._failed(end_of(error), str(error), logging.ERROR if error.needs_help else logging.WARNING)

    def failed_at(self, what: str, reason: str) -> None:
        """Count an attempt that failed because ``what`` is unavailable, and will be repeated."""
        self._failed(_answers_again(what), reason, logging.WARNING)

    def _failed(self, end: str, reason: str, level: int) -> None:
        self._ends.add(end)
        self._outages.failed(self, end, reason, level)

    def worked(self) -> None:
        """Count a successful attempt. Cheap if none has failed before."""
        if self._ends:
            ends, self._ends = self._ends, set()
            for end in ends:
                self._outages.worked(self, end)

    def given_up(self) -> None:
        """Forget failed attempts that will not be repeated: it is unknown whether the outage has ended."""
        ends, self._ends = self._ends, set()
        for end in ends:
            self._outages.given_up(self, end)

    def __enter__(self) -> Attempts:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.worked() if kind is None else self.given_up()


class _Outage:
    """One outage, and the quiet time after its first line. ``callers`` are those whose last attempt failed."""

    def __init__(self) -> None:
        self.callers: WeakSet[Attempts] = WeakSet()
        self._began: float | None = None
        self._last = float("-inf")
        self._next_line = self._quiet_until = float("-inf")
        self._is_told = False
        self._failures = self._most = 0
        self._reasons: Counter[str] = Counter()

    def failed(self, caller: Attempts, reason: str, now: float) -> str:
        """Return the line to log, or an empty string."""
        is_stale = not self.callers and now - self._last > EVERY  # no caller was left to see its end
        if self._began is None or is_stale:
            self._began, self._failures, self._most, self._is_told = now, 0, 0, False
        self.callers.add(caller)
        self._failures, self._most, self._last = self._failures + 1, max(self._most, len(self.callers)), now
        self._reasons[reason] += 1
        if now < (self._next_line if self._is_told else self._quiet_until):
            return ""
        line = self._lasts(now) if self._is_told else f"{reason}; trying again until it works"
        if not self._is_told:
            self._quiet_until = now + QUIET
        self._is_told, self._next_line = True, now + EVERY
        self._reasons.clear()
        return line

    def _lasts(self, now: float) -> str:
        reasons = "; ".join(reason for reason, _ in self._reasons.most_common(REASONS))
        return f"{reasons}; {self._tries(now)} so far, trying again until it works"

    def _tries(self, now: float) -> str:
        seconds = 0.0 if self._began is None else now - self._began
        return f"{self._failures} failed tries of up to {self._most} callers in {seconds:.1f} s"

    def worked(self, caller: Attempts, now: float) -> str:
        """Return a text about the failed attempts if this ends a logged outage, or an empty string."""
        self.callers.discard(caller)
        if self._began is None or not all(one.is_rare for one in self.callers):
            return ""
        tries = self._tries(now) if self._is_told else ""
        self.callers.clear()
        self._reasons.clear()
        self._began, self._is_told = None, False
        return tries
