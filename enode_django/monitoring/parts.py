"""The values that describe the state of a project, without the code that asks for them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, NamedTuple

Row = Any
"""A named tuple; all rows of a part are of one class."""


class Health(IntEnum):
    """The worse, the higher: these are the exit statuses of ``manage.py enode status``, too."""

    OK = 0
    DEGRADED = 1
    BAD = 2

    @property
    def word(self) -> str:
        return self.name.lower()


class Problem(NamedTuple):
    """``reason`` says what is wrong and, where somebody can do something about it, what."""

    health: Health
    reason: str


class Finding(NamedTuple):
    """The answer to one question."""

    rows: Sequence[Row] = ()
    problems: Sequence[Problem] = ()


def degraded(reason: str) -> Problem:
    return Problem(Health.DEGRADED, reason)


def bad(reason: str) -> Problem:
    return Problem(Health.BAD, reason)


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One part of the whole: what there is, and what is wrong with it. ``seconds``: how long it took to find out."""

    name: str
    rows: Sequence[Row]
    problems: Sequence[Problem]
    seconds: float

    @property
    def health(self) -> Health:
        return worst(problem.health for problem in self.problems)


@dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    parts: Sequence[Part]

    @property
    def health(self) -> Health:
        return worst(part.health for part in self.parts)

    def as_map(self) -> dict[str, Any]:
        """Return a map for JSON. Values in rows may be times and whatever drivers tell of themselves."""
        return {
            "health": self.health.word,
            "parts": {
                part.name: {
                    "health": part.health.word,
                    "problems": [{"health": health.word, "reason": reason} for health, reason in part.problems],
                    "rows": [row._asdict() for row in part.rows],
                    "seconds": round(part.seconds, 3),
                }
                for part in self.parts
            },
        }

    def part(self, name: str) -> Part:
        """Raises KeyError for one that was not asked for."""
        for part in self.parts:
            if part.name == name:
                return part
        raise KeyError(name)


def worst(healths: Iterable[Health]) -> Health:
    return max(healths, default=Health.OK)
