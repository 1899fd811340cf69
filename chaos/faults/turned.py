"""Clock steps in the processes under test."""

from __future__ import annotations

from collections.abc import Sequence

from chaos.faults.base import Fault
from chaos.names import BROKER, CLIENTS, HOSTS, Setup

LARGEST_STEP = 3600.0


class ClockStep(Fault):
    """The clock of some processes steps by up to an hour, forwards or back, and returns at the end."""

    name = "clock-step"
    shortest, longest = 1.0, 12.0

    @classmethod
    def targets(cls, setup: Setup) -> list[str]:
        return [f"clock {name}" for name in (*HOSTS, CLIENTS, *([BROKER] if setup.transport == BROKER else []))]

    def begin(self) -> str:
        step = LARGEST_STEP * (2 * self.planned.share - 1) ** 3  # small steps are more frequent
        self._set(step)
        return f"stepped by {step:+.1f} s"

    def end(self) -> None:
        self._set(0.0)

    def _set(self, offset: float) -> None:
        self.world.dials[self.planned.target.removeprefix("clock ")].clock_offset = offset


KINDS: Sequence[type[Fault]] = (ClockStep,)
