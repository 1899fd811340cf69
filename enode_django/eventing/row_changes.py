"""What one batch of events changes in the rows of a `ModelProjection`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from enode_django.eventing import checkpoints
from enode_django.eventing.rows import RowTable


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
        """The aggregate has come to ``version``, with this row or (None) without one."""
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
            self._table.store(self._stored)
        checkpoints.save(alias, subscriber, self._rowless)
        checkpoints.forget(alias, subscriber, self._made)
