"""Estimates of the number of rows in a Postgres store from a position on."""

from __future__ import annotations

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


def stored_since(alias: str, position: Position) -> Amount:
    """Return the amount stored from a position on, settled or not. Blocks. Reads little more than `COUNTED` rows at
    most. Raises `StoreUnavailable`."""
    streams, oldest, first = 0, None, None
    with connected(alias) as connection, by_index(connection):
        generations = [Begun(*row) for row in execute(connection, statements.GENERATIONS_BEGUN, ())]
        if not generations or generations[0] != FIRST:
            generations.insert(0, FIRST)
        for stretch in stretches(generations, position.transaction, END):
            bounds = (stretch.begin.transaction_id, stretch.end, stretch.after_sequence, stretch.until_sequence)
            ((count, made, sequence),) = execute(connection, statements.SINCE, (*bounds, COUNTED + 1))
            if count and oldest is None:
                oldest, first = made, sequence
            streams += count
            if streams > COUNTED:
                ((last,),) = execute(connection, statements.LAST_SEQUENCE, ())
                return Amount(max(streams, last - first + 1), oldest)
    return Amount(streams, oldest)
