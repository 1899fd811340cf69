"""Rows that the handlers of a `Projection` insert one by one, sent together.

An insert costs a statement and a round trip: many times what its row costs. In a pass that is rolled back and run again
when anything fails, inserts can wait until the next statement of any kind in the same connection, or until the handlers
are done. So every statement finds every row. Only errors come late, and after one nothing of the pass may be committed.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from django.db import connections, models
from django.db.backends.base.base import BaseDatabaseWrapper

from enode_django.databases import StatementsWait
from enode_django.eventing.read_models.row_inserts import RowInserts

ROWS_MAX = 1_000
"""The most rows of one model that wait. Then all waiting rows are sent."""


class WaitingInserts(StatementsWait):
    """The waiting rows of one pass, in the connection of the thread that runs it. No other thread uses it.

    ``failed`` is the first error that inserting raised, even if a handler has swallowed it.
    """

    def __init__(self, connection: BaseDatabaseWrapper, inserts: RowInserts) -> None:
        self.alias = inserts.alias
        self.failed: Exception | None = None
        self._connection = connection
        self._inserts = inserts
        self._rows: dict[type[models.Model], list[models.Model]] = {}

    def add(self, row: models.Model) -> None:
        rows = self._rows.setdefault(type(row), [])
        rows.append(row)
        if len(rows) == ROWS_MAX:
            self.send()

    @property
    def takes_rows(self) -> bool:
        """False once the transaction is to be rolled back: then an insert has to raise at once."""
        return self.failed is None and not self._connection.needs_rollback

    def send(self) -> None:
        """Send all rows, models in the order of their first rows; none if the transaction is to be rolled back."""
        if not self._rows or self._connection.needs_rollback:
            return
        waiting, self._rows = self._rows, {}
        try:
            for rows in waiting.values():
                self._inserts.insert(rows)
        except Exception as error:  # from the database, or from adapting a value; a handler may swallow it
            self.failed = self.failed or error
            raise

    def finish(self) -> None:
        if self.failed is not None:
            raise self.failed
        self._connection.validate_no_broken_transaction()
        self.send()


class _Here(threading.local):
    waiting: WaitingInserts | None = None


_here = _Here()
"""The rows that wait in this thread. Each insert looks for them, and to look through the connection takes longer."""


@contextmanager
def inserts_wait(inserts: RowInserts) -> Iterator[WaitingInserts]:
    """Let rows that are inserted inside the block wait, and send them at its end. Raises the first error of an insert
    in the block: then everything since the block began is to be rolled back."""
    connection = connections[inserts.alias]
    waiting = WaitingInserts(connection, inserts)
    connection.execute_wrappers.append(waiting)
    others, _here.waiting = _here.waiting, waiting
    try:
        yield waiting
        waiting.finish()
    finally:
        _here.waiting = others
        with suppress(ValueError):  # not pop(): a handler may have left its own wrapper behind
            connection.execute_wrappers.remove(waiting)


def insert(row: models.Model, alias: str) -> None:
    """Insert a row, or let it wait if this thread is inside `inserts_wait`."""
    waiting = _here.waiting
    if waiting is not None and waiting.alias == alias and waiting.takes_rows:
        waiting.add(row)
        return
    type(row)._base_manager.using(alias).bulk_create([row])
