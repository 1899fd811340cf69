"""The keys of an event: of the rows, or of the process, that it concerns."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from itertools import islice
from typing import Any

from enode_django.exceptions import DefinitionError, shown

EventKey = Callable[[Any], object]
"""Returns the key of the row that an event changes, or None if it changes none."""
EventKeys = Callable[[Any], Iterable[object]]
"""Returns the keys of all rows that an event changes."""

MOST_KEYS = 1_000
"""The most keys of one event: their rows are locked at once."""


class Keys(list[object]):
    """The keys of one event, returned by `SeveralKeys`. The class tells them from a list that is one key."""


@dataclasses.dataclass(frozen=True)
class SeveralKeys:
    """The `EventKey` of events that change several rows. Raises `ValueError` for what are no keys, or too many."""

    function: EventKeys

    def __call__(self, event: Any) -> Keys:
        given: Any = self.function(event)
        if isinstance(given, str | bytes) or not isinstance(given, Iterable):
            raise ValueError(f"keys returns {shown(given)} for {shown(event)}; let it return a list of keys")
        keys = Keys(islice(given, MOST_KEYS + 1))
        if len(keys) > MOST_KEYS:
            raise ValueError(
                f"keys returns more than {MOST_KEYS:,} keys for {shown(event)}, whose rows would be locked at once; "
                "let a command apply several events with fewer keys each"
            )
        if None in keys:
            raise ValueError(
                f"keys returns {shown(keys)} for {shown(event)}; leave None out, which is the key of no row"
            )
        return keys


def event_key(place: str, key: EventKey | None, keys: EventKeys | None) -> EventKey | None:
    """Return the function that was given to ``place``, as ``key`` or ``keys``. Raises `DefinitionError` for both."""
    if keys is None:
        return key
    if key is not None:
        raise DefinitionError(
            f"{place} got key={key!r} and keys={keys!r}; give it key if an event changes one row, keys if it changes "
            "several"
        )
    if not callable(keys):
        raise DefinitionError(f"{place} got keys={keys!r}; give it a function of the event that returns several keys")
    return SeveralKeys(keys)
