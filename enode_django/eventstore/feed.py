"""The feed of a Postgres store, and the transactions that hold it back.

Rows are read by windows of transaction ids. The number of rows in a window is not known beforehand, so each query has a
limit; a window with more rows is halved, and the next one grows again. The cost of a page depends on its rows, and not
on the size of the table.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from typing import NamedTuple

from django.db.backends.base.base import BaseDatabaseWrapper

from enode_django.databases import execute as execute_on
from enode_django.eventstore import statements
from enode_django.eventstore.base import FeedEntry, FeedPage, Part, Settled
from enode_django.eventstore.generations import State
from enode_django.eventstore.known_corrections import statement_of
from enode_django.eventstore.positions import Position, Stretch, stretches
from enode_django.eventstore.rows import by_index, execute, record_of

__all__ = ["Holder", "holding_back"]

FIRST_STEP = 1_024
MORE_CANDIDATES = 1_000
WIDEST_STEP = 2**60
_NO_LIMIT = 2**31 - 1


class Holder(NamedTuple):
    """A transaction that holds the feed back.

    ``pid`` is None for a prepared transaction, which has no session. ``state`` is that of ``pg_stat_activity``, such as
    ``"idle in transaction"`` for a forgotten session. ``query`` is its latest statement.
    """

    age: datetime.timedelta
    pid: int | None
    query: str
    application_name: str
    state: str
    database: str


def holding_back(alias: str, older_than: datetime.timedelta) -> list[Holder]:
    """Return the writing transactions open for longer than ``older_than``, the oldest first, in all databases of the
    server. The feed does not show rows stored since the oldest one began.

    Only members of ``pg_read_all_stats`` see sessions of other users. Raises the driver's errors.
    """
    rows = execute_on(alias, statements.HOLDING_BACK, (older_than, older_than)).fetchall()
    return [Holder(*row) for row in rows]


class Feed:
    """Reads the feed of one store. Thread-safe. ``_step`` is the number of transaction ids of the next window, guessed
    from the previous one."""

    def __init__(self, step: int = FIRST_STEP) -> None:
        self._step = step

    def page(self, connection: BaseDatabaseWrapper, state: State, after: Position, limit: int) -> FeedPage:
        entries: list[FeedEntry] = []
        with by_index(connection):
            for stretch in stretches(state.generations, after, state.position):
                for found in self._entries(connection, stretch, limit):
                    entries += found
                    if len(entries) >= limit:
                        return FeedPage(entries[:limit], entries[limit - 1].position)
        return FeedPage(entries, max(after, state.position))

    def _entries(self, connection: BaseDatabaseWrapper, stretch: Stretch, limit: int) -> Iterator[list[FeedEntry]]:
        """Yield the entries of a stretch in lists of at most ``limit``."""
        at = stretch.begin
        while at.transaction_id < stretch.end:
            window = self._next_window(stretch, at)
            found = None
            if not _is_in_a_long_transaction(window):
                found = _sorted(connection, window, limit, most=2 * limit + MORE_CANDIDATES)
            if found is None:
                if self._has_narrowed(window):
                    continue
                found = _within(connection, window, limit)
            yield found
            at = found[-1].position if len(found) == limit else Position(stretch.generation, window.end)
            self._widen(window, is_empty=not found)

    def settled(
        self, connection: BaseDatabaseWrapper, state: State, after: Position, before: Position, limit: int
    ) -> Part:
        """Return a first part of the range, in whole transactions."""
        with by_index(connection):
            for stretch in stretches(state.generations, after.transaction, before.transaction):
                at = stretch.begin
                while at.transaction_id < stretch.end:
                    window = self._next_window(stretch, at)
                    rows = execute(connection, statements.SETTLED, (*_bounds(window), limit + 1))
                    if len(rows) > limit:
                        if self._has_narrowed(window):
                            continue
                        rows = execute(connection, statements.SETTLED, (*_bounds(window), _NO_LIMIT))
                    at = Position(stretch.generation, window.end)
                    self._widen(window, is_empty=not rows)
                    if rows:
                        return Part(min(at, before), Settled.of(map(record_of, rows)))
        return Part(before, Settled({}, []))

    def _next_window(self, stretch: Stretch, at: Position) -> Stretch:
        return stretch._replace(begin=at, end=min(stretch.end, at.transaction_id + self._step))

    def _has_narrowed(self, window: Stretch) -> bool:
        """Halve the next window. Return False if this one is a single transaction, which cannot be halved."""
        self._step = max(1, _width(window) // 2)
        return _width(window) > 1

    def _widen(self, window: Stretch, *, is_empty: bool) -> None:
        self._step = min(_width(window) * (8 if is_empty else 2), WIDEST_STEP)


def _is_in_a_long_transaction(window: Stretch) -> bool:
    """Return True if the window is one transaction and begins within it. A query by transaction would pass over all its
    earlier rows again."""
    return _width(window) == 1 and window.begin.sequence > 0


def _width(window: Stretch) -> int:
    return window.end - window.begin.transaction_id


def _bounds(window: Stretch) -> tuple[int, int, int, int]:
    return (window.begin.transaction_id, window.end, window.after_sequence, window.until_sequence)


def _within(connection: BaseDatabaseWrapper, window: Stretch, limit: int) -> list[FeedEntry]:
    """Return the next rows of a very large transaction. Its sequences are mostly contiguous; only near their end is the
    whole transaction searched."""
    after = max(window.begin.sequence, window.after_sequence)
    until = min(after + limit + MORE_CANDIDATES, window.until_sequence)
    transaction_id = window.begin.transaction_id
    rows = execute(connection, statement_of(connection, statements.FEED_WITHIN), (after, until, transaction_id, limit))
    if len(rows) < limit:
        return _sorted(connection, window, limit, most=_NO_LIMIT) or []
    return [FeedEntry(Position(window.generation, transaction_id, row[0]), record_of(row[1:])) for row in rows]


def _sorted(connection: BaseDatabaseWrapper, window: Stretch, limit: int, *, most: int) -> list[FeedEntry] | None:
    """Return the first ``limit`` rows of a window; None if it has more than ``most``."""
    begin = window.begin
    parameters = (*_bounds(window), begin.transaction_id, begin.sequence, most + 1, limit, most)
    rows = execute(connection, statement_of(connection, statements.FEED), parameters)
    if rows[0][0] > most:
        return None
    return [
        FeedEntry(Position(window.generation, transaction_id, sequence), record_of(tuple(row)))
        for _, transaction_id, sequence, *row in rows
        if sequence is not None
    ]
