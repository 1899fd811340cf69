"""Frontiers: the transactions whose rows a shard showed at a moment.

A position is less exact: it lies below the oldest open transaction of the server, so a transaction that is open for an
hour hides the other rows of that hour. A frontier lists the open transactions, so the rows that it did not show can be
read without the rows that it showed.
"""

from __future__ import annotations

from typing import NamedTuple

from enode_django.eventstore import generations, statements
from enode_django.eventstore.positions import END, Begun, Position, Stretch, stretches
from enode_django.eventstore.rows import connected, execute


class Frontier(NamedTuple):
    """Shows all rows of the generations before ``generation``, and the rows of this generation whose transaction ids
    are below ``end`` and not in ``late``, the open transactions."""

    generation: int
    end: int
    late: tuple[int, ...] = ()

    @classmethod
    def at(cls, position: Position) -> Frontier:
        """Return the frontier that shows all rows below the position's transaction."""
        return cls(position.generation, position.transaction_id)

    @property
    def position(self) -> Position:
        """The highest position below which the frontier shows every row."""
        return Position(self.generation, min([self.end, *self.late]))

    def not_shown(self, known: list[Begun], until: Frontier | None = None) -> list[Stretch]:
        """Return the stretches of transactions from this frontier's end to that of ``until`` (None: the present).
        ``known`` is all generations of the shard, the oldest first.

        >>> [(s.begin.transaction_id, s.end) for s in Frontier(0, 50, (30, 40)).not_shown([Begun(0, 0)], Frontier(0, 70, (40, 60)))]
        [(50, 70)]
        """  # noqa: E501
        end = END if until is None else Position(until.generation, until.end)
        return stretches(known, Position(self.generation, self.end), end)

    def late_stretches(self, known: list[Begun], until: Frontier | None = None) -> list[Stretch]:
        """Return a stretch for each late transaction that is not late in ``until`` as well (None: for each of them).
        ``known`` is all generations of the shard, the oldest first.

        >>> [s.end for s in Frontier(0, 50, (30, 40)).late_stretches([Begun(0, 0)], Frontier(0, 70, (40, 60)))]
        [31]
        """
        still = set(until.late) if until is not None and until.generation == self.generation else set[int]()
        ids = [id for id in self.late if id not in still]
        begins = [Position(self.generation, id) for id in ids]
        return [
            stretch
            for begin in begins
            for stretch in stretches(known, begin, begin._replace(transaction_id=begin.transaction_id + 1))
        ]


def frontier(alias: str) -> Frontier:
    """Return the current frontier of a shard. Blocks. Raises `StoreUnavailable`."""
    with connected(alias) as connection:
        generation = generations.state(connection).position.generation
        ((end, late),) = execute(connection, statements.SNAPSHOT, ())
        return Frontier(generation, end, tuple(late))
