"""Frontiers: what a shard showed at a moment, to the transaction.

A position alone says less: it lies below the oldest transaction that is open anywhere on the server, so that one which
is open for an hour hides an hour of other rows. A frontier names the open transactions one by one, and what it did not
show can be read without what it did.
"""

from __future__ import annotations

from typing import NamedTuple

from enode_django.eventstore import generations, statements
from enode_django.eventstore.positions import END, Begun, Position, Stretch, stretches
from enode_django.eventstore.rows import connected, execute


class Frontier(NamedTuple):
    """It shows all rows of the generations before ``generation``, and in this one the rows of transactions with ids
    below ``end``, but for those of ``late``, which were open."""

    generation: int
    end: int
    late: tuple[int, ...] = ()

    @classmethod
    def at(cls, position: Position) -> Frontier:
        """Return the frontier that shows what lies below the position's transaction."""
        return cls(position.generation, position.transaction_id)

    @property
    def position(self) -> Position:
        """A position below which it shows everything."""
        return Position(self.generation, min([self.end, *self.late]))

    def not_shown(self, known: list[Begun], until: Frontier | None = None) -> list[Stretch]:
        """Return the stretches of new transactions that ``until`` (None: the present) shows and this one does not.
        ``known`` are all generations of the shard, the oldest first.

        >>> [(s.begin.transaction_id, s.end) for s in Frontier(0, 50, (30, 40)).not_shown([Begun(0, 0)], Frontier(0, 70, (40, 60)))]
        [(50, 70)]
        """  # noqa: E501
        end = END if until is None else Position(until.generation, until.end)
        return stretches(known, Position(self.generation, self.end), end)

    def late_stretches(self, known: list[Begun], until: Frontier | None = None) -> list[Stretch]:
        """Return a stretch for each transaction that was open, but for those that still were for ``until`` (None: they
        may have ended by now). ``known`` as above.

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
    """Return the frontier of a shard now. Rows that it does not show may be visible soon after. Raises
    `StoreUnavailable`."""
    with connected(alias) as connection:
        generation = generations.state(connection).position.generation
        ((end, late),) = execute(connection, statements.SNAPSHOT, ())
        return Frontier(generation, end, tuple(late))
