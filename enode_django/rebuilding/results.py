"""Results of rebuilds, as figures and as text."""

from __future__ import annotations

from typing import Any, NamedTuple

from enode_django.exceptions import ProjectionsDiffer
from enode_django.rebuilding.comparing import EXAMPLES, Comparison
from enode_django.rebuilding.failed import MOST_TOLD, FailedAggregate
from enode_django.rebuilding.replaying import Replayed

MEND = "mend the handlers and run it again"
FAILED = "it failed"
UNKNOWN = "the store has no more of it, or its type is unknown here"
"""Why an aggregate has not come as far as in use."""


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

    @property
    def failed(self) -> list[FailedAggregate]:
        """The aggregates that failed, before the comparison or later. After a swap they are parked."""
        known = {one.aggregate_root_id for one in self.comparison.failed}
        later = dict.fromkeys(id for id in self.replayed.parked if id not in known)
        return [*self.comparison.failed, *map(FailedAggregate, later)]

    def figures(self) -> dict[str, Any]:
        """Return the figures as JSON values."""
        failed = self.failed[:MOST_TOLD]
        return {
            "streams": self.replayed.streams,
            "aggregates": self.replayed.aggregates,
            "parked": [one.aggregate_root_id for one in failed] if self.is_swapped else [],
            "failures": [[part for part in one if part] for one in failed],
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
    failed = {one.aggregate_root_id for one in comparison.failed}
    lines = [example.text("rebuilt", "in use") for example in comparison.examples]
    lines += [
        f"{lag.text('rebuilt', 'in use')}: {FAILED if lag.aggregate_root_id in failed else UNKNOWN}"
        for lag in comparison.behind[:EXAMPLES]
    ]
    lines += [f"{table}: not compared: {_why_undecided(comparison)}" for table in comparison.undecided]
    lines += [f"{id}: not compared" for id in comparison.uncompared[:EXAMPLES]]
    return lines


def _why_undecided(comparison: Comparison) -> str:
    if comparison.behind:
        return f"{_come_as_far(comparison)}, and its rows are only compared all together"
    return (
        "at no moment did it hold the same events as the one in use, and its rows are only compared all together, as "
        "those of every MultiProjection, and of a Projection without aggregate_field; try at a quieter time"
    )


def aggregates(count: int) -> str:
    """Return the count in words.

    >>> aggregates(1), aggregates(2)
    ('1 aggregate', '2 aggregates')
    """
    return "1 aggregate" if count == 1 else f"{count} aggregates"


def _come_as_far(comparison: Comparison) -> str:
    count = len(comparison.behind)
    return f"{aggregates(count)} {'has' if count == 1 else 'have'} not come as far"


def _differ(name: str, comparison: Comparison) -> str:
    failed = f"{aggregates(len(comparison.failed))} failed, so " if comparison.failed else ""
    advice = (
        f"{MEND}, or accept the differences: what failed is then parked"
        if comparison.failed
        else "if new code or a correction means that, accept the differences"
    )
    return (
        f"{failed}the rebuilt tables of {name} are not like those in use: {comparison.rows} rows differ among "
        f"{comparison.compared} aggregates, and {_come_as_far(comparison)}\n"
        f"{_lines(comparison)}nothing was swapped; {advice}"
    )


def _not_compared(name: str, comparison: Comparison) -> str:
    return (
        f"the rebuilt tables of {name} could not all be compared with those in use: {len(comparison.uncompared)} "
        f"aggregates were not, {comparison.compared} were\n{_lines(comparison)}"
        "nothing was swapped; try at a quieter time, or accept what was not compared"
    )


def _lines(comparison: Comparison) -> str:
    failed = [one.text for one in comparison.failed[:EXAMPLES]]
    return "".join(f"  {line}\n" for line in [*failed, *describe(comparison)])
