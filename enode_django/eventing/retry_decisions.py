"""Decide when an event whose handler has failed is tried again, and when its aggregate is parked.

After an error that passes, such as an unavailable mail server, the event is tried again without end. After any other
error it is tried up to the subscriber's number of attempts; then the aggregate is parked, and retried with growing
pauses.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from enode_django.eventing.retry_policy import DAY, LONGEST_DELAY, Retries
from enode_django.eventstore.sqlstates import is_conflict_of_rows, is_transient
from enode_django.exceptions import EventKilledWorker, Retry, UnknownMessageType

Errors = tuple[type[BaseException], ...]

LONGEST_ASIDE = 60.0
"""Seconds. An aggregate that waits longer than this after a `Retry`, or this long after an error that passes, is parked
meanwhile: the queue keeps the messages of aggregates that are set aside. It is also the longest pause after an error
that passes, and the first pause of an aggregate that is parked because of another error, unless ``most_parked`` is
shorter."""
CONFLICT_PATIENCE = 60.0  # two workers may handle two aggregates that swap a value, and one worker may be behind
SHORTEST_PAUSE = 0.05
"""Seconds before an error that passes, or a parked aggregate, is tried again: a handler that asks for no pause must not
be called without end."""


class NextTry(NamedTuple):
    """The next try of an event. ``seconds`` is the time until then (None: none comes by itself); ``is_parked`` says
    that the aggregate is parked until then."""

    seconds: float | None
    is_parked: bool


class RetryPolicy(NamedTuple):
    """The rule for retries. After ``attempts`` failures at the same event an aggregate is parked. ``delay`` is the
    seconds between the first two, and doubles with each further one, up to ``longest``. With ``attempts`` 0 the error
    is raised instead.

    An event of a type that this process does not know is tried again after each of ``unknown_delays``: a rolling deploy
    may bring a process that knows it. After an error of ``passing`` the event is tried without end. A row that violates
    a unique constraint is tried again for ``conflict_patience`` seconds at least: another aggregate may release the
    value. ``most_parked`` is the longest pause of a parked aggregate. With ``parks_at_once`` nothing waits in memory.
    """

    attempts: int
    delay: float
    unknown_delays: tuple[float, ...] = ()
    longest: float = LONGEST_DELAY
    passing: Errors = ()
    most_parked: float | None = DAY
    conflict_patience: float = 0.0
    parks_at_once: bool = False

    @classmethod
    def of(
        cls, retries: Retries | None, attempts: int, delay: float, *, unknown_delays: Iterable[float], passing: Errors
    ) -> RetryPolicy:
        """Return the policy of a subscriber; ``attempts``, ``delay`` and ``passing`` are those of the settings."""
        own = retries or Retries()
        return cls(
            attempts if own.attempts is None else own.attempts,
            delay if own.first is None else own.first,
            tuple(unknown_delays),
            own.most,
            (*passing, *own.passing),
            own.most_parked,
        )

    def pauses(self, error: BaseException) -> Sequence[float]:
        """Return the seconds before each next attempt, until the aggregate is parked.

        >>> RetryPolicy(4, 2.0, (60.0, 120.0)).pauses(ValueError())
        [2.0, 4.0, 5.0]
        >>> RetryPolicy(4, 2.0, (60.0, 120.0)).pauses(UnknownMessageType())
        (60.0, 120.0)
        """
        if isinstance(error, EventKilledWorker):
            return ()
        if isinstance(error, UnknownMessageType) and self.unknown_delays:
            return self.unknown_delays
        return [self._doubled(failures, self.longest) for failures in range(self.attempts - 1)]

    def passes(self, error: BaseException) -> bool:
        """Return True for an error after which the event is tried without end.

        >>> policy = RetryPolicy(4, 2.0, passing=(ConnectionError,))
        >>> [policy.passes(error) for error in (ConnectionRefusedError(), Retry(), ValueError())]
        [True, True, False]
        """
        return isinstance(error, (Retry, *self.passing)) or is_transient(error)

    def tries(self, error: BaseException, failures: int) -> str:
        """Return the number of failures so far, with the limit of it.

        >>> policy = RetryPolicy(5, 1.0, passing=(ConnectionError,))
        >>> policy.tries(ValueError(), 2), policy.tries(ConnectionError(), 2)
        ('2 of 5', '2, tried without end')
        """
        if self.passes(error):
            return f"{failures}, tried without end"
        if self.conflict_patience and is_conflict_of_rows(error):
            return f"{failures}, tried for {self.conflict_patience:g} s"
        return f"{failures} of {len(self.pauses(error)) + 1}"

    def waits_for_others(self, error: BaseException, failures: int) -> bool:
        """Return True if the event is tried again as soon as other aggregates have moved on."""
        is_conflict = self.conflict_patience > 0 and is_conflict_of_rows(error)
        return is_conflict and failures <= len(self.pauses(error))

    def next_try(self, error: BaseException, failures: int, failing_for: float = 0.0) -> NextTry:
        """Return the next try of an event that has failed ``failures`` times in ``failing_for`` seconds, now with
        ``error``.

        >>> policy = RetryPolicy(2, 1.0, passing=(ConnectionError,))
        >>> policy.next_try(ValueError(), 1), policy.next_try(ValueError(), 2)
        (NextTry(seconds=1.0, is_parked=False), NextTry(seconds=60.0, is_parked=True))
        >>> [policy.next_try(ConnectionError(), failures).seconds for failures in (1, 2, 6, 7, 100)]
        [1.0, 2.0, 32.0, 60.0, 60.0]
        >>> policy.next_try(Retry(after=7_200.0), 1)
        NextTry(seconds=7200.0, is_parked=True)
        """
        if self.parks_at_once:
            return NextTry(self.parked_pause(error, 0.0), True)
        if isinstance(error, Retry) and error.after is not None:
            return NextTry(max(SHORTEST_PAUSE, error.after), error.after > LONGEST_ASIDE)
        if self.passes(error):
            pause = max(SHORTEST_PAUSE, self._doubled(failures - 1, LONGEST_ASIDE))
            return NextTry(pause, pause >= LONGEST_ASIDE)
        pauses = self.pauses(error)
        if failures <= len(pauses):
            return NextTry(pauses[failures - 1], False)
        if failing_for < self.conflict_patience and is_conflict_of_rows(error):
            return NextTry(LONGEST_DELAY, False)
        return NextTry(self.parked_pause(error, 0.0), True)

    def parked_pause(self, error: BaseException, failing_for: float) -> float | None:
        """Return the seconds to the next try of a parked aggregate that has been failing at the same event for
        ``failing_for`` seconds: as many again, so that the pauses double. Return None if no try comes by itself.

        >>> policy = RetryPolicy(2, 1.0)
        >>> [policy.parked_pause(ValueError(), seconds) for seconds in (1.5, 61.5, 7_200.0, 1_000_000.0)]
        [60.0, 61.5, 7200.0, 86400.0]
        """
        if isinstance(error, EventKilledWorker):
            return None  # another try may cost another worker
        if isinstance(error, Retry) and error.after is not None:
            return max(SHORTEST_PAUSE, error.after)
        if self.passes(error):
            return LONGEST_ASIDE
        if self.most_parked is None:
            return None
        return max(SHORTEST_PAUSE, min(self.most_parked, max(LONGEST_ASIDE, failing_for)))

    def _doubled(self, times: int, longest: float) -> float:
        return min(self.delay * 2.0 ** min(times, 60), longest)


RAISE = RetryPolicy(0, 0.0)
