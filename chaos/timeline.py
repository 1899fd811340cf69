"""Execution of the planned faults at their times."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import NamedTuple

from chaos.faults import KINDS, Fault, Skipped
from chaos.plan import PlannedFault
from chaos.world import World

TICK = 0.05
LONGER = 1.25
AGAIN = 1.0
"""Seconds until a skipped ``halfway`` fault is retried."""


class _Step(NamedTuple):
    at: float
    planned: PlannedFault
    ends: bool


def _order(step: _Step) -> tuple[float, bool]:
    return step.at, step.ends


class Timeline:
    """Runs a plan in the calling thread, one step after the other. A slow step delays the next ones by its duration.
    ``made`` counts the faults by kind, ``skipped`` those that could not be made."""

    def __init__(self, world: World, plan: Sequence[PlannedFault], say: Callable[[str], None]) -> None:
        self.made: Counter[str] = Counter()
        self.skipped: Counter[str] = Counter()
        self._world = world
        self._say = say
        steps = [_Step(fault.at, fault, False) for fault in plan] + [_Step(fault.end, fault, True) for fault in plan]
        self._steps = sorted(steps, key=_order)
        self._open: dict[PlannedFault, Fault] = {}

    def run(self, seconds: float, tick: Callable[[], None]) -> None:
        """Run all steps, and return after ``seconds``, or up to a quarter later if steps were slow. Later steps are
        left out. ``tick`` is called regularly."""
        began, held_up = time.monotonic(), 0.0
        while (passed := time.monotonic() - began - held_up) < seconds and passed + held_up < LONGER * seconds:
            if self._steps and self._steps[0].at <= passed:
                took = time.monotonic()
                self._take(self._steps.pop(0))
                held_up += time.monotonic() - took
            else:
                time.sleep(TICK)
            tick()

    def mend(self) -> None:
        """End every open fault. Safe to call twice."""
        self._steps.clear()
        for planned in list(self._open):
            self._open.pop(planned).end()

    def _take(self, step: _Step) -> None:
        if not step.ends:
            self._begin(step)
        elif fault := self._open.pop(step.planned, None):
            fault.end()
            if step.planned.seconds:
                self._say(f"{step.planned.kind} of {step.planned.target} is over")

    def _begin(self, step: _Step) -> None:
        planned = step.planned
        fault = KINDS[planned.kind](self._world, planned)
        try:
            done = fault.begin()
        except Skipped as reason:
            self.skipped[planned.kind] += 1
            self._say(f"{planned.kind} of {planned.target} was left out: {reason}")
            if fault.halfway:
                self._put_off(step)
            return
        self._open[planned] = fault
        self.made[planned.kind] += 1
        self._world.faults.note(fault=planned.kind, target=planned.target, seconds=round(planned.seconds, 3), done=done)
        lasting = f" for {planned.seconds:.1f} s" if planned.seconds else ""
        self._say(f"{planned.kind} of {planned.target}{lasting}: {done}")

    def _put_off(self, step: _Step) -> None:
        """Postpone a fault that could not begin, with its planned duration."""
        late = [step, *(other for other in self._steps if other.planned is step.planned)]
        others = [other for other in self._steps if other.planned is not step.planned]
        self._steps = sorted([*others, *(one._replace(at=one.at + AGAIN) for one in late)], key=_order)
