"""Results of rebuilds, as figures and as text."""

from __future__ import annotations

from typing import Any, NamedTuple

from enode_django.exceptions import ProjectionsDiffer
from enode_django.rebuilding.comparing import EXAMPLES, Comparison
from enode_django.rebuilding.replaying import Replayed


class Accepted(NamedTuple):
    """The differences that do not prevent a swap: all, or only rows that were not compared."""

    differences: bool = False
    uncompared: bool = False

    def check(self, name: str, comparison: Comparison, *, is_last: bool) -> None:
        """Raise `ProjectionsDiffer` unless the comparison permits a swap. Rows that were not compared prevent it only
        if ``is_last``: they will not be compared later."""
        if self.differences:
            return
        if not comparison.is_equal:
            raise ProjectionsDiffer(_differ(name, comparison))
        if is_last and not (self.uncompared or comparison.is_whole):
            raise ProjectionsDiffer(_not_compared(name, comparison))


class Rebuilt(NamedTuple):
    """The result of a rebuild. ``comparison`` is that with the tables that were in use."""

    replayed: Replayed
    comparison: Comparison
    is_swapped: bool
    seconds: float

    def figures(self) -> dict[str, Any]:
        """Return the figures as JSON values."""
        return {
            "streams": self.replayed.streams,
            "aggregates": self.replayed.aggregates,
            "parked": list(self.replayed.parked[:100]),
            "compared": self.comparison.compared,
            "uncompared": len(self.comparison.uncompared),
            "differences": self.comparison.rows,
            "behind": len(self.comparison.behind),
            "examples": describe(self.comparison),
            "swapped": self.is_swapped,
            "seconds": round(self.seconds, 1),
        }


def describe(comparison: Comparison) -> list[str]:
    """Return the differences as lines of text."""
    lines = [example.text("rebuilt", "in use") for example in comparison.examples]
    lines += [f"{lag.text('rebuilt', 'in use')}: see what is parked" for lag in comparison.behind[:EXAMPLES]]
    lines += [
        f"{table}: not compared: events kept coming, and the projection names no aggregate_field"
        for table in comparison.undecided
    ]
    lines += [f"{id}: not compared" for id in comparison.uncompared[:EXAMPLES]]
    return lines


def _differ(name: str, comparison: Comparison) -> str:
    return (
        f"the rebuilt tables of {name} are not like those in use: {comparison.rows} rows differ among "
        f"{comparison.compared} aggregates, and {len(comparison.behind)} aggregates have not come as far\n"
        f"{_lines(comparison)}nothing was swapped; if that is what the new code means, accept the differences"
    )


def _not_compared(name: str, comparison: Comparison) -> str:
    return (
        f"the rebuilt tables of {name} could not all be compared with those in use: {len(comparison.uncompared)} "
        f"aggregates were not, {comparison.compared} were\n{_lines(comparison)}"
        "nothing was swapped; try at a quieter time, or accept what was not compared"
    )


def _lines(comparison: Comparison) -> str:
    return "".join(f"  {line}\n" for line in describe(comparison))
