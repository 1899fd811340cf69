"""Apply events to the rows of a `ModelProjection`: in memory one by one, then in the database all at once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from enode_django.eventing import checkpoints
from enode_django.eventing.pending import HandledEvent
from enode_django.eventing.read_models.compiled_rows import HANDLED
from enode_django.eventing.read_models.rows import RowTable
from enode_django.eventing.subscribers import Handler
from enode_django.exceptions import DefinitionError, shown

DELETED = "_enode_deleted"
"""An attribute that `RowProjection.delete` sets."""
_NO_VALUES: dict[str, Any] = {}


def changed_row(
    model: type[Any],
    aggregate_root_id: str,
    row: Any,
    followed: Iterable[HandledEvent],
    normalise: Callable[[Any], object],
    makes_row: Callable[[Any], bool] | None = None,
) -> Any:
    """Return the row of a `ModelProjection` after these events, changed in memory, or None if there is none.

    ``normalise`` is called with a row that the handlers of an earlier event have changed since it was loaded, before
    the next event sees it: an event must not depend on whether the row was stored in between. ``makes_row`` says
    whether an event makes a missing row (None: every event does); one that does not is passed over. Raises what
    ``makes_row`` and the handlers raise, and `DefinitionError` if they change the row's id; the row may be half changed
    then.
    """
    values = row.__dict__ if row is not None else _NO_VALUES
    for event, handlers in followed:
        if row is None:
            if makes_row is not None and not makes_row(event):
                continue
            row = model(aggregate_root_id=aggregate_root_id)
            values = row.__dict__
        elif HANDLED in values:
            normalise(row)
        for handler in handlers:
            handler(row, event)
        if DELETED in values:
            row = None
        elif HANDLED not in values:
            values[HANDLED] = ()
    if row is not None and values["aggregate_root_id"] != aggregate_root_id:
        if values["aggregate_root_id"] is None:
            raise DefinitionError(
                f"a handler has taken the id of the row {shown(aggregate_root_id)}; to delete the row, call "
                "self.delete(row) instead of row.delete()"
            )
        raise DefinitionError(
            f"a handler has changed the id of a row from {shown(aggregate_root_id)} to "
            f"{shown(values['aggregate_root_id'])}; leave it as it is: the row is that of the event's aggregate"
        )
    return row


def row_after(row: Any, event: Any, handlers: Iterable[Handler]) -> Any:
    """Return the row after an event, or None if a handler has deleted it."""
    for handler in handlers:
        handler(row, event)
    if row.__dict__.pop(DELETED, False):
        return None
    row.__dict__.setdefault(HANDLED, ())
    return row


class RowChanges:
    """The changes of one batch to the rows. ``rows`` are those found, ``positions`` the versions at the beginning."""

    def __init__(self, table: RowTable[Any], rows: Mapping[str, Any], positions: Mapping[str, int]) -> None:
        self.rows = rows
        self.positions = positions
        self._table = table
        self._stored: list[Any] = []
        self._made: list[str] = []
        self._deleted: dict[str, int] = {}
        self._rowless: dict[str, int] = {}

    def note(self, id: str, row: Any, version: int) -> None:
        """Note that the aggregate has come to ``version``, with this row or (None) without one."""
        found = self.rows.get(id)
        if found is not None and row is not found:
            self._deleted[id] = version
        if row is None:
            self._rowless[id] = version
            return
        self._stored.append(row)
        if found is None:
            self._made.append(id)

    def write(self, alias: str, subscriber: str) -> None:
        if self._deleted:
            self._table.delete(self._deleted)
        if self._stored:
            self._table.store(self._stored, self._made)
        checkpoints.save(alias, subscriber, self._rowless)
        checkpoints.forget(alias, subscriber, self._made)
