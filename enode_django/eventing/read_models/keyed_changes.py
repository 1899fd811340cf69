"""The changes of one batch to the rows of a `MultiProjection`."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from enode_django.domain.messages import DomainEvent
from enode_django.domain.refusals import DomainException
from enode_django.eventing.event_keys import Keys
from enode_django.eventing.pending import HandledEvent
from enode_django.eventing.read_models.compiled_rows import HANDLED
from enode_django.eventing.read_models.keyed_rows import KeyedRowTable, copied
from enode_django.eventing.read_models.row_changes import row_after
from enode_django.eventing.read_models.row_keys import Key, RowKeys
from enode_django.eventing.subscribers import Handler
from enode_django.exceptions import DefinitionError, shown


class KeyedEvent(NamedTuple):
    """An event that changes the row of ``key``, with its handlers."""

    key: Key
    event: DomainEvent | DomainException
    handlers: Sequence[Handler]


def keyed_events(
    followed: Iterable[HandledEvent], key_of: Callable[[Any], Any], keys: RowKeys[Any]
) -> Iterator[KeyedEvent]:
    """Yield the events that have a key, once for each of several `Keys`. Raises what ``key_of`` and ``keys`` raise."""
    for event, handlers in followed:
        key = key_of(event)
        if key.__class__ is Keys:
            yield from (KeyedEvent(one, event, handlers) for one in dict.fromkeys(map(keys.canonical, key)))
        elif key is not None:
            yield KeyedEvent(keys.canonical(key), event, handlers)


class KeyedTable(Protocol):
    """The functions of a table that change rows in memory."""

    key_of: Callable[[Any], Key]

    def new(self, key: Key) -> Any:
        """Return a new row."""

    def normalise(self, row: Any) -> None:
        """Give a row that was changed since it was loaded the values that it would be loaded with."""


class KeyedChanges:
    """Rows in memory, by key, and what handlers have done to them. ``rows`` are those that are stored.

    ``makes_row`` says whether an event makes a missing row (None: every event does).
    """

    def __init__(self, rows: Mapping[Key, Any], table: KeyedTable, makes_row: Callable[[Any], bool] | None) -> None:
        self.rows: dict[Key, Any] = dict(rows)
        self._table = table
        self._makes_row = makes_row
        self._stored = rows.keys()
        self._changed: set[Key] = set()
        self._made: set[Key] = set()

    def handle(self, one: KeyedEvent) -> None:
        """Let the event change the row of its key. Raises what its handlers raise; the row may be half changed then."""
        key, event, handlers = one
        row, makes = self.rows.get(key), False
        if row is None:
            if self._makes_row is not None and not self._makes_row(event):
                return
            row, makes = self._table.new(key), True
        elif HANDLED in row.__dict__:
            self._table.normalise(row)
        changed = row_after(row, event, handlers)
        if self._table.key_of(row) != key:
            raise DefinitionError(
                f"a handler has changed the key of a row from {shown(key)} to {shown(self._table.key_of(row))}; let "
                "key return the key that the event is about"
            )
        self.rows[key] = changed
        self._changed.add(key)
        if makes:
            self._made.add(key)

    def kept(self, keys: Collection[Key]) -> Callable[[], None]:
        """Return a function that restores the current contents of the rows of these keys."""
        rows = {key: None if (row := self.rows.get(key)) is None else copied(row) for key in keys}
        noted = [(keys_of, keys_of.intersection(keys)) for keys_of in (self._changed, self._made)]

        def go_back() -> None:
            self.rows.update(rows)
            for keys_of, before in noted:
                keys_of.difference_update(keys)
                keys_of.update(before)

        return go_back

    def write(self, table: KeyedRowTable[Any]) -> None:
        """Store the changes. The rows must be locked."""
        changed = [(key, self.rows[key]) for key in self._changed]
        made = self._made
        table.delete([key for key, row in changed if key in self._stored and (row is None or key in made)])
        table.update([row for key, row in changed if row is not None and key not in made])
        table.insert([row for key, row in changed if row is not None and key in made])  # takes what they give up
