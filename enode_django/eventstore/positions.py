"""Positions: the order in which stored rows can be read without missing any. Pure functions.

A position is a row's generation, transaction id and sequence, compared in this order. The sequence alone is not a
reading order: it is assigned when a row is written, but rows become visible when their transactions commit.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from enode_django.exceptions import shown

__all__ = ["BEGINNING", "Position"]

_TEXT = re.compile(r"([0-9]{1,19})\.([0-9]{1,19})\.([0-9]{1,19})")
_HIGHEST = 2**63 - 1


class Position(NamedTuple):
    """A place in the order of rows. ``sequence`` 0 lies before the first row of a transaction.

    A generation ends when the database is restored, because transaction ids may then repeat.

    >>> str(Position(0, 5321, 88412))
    '0.5321.88412'
    >>> Position.parse("0.5321.88412") < Position(0, 5322, 9)
    True
    """

    generation: int
    transaction_id: int
    sequence: int = 0

    def __str__(self) -> str:
        return f"{self.generation}.{self.transaction_id}.{self.sequence}"

    @classmethod
    def parse(cls, text: str) -> Position:
        """Return the position of a text made by `str`. Raises `ValueError` for any other text."""
        match = _TEXT.fullmatch(text)
        numbers = [int(number) for number in match.groups()] if match else []
        if not numbers or max(numbers) > _HIGHEST:
            raise ValueError(
                f"{shown(text)} is not a position; give one as str(position) made it, such as '0.5321.88412', "
                f"or {str(BEGINNING)!r} for the beginning"
            )
        return cls(*numbers)

    @property
    def transaction(self) -> Position:
        """The position before the first row of the same transaction."""
        return self._replace(sequence=0)


def check_limit(limit: int) -> None:
    if limit < 1:
        raise ValueError(f"a page of {limit!r} rows would lead nowhere; ask for at least 1")


BEGINNING = Position(0, 0)
"""Below every row."""
END = Position(_HIGHEST, _HIGHEST, _HIGHEST)
"""Above every row, settled or not."""


class Begun(NamedTuple):
    """A generation. The sequences of its rows are above ``after_sequence``."""

    generation: int
    after_sequence: int


FIRST = Begun(0, 0)
"""The first generation, which exists without a record."""


class Stretch(NamedTuple):
    """The transactions of one generation from ``begin`` to below ``end``, whose rows have
    ``after_sequence < sequence <= until_sequence``."""

    generation: int
    begin: Position
    end: int
    after_sequence: int
    until_sequence: int


def stretches(generations: list[Begun], after: Position, before: Position) -> list[Stretch]:
    """Return the stretches between two positions, in order. ``generations`` is all generations, the oldest first.

    >>> [(s.generation, s.begin.transaction_id, s.end) for s in stretches([FIRST, Begun(7, 90)], Position(0, 5), Position(7, 3))]
    [(0, 5, 9223372036854775807), (7, 0, 3)]
    """  # noqa: E501
    found = []
    for begun, following in zip(generations, [*generations[1:], Begun(_HIGHEST, _HIGHEST)], strict=True):
        begin = max(after, Position(begun.generation, 0))
        end = before.transaction_id if before.generation == begun.generation else _HIGHEST
        if begin.generation == begun.generation <= before.generation and begin.transaction_id < end:
            sequences = (begun.after_sequence, following.after_sequence)
            found.append(Stretch(begun.generation, begin, end, *sequences))
    return found


def sequences_before(generations: list[Begun], position: Position) -> tuple[int, int]:
    """Return two sequences for a position: all rows up to the first lie below it, and rows up to the second do if their
    transaction is below its transaction. ``generations`` is all generations, the oldest first; that of the position may
    be missing.

    >>> generations = [FIRST, Begun(7, 90), Begun(9, 120)]
    >>> sequences_before(generations, Position(7, 5)), sequences_before(generations, Position(8, 5))
    ((90, 120), (120, 120))
    """
    later = [begun.after_sequence for begun in generations if begun.generation > position.generation]
    until = later[0] if later else _HIGHEST
    own = [begun.after_sequence for begun in generations if begun.generation == position.generation]
    return (own[0] if own else until), until
