"""The producers of a topic. Pure: times are passed in."""

from __future__ import annotations

from collections.abc import Mapping

from enode_django.equeue.transport import MOST_PRODUCERS, PRODUCER_SECONDS


class KnownProducers:
    """Names of processes, each with the time it was last heard of, the least recent first."""

    def __init__(self) -> None:
        self._heard: dict[str, float] = {}

    def hear(self, name: str, *, now: float) -> None:
        self._heard.pop(name, None)
        self._heard[name] = now
        while len(self._heard) > MOST_PRODUCERS:
            del self._heard[next(iter(self._heard))]

    def seconds(self, *, now: float) -> Mapping[str, float]:
        """Return the seconds since each producer was heard of. Drop those silent for `PRODUCER_SECONDS`."""
        self._heard = {name: heard for name, heard in self._heard.items() if now - heard < PRODUCER_SECONDS}
        return {name: max(0.0, now - heard) for name, heard in sorted(self._heard.items())}
