"""The sends that are stored, so that a repeated one is answered and not stored again. Pure."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

SENDS_KEPT = 128
FORGOTTEN_AFTER = 3600.0
PRODUCERS_KEPT = 50_000
"""The most producers that are known: each process has some of its own, and a client can make up any number."""

Firsts = Mapping[int, int]
"""The answer to a send: the offset of its first message in each queue."""


@dataclass(slots=True)
class _Producer:
    seen: float
    sends: OrderedDict[int, Firsts] = field(default_factory=OrderedDict)


class KnownSends:
    """The newest `SENDS_KEPT` sends of each producer to each topic. Times are arguments, in seconds since 1970. Above
    `PRODUCERS_KEPT` the one that has sent nothing for the longest time is forgotten."""

    def __init__(self) -> None:
        self._producers: OrderedDict[tuple[str, bytes], _Producer] = OrderedDict()
        """The one that has sent something last is at the end."""

    def answer(self, topic: str, producer: bytes, sequence: int) -> Firsts | None:
        """Return the answer that this send got; None if the send is not known."""
        known = self._producers.get((topic, producer))
        return known.sends.get(sequence) if known is not None else None

    def add(self, topic: str, producer: bytes, sequence: int, firsts: Firsts, now: float) -> None:
        known = self._producers.get((topic, producer))
        if known is None:
            known = self._producers[topic, producer] = _Producer(now)
            if len(self._producers) > PRODUCERS_KEPT:
                self._producers.popitem(last=False)
        else:
            self._producers.move_to_end((topic, producer))
        known.seen = now
        known.sends[sequence] = firsts
        if len(known.sends) > SENDS_KEPT:
            known.sends.popitem(last=False)

    def forget_topic(self, topic: str) -> None:
        """Drop the sends to a topic that is deleted."""
        for key in [key for key in self._producers if key[0] == topic]:
            del self._producers[key]

    def forget(self, now: float) -> None:
        """Drop producers that have sent nothing for `FORGOTTEN_AFTER` seconds."""
        silent = [key for key, known in self._producers.items() if known.seen < now - FORGOTTEN_AFTER]
        for key in silent:
            del self._producers[key]

    def plain(self) -> list[Any]:
        return [
            [topic, producer, known.seen, list(known.sends.items())]
            for (topic, producer), known in self._producers.items()
        ]

    @classmethod
    def restore(cls, plain: Iterable[Any], *, now: float = math.inf) -> KnownSends:
        """Restore what `plain` returned. Times after ``now``, from a wrong clock, are set to ``now``."""
        sends = cls()
        for topic, producer, seen, answers in plain:
            sends._producers[topic, producer] = _Producer(min(seen, now), OrderedDict(answers))
        return sends
