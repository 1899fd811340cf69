"""The retries of a subscriber's failed events, declared in its class."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from math import isfinite

from enode_django.exceptions import DefinitionError

LONGEST_DELAY = 5.0
"""The longest pause in seconds between two tries of an aggregate that is not parked, by default."""
DAY = 86_400.0


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Retries:
    """The reaction of a subscriber to the failure of one of its handlers.

    It tries the event ``attempts`` times (None: ``ATTEMPTS`` of ``WORKERS``). The first pause is ``first`` seconds
    (None: its ``RETRY_DELAY``), and each further one twice as long, up to ``most``. Then it parks the aggregate. A
    parked aggregate is tried again by itself, first after a minute and then with growing pauses, up to ``most_parked``
    seconds (None: only on request, or when the code has changed). ``passing`` are errors that pass, besides those of
    ``RETRY_ON``: after them the event is tried without end, with pauses up to a minute.

    Raises `DefinitionError` for values that make no sense.

    For example::

        @event_handler(retry=Retries(attempts=3, passing=[ConnectionError]))
        def send_letter(event: AccountOpened) -> None:
            print(f"Dear {event.owner}")
    """

    attempts: int | None = None
    first: float | None = None
    most: float = LONGEST_DELAY
    passing: Sequence[type[BaseException]] = ()
    most_parked: float | None = DAY

    def __post_init__(self) -> None:
        if self.attempts is not None and (type(self.attempts) is not int or self.attempts < 1):
            raise DefinitionError(f"Retries() got attempts={self.attempts!r}; give it a whole number from 1 on")
        for name in ("first", "most", "most_parked"):
            value = getattr(self, name)
            if not (value is None and name != "most") and not _is_seconds(value):
                raise DefinitionError(f"Retries() got {name}={value!r}; give it a number of seconds from 0 on")
        if not all(isinstance(one, type) and issubclass(one, BaseException) for one in _listed(self.passing)):
            raise DefinitionError(f"Retries() got passing={self.passing!r}; list classes of exceptions")
        object.__setattr__(self, "passing", tuple(self.passing))


def _is_seconds(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and isfinite(value) and value >= 0


def _listed(passing: object) -> Iterable[object]:
    return passing if isinstance(passing, list | tuple) else [None]
