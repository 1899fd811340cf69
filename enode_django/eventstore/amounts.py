"""Estimates of the number of rows in a Postgres store from a position on."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import NamedTuple

from enode_django.eventstore import statements
from enode_django.eventstore.positions import END, FIRST, Begun, Position, stretches
from enode_django.eventstore.rows import by_index, connected, execute

COUNTED = 10_000


class Amount(NamedTuple):
    """``streams`` is the number of rows, refusals included; above `COUNTED` it is estimated from their sequences.
    ``oldest`` is the creation time of the oldest row, or, above `COUNTED`, of one of the oldest."""

    streams: int
    oldest: datetime | None


class Amounts(NamedTuple):
    """The amount of all rows, and of the rows that were counted by the type of their aggregate."""

    all: Amount
    by_type: Mapping[str, Amount]

    def of(self, concerns: Callable[[str], bool]) -> Amount:
        """Return the amount of the types that ``concerns`` accepts: their share of all, as far as that was counted."""
        found = [amount for name, amount in self.by_type.items() if concerns(name)]
        counted, share = sum(one.streams for one in self.by_type.values()), sum(one.streams for one in found)
        oldest = min((one.oldest for one in found if one.oldest is not None), default=None)
        return Amount(round(self.all.streams * share / counted) if counted else 0, oldest)


def stored_since(alias: str, position: Position) -> Amounts:
    """Return the amounts stored from a position on, settled or not. Blocks. Reads little more than `COUNTED` rows at
    most. Raises `StoreUnavailable`."""
    by_type: dict[str, Amount] = {}
    streams, first = 0, None
    with connected(alias) as connection, by_index(connection):
        generations = [Begun(*row) for row in execute(connection, statements.GENERATIONS_BEGUN, ())]
        if not generations or generations[0] != FIRST:
            generations.insert(0, FIRST)
        for stretch in stretches(generations, position.transaction, END):
            bounds = (stretch.begin.transaction_id, stretch.end, stretch.after_sequence, stretch.until_sequence)
            rows = execute(connection, statements.SINCE, (*bounds, COUNTED + 1))
            for name, count, made, sequence in rows:
                before = by_type.get(name, Amount(0, made))
                by_type[name] = Amount(before.streams + count, before.oldest)
                first = sequence if first is None else min(first, sequence)
                streams += count
            if streams > COUNTED:
                ((last,),) = execute(connection, statements.LAST_SEQUENCE, ())
                streams = max(streams, last - (first or 0) + 1)
                break
    oldest = min((one.oldest for one in by_type.values() if one.oldest is not None), default=None)
    return Amounts(Amount(streams, oldest), by_type)
