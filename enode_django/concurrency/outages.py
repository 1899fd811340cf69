"""Log an outage when it begins, once a minute while it lasts, and when it ends, however many callers see it.

Each retrying caller has its `Attempts`, and reports their outcomes. An outage is identified by what is unavailable: a
database, the queue, or anything else that raises errors of one class.
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


def what_is_away(error: EnodeError) -> str:
    """Return what is unavailable according to the error, or the error that caused it; otherwise its class name.

    >>> what_is_away(StoreUnavailable()), what_is_away(TransportUnavailable()), what_is_away(EnodeError())
    ('a database', 'the queue', 'EnodeError')
    """
    cause: BaseException = error
    while isinstance(cause.__cause__, EnodeError):
        cause = cause.__cause__
    return next((what for kind, what in _AWAY if isinstance(cause, kind)), type(cause).__name__)


class Outages:
    """Collects the failed attempts of all threads of a process, and logs each outage. Thread-safe; nothing blocks."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self.forget()

    def forget(self) -> None:
        """Reset: in a forked child, the callers and the lock belong to its parent."""
        self._lock = threading.Lock()
        self._outages: dict[str, _Outage] = {}

    def failed(self, caller: Attempts, what: str, reason: str, level: int) -> None:
        with self._lock:
            outage = self._outages.setdefault(what, _Outage())
            line = outage.failed(caller, reason, self._clock())
        if line:
            logger.log(level, "%s", line)

    def worked(self, caller: Attempts, what: str) -> None:
        with self._lock:
            outage = self._outages.get(what)
            tries = outage.worked(caller, self._clock()) if outage is not None else ""
        if tries:
            logger.warning("%s answers again, after %s", what, tries)

    def given_up(self, caller: Attempts, what: str) -> None:
        with self._lock:
            if what in self._outages:
                self._outages[what].callers.discard(caller)


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
        self._away: set[str] = set()

    def failed(self, error: EnodeError) -> None:
        """Count an attempt that failed with this error and will be repeated."""
        self.failed_at(what_is_away(error), str(error), logging.ERROR if error.needs_help else logging.WARNING)

    def failed_at(self, what: str, reason: str, level: int = logging.WARNING) -> None:
        """Count an attempt that failed because ``what`` is unavailable, and will be repeated."""
        self._away.add(what)
        self._outages.failed(self, what, reason, level)

    def worked(self) -> None:
        """Count a successful attempt. Cheap if none has failed before."""
        if self._away:
            away, self._away = self._away, set()
            for what in away:
                self._outages.worked(self, what)

    def given_up(self) -> None:
        """Forget failed attempts that will not be repeated: it is unknown whether the outage has ended."""
        away, self._away = self._away, set()
        for what in away:
            self._outages.given_up(self, what)

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
