"""Commands that are handled again after an error that passes, and those that wait behind them.

Failed attempts are counted in the memory of one command mailbox. A restart, or another owner of the queue, begins at
zero.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from math import inf
from typing import NamedTuple

from enode_django.bus.results import CommandResult
from enode_django.commanding.decisions import Decision, DecisionKind, Envelope
from enode_django.equeue.offsets import OffsetWindow
from enode_django.exceptions import EnodeError, Retry, UnknownMessageType

Errors = tuple[type[BaseException], ...]

LONGEST_DELAY = 5.0
"""The longest pause in seconds, unless a `Retry` says more."""
LOOK_AGAIN = 0.5
"""Seconds to the next attempt while the event store is away."""


class HandlerRetries(NamedTuple):
    """Limits the attempts of a command to ``attempts`` if its handler raises errors that pass.

    ``delay`` is the seconds between the first two attempts, and doubles with each further one, unless a `Retry` says
    how many. ``retry_on`` are the errors that pass, beside the package's own retriable ones. If waiting is impossible
    (``waits`` False), the next attempt comes at once.
    """

    attempts: int
    delay: float
    retry_on: Errors = ()
    waits: bool = True

    def is_passing(self, error: BaseException, own: Errors | None) -> bool:
        """Return True if the error passes. ``own`` are the handler's errors, in place of all others but `Retry`.

        >>> retries = HandlerRetries(3, 0.1, (ConnectionError,))
        >>> [retries.is_passing(ConnectionError(), own) for own in (None, (), (OSError,))]
        [True, False, True]
        """
        if own is not None:
            return isinstance(error, (Retry, *own))
        if isinstance(error, EnodeError) and error.retriable:
            return not isinstance(error, UnknownMessageType)  # this process will not know it at the next attempt either
        return isinstance(error, self.retry_on)

    def delay_after(self, failures: int, error: BaseException) -> float:
        """Return the seconds from the latest of ``failures`` failed attempts to the next one.

        >>> retries = HandlerRetries(3, 0.1)
        >>> [retries.delay_after(failures, ConnectionError()) for failures in (1, 2, 3, 1_000)]
        [0.1, 0.2, 0.4, 5.0]
        >>> retries.delay_after(1, Retry(after=30.0))
        30.0
        """
        if not self.waits:
            return 0.0
        if isinstance(error, Retry) and error.after is not None:
            return error.after
        return min(self.delay * 2.0 ** min(failures - 1, 60), LONGEST_DELAY)


NO_RETRIES = HandlerRetries(1, 0.0)


class Postponed(Decision):
    """Stands for a command that is not decided yet; the event mailbox skips it. ``due`` is when it is handled again.
    ``result`` is its latest failure, or None for a command that only waits behind another."""

    due: float = 0.0


def postponed(envelope: Envelope, epoch: int, due: float, result: CommandResult | None) -> Postponed:
    return Postponed(DecisionKind.POSTPONED, envelope.aggregate_root_id, epoch, envelope, None, None, result, due=due)


@dataclass(slots=True)
class _Waiting:
    """The commands of one aggregate, in order. The first one has failed, and is handled again when it is ``due``."""

    envelopes: deque[Envelope]
    due: float


class PostponedCommands:
    """The postponed commands of one mailbox, called by its thread; any thread may call `count_in`. ``waiting`` has the
    waiting commands by aggregate, ``failures`` the failed attempts of each command that is not decided."""

    def __init__(self, retries: HandlerRetries, clock: Callable[[], float]) -> None:
        self.waiting: dict[str, _Waiting] = {}
        self._retries = retries
        self._clock = clock
        self.failures: dict[Envelope, int] = {}
        self._earliest = inf
        """No command is due before. During an outage thousands may wait, and must not be searched all the time."""

    @property
    def pause(self) -> float | None:
        """Seconds until something may be due; None if nothing waits."""
        return max(0.0, self._earliest - self._clock()) if self.waiting else None

    def count_in(self, window: OffsetWindow) -> int:
        """Return the number of waiting commands of this lease."""
        waiting = list(self.waiting.values())
        return sum(envelope.window is window for one in waiting for envelope in list(one.envelopes))

    # -- attempts -------------------------------------------------------------------------------------------------

    def fail(self, envelope: Envelope, error: BaseException, own: Errors | None, *, counts: bool) -> float | None:
        """Note a failed attempt. Return the time of the next one; None if this was the last.

        ``own`` are the handler's errors that pass. An attempt that does not count is always followed by another one,
        unless waiting is impossible.
        """
        failures = self.failures.pop(envelope, 0)
        retries = self._retries
        if not counts and retries.waits:
            self.failures[envelope] = failures
            return self._clock() + LOOK_AGAIN
        failures += 1
        if failures >= retries.attempts or not retries.is_passing(error, own):
            return None
        self.failures[envelope] = failures
        return self._clock() + retries.delay_after(failures, error)

    def attempts_of(self, envelope: Envelope) -> str:
        return f"{self.failures.get(envelope, 0)} of {self._retries.attempts}"

    def decide(self, envelope: Envelope) -> None:
        """Forget the attempts of a command that is decided."""
        self.failures.pop(envelope, None)

    # -- waiting --------------------------------------------------------------------------------------------------

    def begin(self, envelope: Envelope, due: float) -> None:
        """Let the first command of an aggregate wait."""
        self.waiting[envelope.aggregate_root_id] = _Waiting(deque([envelope]), due)
        self._earliest = min(self._earliest, due)

    def add(self, envelope: Envelope) -> None:
        """Let a command wait behind the others of its aggregate."""
        self.waiting[envelope.aggregate_root_id].envelopes.append(envelope)

    def take_due(self) -> list[Envelope]:
        """Remove and return the commands to be handled now, in the order of each aggregate."""
        if not self.waiting or (now := self._clock()) < self._earliest:
            return []
        due = [id for id, one in self.waiting.items() if one.due <= now]
        taken = [envelope for id in due for envelope in self._still_ours(self.waiting.pop(id).envelopes)]
        self._earliest = min((one.due for one in self.waiting.values()), default=inf)
        return taken

    def suspend(self, aggregate_root_id: str) -> _Waiting | None:
        """Remove the waiting commands of an aggregate while earlier ones are handled again. `resume` puts them back."""
        return self.waiting.pop(aggregate_root_id, None)

    def resume(self, aggregate_root_id: str, waiting: _Waiting | None) -> None:
        if waiting is None:
            return
        earlier = self.waiting.setdefault(aggregate_root_id, waiting)
        if earlier is not waiting:
            earlier.envelopes.extend(waiting.envelopes)

    def drop_lost(self) -> None:
        """Forget commands that were pulled under leases that are over. They are delivered again, here or elsewhere."""
        for id, waiting in list(self.waiting.items()):
            ours = self._still_ours(waiting.envelopes)
            if len(ours) < len(waiting.envelopes):
                del self.waiting[id]
                if ours:
                    self.waiting[id] = _Waiting(deque(ours), waiting.due)

    def _still_ours(self, envelopes: Iterable[Envelope]) -> list[Envelope]:
        ours = []
        for envelope in envelopes:
            if envelope.is_lost:
                self.decide(envelope)
            else:
                ours.append(envelope)
        return ours
