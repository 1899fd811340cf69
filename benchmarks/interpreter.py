"""The speed of the interpreter alone. The framework runs on it and PostgreSQL does not, so ratios to raw COPY depend on
it."""

from __future__ import annotations

import time

TURNS = 200_000


class _Point:
    __slots__ = ("name", "x")

    def __init__(self, x: int, name: str) -> None:
        self.x, self.name = x, name

    def moved(self, by: int) -> int:
        return self.x + by


def loop_seconds() -> float:
    """Return the processor seconds of a fixed loop over objects, calls, texts and a dictionary, the best of five."""
    return min(_loop() for _ in range(5))


def _loop() -> float:
    began = time.process_time()
    known: dict[int, int] = {}
    for number in range(TURNS):
        point = _Point(number, str(number))
        known[number & 1023] = point.moved(3)
        if point.name.startswith("7"):
            known.pop(3, None)
    return time.process_time() - began
