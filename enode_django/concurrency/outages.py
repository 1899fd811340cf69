"""Log an outage once when it begins, once a minute while it lasts, and once when it ends, whoever meets it.

Each caller that tries something again has its `Attempts`, and says how they come out. Outages are told apart by what is
away: a database, the queue, or whatever else raises errors of one class.
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
"""Seconds between two lines about an outage that lasts."""
QUIET = 10.0
"""Seconds after its first line in which an outage that ends and begins again has no line."""
REASONS = 3
"""Different errors that one line names."""

_DATABASE, _QUEUE = "a database", "the queue"
_AWAY = ((StoreUnavailable, _DATABASE), (SubscriberUnavailable, _DATABASE), (TransportUnavailable, _QUEUE))


def what_is_away(error: EnodeError) -> str:
    """Return what the error, or the one that it was raised from, finds away; else the name of its class.

    >>> what_is_away(StoreUnavailable()), what_is_away(TransportUnavailable()), what_is_away(EnodeError())
    ('a database', 'the queue', 'EnodeError')
    """
    cause: BaseException = error
    while isinstance(cause.__cause__, EnodeError):
        cause = cause.__cause__
    return next((what for kind, what in _AWAY if isinstance(cause, kind)), type(cause).__name__)


class Outages:
    """Collects the failed tries of all threads of a process, and logs each outage. Safe for threads; nothing blocks."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self.forget()

    def forget(self) -> None:
        """Begin anew: in a child after a fork, the callers and the lock are its parent's."""
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
"""Those of this process."""
os.register_at_fork(after_in_child=outages.forget)


class Attempts:
    """One caller's tries of what may be away. As a context manager: the block has worked unless it raises. Who is
    deleted has given up.

    ``is_rare``: the next try comes so late that the end of an outage must not wait for it.
    """

    def __init__(self, *, is_rare: bool = False, outages: Outages = outages) -> None:
        self.is_rare = is_rare
        self._outages = outages
        self._away: set[str] = set()

    def failed(self, error: EnodeError) -> None:
        """Count a try that has failed with this error, and is going to be repeated."""
        self.failed_at(what_is_away(error), str(error), logging.ERROR if error.needs_help else logging.WARNING)

    def failed_at(self, what: str, reason: str, level: int = logging.WARNING) -> None:
        """Count a failed try; ``what`` is away."""
        self._away.add(what)
        self._outages.failed(self, what, reason, level)

    def worked(self) -> None:
        """Count a try that has worked: cheap, if none has failed before."""
        if self._away:
            away, self._away = self._away, set()
            for what in away:
                self._outages.worked(self, what)

    def given_up(self) -> None:
        """Forget tries that have failed, and are not repeated: whether the outage has ended is not known."""
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
    """One outage, and the quiet time after its first line. ``callers`` are those who have failed last."""

    def __init__(self) -> None:
        self.callers: WeakSet[Attempts] = WeakSet()
        self._began: float | None = None
        self._last = float("-inf")
        self._next_line = self._quiet_until = float("-inf")
        self._is_told = False
        self._failures = self._most = 0
        self._reasons: Counter[str] = Counter()

    def failed(self, caller: Attempts, reason: str, now: float) -> str:
        """Return the line to be logged, or an empty text."""
        is_stale = not self.callers and now - self._last > EVERY  # nobody was left to find out that it had ended
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
        """Return how many tries have failed, if that was the end of an outage that was logged; else an empty text."""
        self.callers.discard(caller)
        if self._began is None or not all(one.is_rare for one in self.callers):
            return ""
        tries = self._tries(now) if self._is_told else ""
        self.callers.clear()
        self._reasons.clear()
        self._began, self._is_told = None, False
        return tries
