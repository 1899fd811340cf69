from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

from chaos.names import Setup
from chaos.plan import Choice, PlannedFault
from chaos.world import World


class Skipped(Exception):
    """The fault cannot be injected at this moment. The message gives the reason."""


class Fault(ABC):
    """A kind of fault. One object makes one fault: `begin`, and `end` after the planned time.

    ``shortest`` and ``longest`` are in seconds. Each round has a fault of a ``halfway`` kind in its middle; if it
    cannot be made then, it is retried until it can.
    """

    name: ClassVar[str]
    shortest: ClassVar[float] = 0.0
    longest: ClassVar[float] = 0.0
    weight: ClassVar[float] = 1.0
    halfway: ClassVar[bool] = False

    def __init__(self, world: World, planned: PlannedFault) -> None:
        self.world = world
        self.planned = planned

    @classmethod
    @abstractmethod
    def targets(cls, setup: Setup) -> list[str]:
        """Return the possible targets in such a world; empty if the fault cannot happen there."""

    @classmethod
    def choice(cls, setup: Setup) -> Choice:
        return Choice(cls.targets(setup), cls.shortest, cls.longest, cls.weight, cls.halfway)

    @abstractmethod
    def begin(self) -> str:
        """Make the fault, and return a short description of it. Raises `Skipped`."""

    def end(self) -> None:
        """Undo the fault. Called once after `begin`, also if the round is interrupted."""
        return None
