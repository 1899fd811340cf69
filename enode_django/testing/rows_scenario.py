"""Given/when/then tests of a `MultiProjection`, without a database."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Generic, Self

from django.db import connections, models

from enode_django.domain.messages import DomainEvent
from enode_django.eventing.base_projections import makes_row
from enode_django.eventing.multi_projections import MultiProjection, key_fields, key_of_event
from enode_django.eventing.pending import HandledEvents
from enode_django.eventing.read_models.keyed_changes import KeyedChanges, keyed_events
from enode_django.eventing.read_models.row_keys import RowKeys
from enode_django.eventing.registry import subscribers
from enode_django.eventstore.base import StreamRecord
from enode_django.testing.histories import check_events, streams
from enode_django.testing.row_scenario import (
    Row,
    check_fields,
    check_storable,
    check_values,
    handling,
    normaliser,
)


class RowsScenario(Generic[Row]):
    """A test of a `MultiProjection`, which `given` begins.

    ``rows`` are the rows in memory, by key, with the values that the handlers gave them. Before each event the values
    are converted to those that the database would return, if this is possible without it. The ``then`` methods raise
    `AssertionError`, and `DefinitionError` for a name that is no field.

    For example::

        scenario = given(Payees, "transfer 1", TransferConfirmed(source="ann", target="bob"))
        scenario.when(TransferConfirmed(source="ann", target="bob"), id="transfer 2")
        scenario.then(("ann", "bob"), transfers=2).then_in_any_order()
    """

    def __init__(self, projection: type[MultiProjection[Row]], id: str, history: Sequence[DomainEvent]) -> None:
        made: Any = subscribers.instance(projection)
        self._projection: MultiProjection[Row] = made
        self._id = id
        self._makes_row = makes_row(projection)
        self._key_of = key_of_event(projection)
        self._table = _RowsInMemory(self._projection)
        self._changes = self._no_rows()
        self._records: dict[str, list[StreamRecord]] = {}
        self._handle(id, history)

    @property
    def rows(self) -> Mapping[Any, Row]:
        return {key: row for key, row in self._changes.rows.items() if row is not None}

    def when(self, *events: DomainEvent, id: str | None = None) -> Self:
        """Deliver the next events of the aggregate ``id``, by default that of `given`, each as if from its own command.
        Raises what the handlers raise, and `AssertionError` if one sets a value that is no field of the row."""
        check_events(events)
        self._handle(id or self._id, events)
        return self

    def then(self, key: Any, /, **values: Any) -> Self:
        """Assert that there is a row with this key and these values. Other fields are ignored."""
        row = self._changes.rows.get(self._table.canonical(key))
        if row is None:
            raise AssertionError(f"expected a row {key!r} with {values!r}, but there are {list(self.rows)!r}")
        check_values(row, values, whose=f" of {key!r}")
        check_storable(self._projection, row)
        return self

    def then_no_row(self, key: Any, /) -> Self:
        """Assert that there is no row with this key: none was made, or it was deleted."""
        row = self._changes.rows.get(self._table.canonical(key))
        if row is not None:
            raise AssertionError(f"expected no row {key!r}, got {row!r}")
        return self

    def then_in_any_order(self) -> Self:
        """Assert that the rows do not depend on the order in which the aggregates' events come: those of each aggregate
        are delivered before those of all others, and after them. Calls the handlers again."""
        expected = self._values(self._changes)
        for first in self._records:
            rest = [id for id in self._records if id != first]
            for order in ([first, *rest], [*rest, first], [*reversed(rest), first]):
                changes = self._no_rows()
                for id in order:
                    self._deliver(changes, self._records[id])
                if (found := self._values(changes)) != expected:
                    different = {key for key in {**expected, **found} if expected.get(key) != found.get(key)}
                    raise AssertionError(
                        f"the rows {sorted(map(repr, different))} depend on the order of aggregates: with the events "
                        f"of {order!r}, one aggregate after the other, they are "
                        f"{ {key: found.get(key) for key in different} }, and were "
                        f"{ {key: expected.get(key) for key in different} }"
                    )
        return self

    def _handle(self, id: str, events: Sequence[DomainEvent]) -> None:
        known = self._records.setdefault(id, [])
        records = list(streams(id, events, after=len(known)))
        self._deliver(self._changes, records)
        known += records

    def _deliver(self, changes: KeyedChanges, records: Iterable[StreamRecord]) -> None:
        followed = HandledEvents(self._projection)
        for record in records:
            for one in keyed_events(followed.of(record), self._key_of, self._table):
                with handling(self._projection, self._projection.model):
                    changes.handle(one)
            for row in changes.rows.values():
                if row is not None:
                    check_fields(self._projection, row)

    def _no_rows(self) -> KeyedChanges:
        return KeyedChanges({}, self._table, self._makes_row)

    def _values(self, changes: KeyedChanges) -> dict[Any, dict[str, Any]]:
        rows = {key: row for key, row in changes.rows.items() if row is not None}
        for row in rows.values():
            self._table.normalise(row)
        names = [
            field.attname
            for field in self._projection.model._meta.concrete_fields
            if field.name not in self._projection.volatile
        ]
        return {key: {name: row.__dict__.get(name) for name in names} for key, row in rows.items()}


class _RowsInMemory(RowKeys[models.Model]):
    def __init__(self, projection: MultiProjection[Any]) -> None:
        alias = projection.database
        super().__init__(projection.model, key_fields(type(projection)), connections[alias])
        self._normalise = normaliser(projection.model, alias)

    def normalise(self, row: Any) -> None:
        self._normalise(row)
