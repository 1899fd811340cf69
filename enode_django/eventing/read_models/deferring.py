"""Rows that the handlers of a `Projection` create one by one, inserted together.

``Model.objects.create()`` costs a statement and a round trip: many times what its row costs. In a pass that is rolled
back and run again when anything goes wrong, inserts may as well wait: until the next statement of any kind in the same
connection, or until the handlers are done. So whoever looks finds every row; only an error comes late, and after one
nothing of the pass may be committed.
"""

from __future__ import annotations

import copy
import inspect
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any

from django.db import connections, models, transaction
from django.db.backends.base.base import BaseDatabaseWrapper
from psycopg.types.json import Jsonb

from enode_django.databases import StatementsWait
from enode_django.eventing.read_models.insert_table import DO_INSERT, InsertTable

ROWS_MAX = 1_000
"""Waiting rows of one table, before all are sent."""

IDS_AT_FIRST = 4
"""Ids are drawn in portions that double, since those that are left over are lost."""

_PARAMETERS = ("self", "manager", "using", "fields", "returning_fields", "raw")
"""The parameters of ``Model._do_insert``, which Django may change as it likes."""

_UNCHANGEABLE = {str, int, float, bool, Decimal, date, datetime, time, timedelta, uuid.UUID, type(None)}


def is_hook_known() -> bool:
    """Return True if this Django inserts in the way that can be hooked into. If not, nothing ever waits."""
    return tuple(inspect.signature(DO_INSERT).parameters) == _PARAMETERS


class WaitingInserts(StatementsWait):
    """The waiting inserts of one pass, in the connection of the thread that runs it: no other thread uses it.

    ``failed`` is the first error that inserting raised, even if a handler has swallowed it.
    """

    def __init__(self, connection: BaseDatabaseWrapper, tables: dict[type[models.Model], InsertTable]) -> None:
        self.failed: Exception | None = None
        self._connection = connection
        self._tables = tables
        self._rows: dict[InsertTable, list[list[Any]]] = {}
        self._ids: dict[InsertTable, list[int]] = {}
        self._drawn: dict[InsertTable, int] = {}

    def take(self, row: models.Model) -> list[tuple[int]] | None:
        """Let the row wait; returns what its insert would return, or None if it has to be inserted now."""
        table = self._tables.get(type(row))
        if table is None or self.failed or self._connection.needs_rollback or not table.is_plain(self._connection):
            return None
        values = []
        for column in table.columns:
            given = column.field.pre_save(row, True)
            if given is None and column.field is table.auto:
                value = self._next_id(table)
                if value is None:
                    return None
            else:
                value = column.value(given, self._connection)
                if type(value) not in _UNCHANGEABLE:
                    value = _kept(value)
                    if value is None:
                        return None
            values.append(value)
        rows = self._rows.setdefault(table, [])
        rows.append(values)
        if len(rows) == ROWS_MAX:
            self.send()
        return [] if table.auto_index is None else [(values[table.auto_index],)]

    def _next_id(self, table: InsertTable) -> int | None:
        if not self._ids.get(table):
            count = self._drawn[table] = min(self._drawn.get(table, IDS_AT_FIRST // 2) * 2, ROWS_MAX)
            self._ids[table] = table.draw_ids(self._connection, count)
        return self._ids[table].pop() if self._ids[table] else None

    def send(self) -> None:
        """Tables in the order of their first rows. Nothing is sent in a transaction that is to be rolled back."""
        if not self._rows or self._connection.needs_rollback:
            return
        waiting, self._rows = self._rows, {}
        try:
            with transaction.mark_for_rollback_on_error(using=self._connection.alias):
                for table, rows in waiting.items():
                    table.insert(rows, self._connection)
        except Exception as error:  # of the database, or of adapting a value: a handler may swallow it
            self.failed = self.failed or error
            raise

    def finish(self) -> None:
        if self.failed is not None:
            raise self.failed
        self._connection.validate_no_broken_transaction()
        self.send()


class DeferredInserts:
    """Lets inserts of those of the ``models`` wait that can, see `InsertTable`."""

    def __init__(self, models_: Sequence[type[models.Model]], alias: str) -> None:
        self._alias = alias
        tables = {model: InsertTable(model, connections[alias]) for model in models_} if is_hook_known() else {}
        self.tables = {model: table for model, table in tables.items() if table.fits}
        for model in self.tables:
            model._do_insert = _do_insert  # type: ignore[attr-defined]

    @contextmanager
    def wait(self) -> Iterator[None]:
        """Inside the block inserts wait; at its end all are sent. Raises what inserting has raised at any time in it:
        then everything since the block began is to be rolled back."""
        if not self.tables:
            yield
            return
        connection = connections[self._alias]
        waiting = WaitingInserts(connection, self.tables)
        connection.execute_wrappers.append(waiting)
        try:
            yield
            waiting.finish()
        finally:
            with suppress(ValueError):  # not pop(): a handler may have left a wrapper of its own behind
                connection.execute_wrappers.remove(waiting)


def _do_insert(self: Any, manager: Any, using: str, fields: Any, returning_fields: Any, raw: bool) -> Any:
    """Hold the row back if inserts wait on this connection; otherwise insert it as ``Model._do_insert`` does."""
    if not raw:
        for wrapper in connections[using].execute_wrappers:
            if isinstance(wrapper, WaitingInserts):
                returned = wrapper.take(self)
                if returned is not None:
                    return returned
    return DO_INSERT(self, manager, using, fields, returning_fields, raw)


_do_insert.instead_of = DO_INSERT  # type: ignore[attr-defined]


def _kept(value: Any) -> Any:
    """Return a copy that goes into an array with others, and that a handler cannot change later; None if that cannot
    be."""
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, int):
        return int(value)
    return copy.deepcopy(value) if type(value) is Jsonb else None
