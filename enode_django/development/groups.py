"""Group the steps of one request, which come from several processes in any order."""

from __future__ import annotations

from collections.abc import Sequence

from enode_django.development.steps import Step

QUIET = 0.3
"""Seconds without another step after which a group is shown."""
LONGEST = 2.0
"""Seconds after its first step at which a group is shown at the latest. Later steps are another group."""


class Groups:
    """Groups of steps by ``flow_id``. All ``now`` are times of one monotonic clock."""

    def __init__(self) -> None:
        self._groups: dict[str, tuple[float, float, list[Step]]] = {}

    def add(self, step: Step, now: float) -> None:
        first, _, steps = self._groups.get(step.flow_id, (now, now, []))
        steps.append(step)
        self._groups[step.flow_id] = (first, now, steps)

    def take_due(self, now: float) -> list[Sequence[Step]]:
        """Remove and return the groups that are to be shown, in the order in which they began. Steps are ordered by
        time."""
        due = [id for id, (first, last, _) in self._groups.items() if now - last >= QUIET or now - first >= LONGEST]
        return [sorted(self._groups.pop(id)[2], key=lambda step: step.time) for id in due]

    def take_all(self) -> list[Sequence[Step]]:
        return self.take_due(float("inf"))
