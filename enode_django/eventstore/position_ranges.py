"""Ranges of positions with a limited number of streams, found and counted by the index of transactions.

A range is whole transactions, or a part of one transaction that has more streams than the limit. Memory use is bounded
by the heads of one range, regardless of the size of the store.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import chain
from typing import Any, NamedTuple

from enode_django.eventstore import generations, statements
from enode_django.eventstore.frontiers import Frontier
from enode_django.eventstore.positions import Begun, Position, Stretch
from enode_django.eventstore.rows import by_index, connected, execute
from enode_django.eventstore.scanning import persistently

FIRST_STEP = 1_024
WIDEST_STEP = 2**60
MOST_STRETCHES = 100
"""The most stretches of one range: each is a condition of a statement."""


class PositionRange(NamedTuple):
    """The streams of a shard in some stretches, except those of aggregates of the types ``without``.

    ``streams`` is their number when the range was made. With ``by_sequence`` the range has one stretch: a part of one
    transaction.
    """

    alias: str
    stretches: tuple[Stretch, ...]
    streams: int = 0
    without: tuple[str, ...] = ()
    by_sequence: bool = False

    @property
    def is_one_transaction(self) -> bool:
        first = self.stretches[0]
        return len(self.stretches) == 1 and first.end - first.begin.transaction_id == 1

    def where(self) -> tuple[str, list[object]]:
        """Return the SQL condition, and its parameters including the types ``without``."""
        if self.by_sequence:
            ((_, begin, _, after, until),) = self.stretches
            return statements.RANGE_BY_SEQUENCE, [begin.transaction_id, after, until, list(self.without)]
        bounds = ((one.begin.transaction_id, one.end, one.after_sequence, one.until_sequence) for one in self.stretches)
        condition = " OR ".join([statements.RANGE] * len(self.stretches))
        return condition, [*chain.from_iterable(bounds), list(self.without)]


def ranges_between(
    alias: str, since: Frontier, until: Frontier, without: Sequence[str], most: int
) -> Iterator[PositionRange]:
    """Yield non-empty ranges of at most ``most`` streams that together have all streams that ``until`` shows and
    ``since`` does not. Queries the database when iterated. Raises as `scanning.persistently` does."""
    return _Cutter(alias, tuple(without), most).ranges(since, until)


def rest_since(alias: str, since: Frontier, without: Sequence[str], most: int) -> Sequence[PositionRange]:
    """Return ranges with all stored streams that ``since`` does not show. If there are more than ``most``, return
    ranges with more than ``most`` of them; the cost is bounded. Raises as `scanning.persistently` does."""
    return _Cutter(alias, tuple(without), most).rest(since)


def divided(whole: PositionRange, parts: int) -> list[str]:
    """Return fewer than ``parts`` aggregate root ids, in order, that divide a range into parts with about equally many
    streams. Raises as `scanning.persistently` does."""
    fractions = [part / parts for part in range(parts)]
    rows = _asked(whole, statements.DIVIDE_RANGES, fractions)
    found: list[str] = (rows[0][0] if rows else None) or []
    return list(dict.fromkeys(found))[1:]


def heads(whole: PositionRange, low: str, high: str | None) -> Mapping[str, tuple[str, int]]:
    """Return type and highest version within a range, by aggregate root id, of the aggregates with low <= id < high
    (None: no end). Raises as `scanning.persistently` does."""
    return {
        id: (type_name, version)
        for id, type_name, version in _asked(whole, statements.HEADS_IN_RANGES, low, high, high)
    }


class _Cutter:
    """Cuts stretches into ranges. ``_step`` is the number of transaction ids of the next window, guessed from the
    previous one."""

    def __init__(self, alias: str, without: tuple[str, ...], most: int) -> None:
        self._alias = alias
        self._without = without
        self._most = most
        self._step = FIRST_STEP

    def ranges(self, since: Frontier, until: Frontier) -> Iterator[PositionRange]:
        known = persistently(self._alias, partial(_generations, self._alias))
        yield from self._late(known, since, until)
        for stretch in since.not_shown(known, until):
            yield from self._cut(stretch)

    def rest(self, since: Frontier) -> list[PositionRange]:
        known = _generations(self._alias)
        left = [*since.late_stretches(known), *since.not_shown(known)]
        found: list[PositionRange] = []
        for begin in range(0, len(left), MOST_STRETCHES):
            whole = self._range(*left[begin : begin + MOST_STRETCHES])
            count = self._count(whole)
            if count:
                found.append(whole._replace(streams=count))
            if sum(one.streams for one in found) > self._most:
                break
        return found

    # -- transactions that were open ------------------------------------------------------------------------------

    def _late(self, known: list[Begun], since: Frontier, until: Frontier | None) -> Iterator[PositionRange]:
        gathered: list[Stretch] = []
        total = 0
        for stretch, count in self._counted(known, since, until):
            if gathered and (total + count > self._most or len(gathered) == MOST_STRETCHES):
                yield self._range(*gathered)._replace(streams=total)
                gathered, total = [], 0
            if count > self._most:
                yield from self._within(stretch)
            else:
                gathered.append(stretch)
                total += count
        if gathered:
            yield self._range(*gathered)._replace(streams=total)

    def _counted(self, known: list[Begun], since: Frontier, until: Frontier | None) -> Iterator[tuple[Stretch, int]]:
        late = {one.begin.transaction_id: one for one in since.late_stretches(known, until)}
        if late:
            first = next(iter(late.values()))
            parameters = ([*late], first.after_sequence, first.until_sequence, list(self._without))
            for id, count in self._ask(statements.COUNT_BY_TRANSACTION, parameters):
                yield late[id], count

    # -- transactions side by side --------------------------------------------------------------------------------

    def _cut(self, stretch: Stretch) -> Iterator[PositionRange]:
        begin = at = stretch.begin
        total = 0
        while at.transaction_id < stretch.end:
            end = min(stretch.end, at.transaction_id + self._step)
            window = self._range(stretch._replace(begin=at, end=end))
            count = self._count(window)
            if count > self._most and not window.is_one_transaction:
                self._step = max(1, (end - at.transaction_id) // 2)
                continue
            if total and total + count > self._most:
                yield self._range(stretch._replace(begin=begin, end=at.transaction_id))._replace(streams=total)
                begin, total = at, 0
            at = Position(stretch.generation, end)
            if count > self._most:
                yield from self._within(window.stretches[0])
                begin = at
            else:
                total += count
            self._widen(end - window.stretches[0].begin.transaction_id, count)
        if total:
            yield self._range(stretch._replace(begin=begin))._replace(streams=total)

    def _widen(self, width: int, count: int) -> None:
        if 2 * count <= self._most:
            self._step = min(width * (2 if count else 8), WIDEST_STEP)

    def _within(self, stretch: Stretch) -> Iterator[PositionRange]:
        """Yield ranges of a very large transaction, whose sequences are mostly contiguous."""
        whole = self._range(stretch)
        ((first, last),) = _asked(whole, statements.SEQUENCES_IN_RANGES)
        after = last if first is None else first - 1
        while first is not None and after < last:
            left = whole._replace(
                stretches=(stretch._replace(after_sequence=after, until_sequence=last),), by_sequence=True
            )
            ((count, reached),) = _asked(left, statements.NEXT_SEQUENCES, self._most)
            if not count:
                return
            part = stretch._replace(after_sequence=after, until_sequence=reached)
            yield left._replace(stretches=(part,), streams=count)
            after = reached

    def _range(self, *found: Stretch) -> PositionRange:
        return PositionRange(self._alias, found, without=self._without)

    def _count(self, window: PositionRange) -> int:
        ((count,),) = _asked(window, statements.COUNT_IN_RANGES, self._most + 1)
        return int(count)

    def _ask(self, statement: str, parameters: Sequence[object]) -> list[tuple[Any, ...]]:
        return persistently(self._alias, partial(_ask, self._alias, statement, parameters))


def _asked(whole: PositionRange, statement: str, *parameters: object) -> list[tuple[Any, ...]]:
    condition, values = whole.where()
    query = statement.replace("{ranges}", condition)
    return persistently(whole.alias, partial(_ask, whole.alias, query, (*values, *parameters)))


def _ask(alias: str, statement: str, parameters: Sequence[object]) -> list[tuple[Any, ...]]:
    with connected(alias) as connection, by_index(connection):
        return execute(connection, statement, parameters)


def _generations(alias: str) -> list[Begun]:
    with connected(alias) as connection:
        return generations.state(connection).generations
