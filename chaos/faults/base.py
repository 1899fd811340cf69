from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

from chaos.names import Setup
from chaos.plan import Choice, PlannedFault
from chaos.world import World


class Skipped(Exception):
    """The fault cannot be made at this moment, as what it needs is away; the message says what."""


class Fault(ABC):
    """A kind of fault. One object makes one fault: `begin`, and `end` after the planned time.

    ``default``: it is switched on unless a run says otherwise. ``shortest`` and ``longest`` are seconds. ``halfway``:
    each round has one in its middle; if it cannot be made then, it is tried again until it can.
    """

    name: ClassVar[str]
    default: ClassVar[bool] = True
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
        """What it may befall in such a world; nothing if it cannot happen there."""

    @classmethod
    def choice(cls, setup: Setup) -> Choice:
        return Choice(cls.targets(setup), cls.shortest, cls.longest, cls.weight, cls.halfway)

    @abstractmethod
    def begin(self) -> str:
        """Make the fault; return what was done, in a few words. Raises `Skipped`."""

    def end(self) -> None:
        """Mend it. Called once after `begin`, also when the round is broken off."""
        return None
