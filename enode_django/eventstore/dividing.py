"""Division of a shard into parts with about equally many rows, by a sample of the table's pages. The cost does not grow
with the table."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import datetime
from math import ceil
from typing import Any, TypeVar

from django.db.backends.base.base import BaseDatabaseWrapper

from enode_django.eventstore import generations, statements
from enode_django.eventstore.positions import Begun, Position
from enode_django.eventstore.rows import connected, execute

SAMPLED_PAGES = 400


Key = TypeVar("Key", int, str, Position, datetime)


def bounds(alias: str, parts: int) -> list[str]:
    """Return fewer than ``parts`` aggregate root ids, in order: each begins another range.

    There are fewer ranges if single aggregates have more streams than a range would. Raises `StoreUnavailable`.
    """
    with connected(alias) as connection:
        return divided([id for (id,) in _sample(connection, statements.SAMPLE_IDS)], parts)


def position_bounds(alias: str, parts: int, after: Position, before: Position) -> list[Position]:
    """Return positions that divide the rows between two positions into parts of the size that the whole shard divided
    into ``parts`` would have. Each is the beginning of a transaction, or a row of a transaction larger than a part.
    Raises `StoreUnavailable`."""
    with connected(alias) as connection:
        known = generations.state(connection).generations
        found = [_position(known, *row) for row in _sample(connection, statements.SAMPLE_TRANSACTIONS)]
    between = [position for position in found if after <= position < before]
    return _at_transactions(divided(between, ceil(parts * len(between) / len(found)) if found else 1), after)


def _at_transactions(begins: Sequence[Position], after: Position) -> list[Position]:
    """Move positions to the beginnings of their transactions, except in transactions larger than a part."""
    counts = Counter(begin.transaction for begin in begins)
    return [
        begin.transaction if counts[begin.transaction] == 1 and begin.transaction > after else begin for begin in begins
    ]


def refusal_bounds(alias: str, parts: int) -> list[datetime]:
    """Return times that divide the refusals into parts of the size that the whole shard divided into ``parts`` would
    have. Raises `StoreUnavailable`."""
    with connected(alias) as connection:
        found = [made for (made,) in _sample(connection, statements.SAMPLE_REFUSALS)]
    refusals = [made for made in found if made is not None]
    return divided(refusals, ceil(parts * len(refusals) / len(found)) if found else 1)


def size(alias: str) -> int:
    """Return the bytes of the table of streams, without values stored out of line. Raises `StoreUnavailable`."""
    with connected(alias) as connection:
        ((_, size),) = execute(connection, statements.PAGES, ())
        return int(size)


def about(alias: str) -> int:
    """Return an upper bound of the shard's rows, refusals included: the highest sequence, which rolled-back
    transactions raise, too. Raises `StoreUnavailable`."""
    with connected(alias) as connection:
        ((last,),) = execute(connection, statements.LAST_SEQUENCE, ())
        return int(last)


def divided(sample: Sequence[Key], parts: int) -> list[Key]:
    """Return the keys at which the second and each later part begins. No part is empty.

    >>> divided([5, 1, 4, 2, 6, 3], 3)
    [3, 5]
    >>> divided([1, 7, 7, 7, 7, 9], 4)
    [7]
    """
    ordered: list[Key] = sorted(sample)
    begins = {ordered[len(ordered) * part // parts] for part in range(1, parts)} if ordered else set()
    return sorted(begins - {*ordered[:1]})


def _sample(connection: BaseDatabaseWrapper, statement: str) -> list[tuple[Any, ...]]:
    ((pages, _),) = execute(connection, statements.PAGES, ())
    return execute(connection, statement, (min(100.0, 100.0 * SAMPLED_PAGES / max(pages, 1)),))


def _position(known: Sequence[Begun], transaction_id: int, sequence: int) -> Position:
    generation = max(begun.generation for begun in known if begun.after_sequence < sequence)
    return Position(generation, transaction_id, sequence)
