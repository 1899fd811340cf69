"""The values that describe the state of a project, without the code that asks for them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, NamedTuple

Row = Any
"""A named tuple. All rows of a part have the same class."""


class Health(IntEnum):
    """A higher value is worse. The values are the exit statuses of ``manage.py enode status``."""

    OK = 0
    DEGRADED = 1
    BAD = 2

    @property
    def word(self) -> str:
        return self.name.lower()


class Problem(NamedTuple):
    """``reason`` says what is wrong and, if possible, what to do."""

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
    """One part of the status: its rows and problems. ``seconds``: how long its slowest question took."""

    name: str
    rows: Sequence[Row]
    problems: Sequence[Problem]
    seconds: float

    @property
    def health(self) -> Health:
        return worst(problem.health for problem in self.problems)


@dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    """The state of a project. Its health is that of its worst part."""

    parts: Sequence[Part]

    @property
    def health(self) -> Health:
        return worst(part.health for part in self.parts)

    def as_map(self) -> dict[str, Any]:
        """Return a map for `DjangoJSONEncoder`: rows hold datetimes."""
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
        """Return a part by name. Raises KeyError for a part that was not gathered."""
        for part in self.parts:
            if part.name == name:
                return part
        raise KeyError(name)


def worst(healths: Iterable[Health]) -> Health:
    return max(healths, default=Health.OK)
