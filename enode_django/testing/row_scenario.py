"""Given/when/then tests of a `ModelProjection`, without a database."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any, Generic, Self, TypeVar

from django.db import connections, models

from enode_django.domain.messages import DomainEvent
from enode_django.eventing.base_projections import makes_row
from enode_django.eventing.pending import HandledEvents
from enode_django.eventing.projections import ModelProjection
from enode_django.eventing.read_models.row_changes import changed_row
from enode_django.eventing.read_models.row_columns import is_set_when_saved
from enode_django.eventing.read_models.row_normalising import RowNormaliser, make_stored
from enode_django.eventing.registry import subscribers
from enode_django.eventing.subscribers import Subscriber, running
from enode_django.eventstore.base import StreamRecord
from enode_django.exceptions import DefinitionError, shown
from enode_django.testing.histories import check_events, streams

Row = TypeVar("Row", bound=models.Model)

_WRITES = ("INSERT", "UPDATE", "DELETE", "MERGE")


class RowScenario(Generic[Row]):
    """A test of a `ModelProjection`, which `given` begins.

    ``row`` is the row in memory, with the values that the handlers gave it; None if there is no row. Before each event
    the values are converted to those that the database would return, if this is possible without it. The ``then``
    methods raise `AssertionError`, and `DefinitionError` for a name that is no field.

    For example::

        scenario = given(AccountSummaries, AccountOpened(owner="Ada"))
        scenario.when(Deposited(amount=Decimal(5), balance=Decimal(5)))
        scenario.then(owner="Ada", balance=Decimal(5))
    """

    def __init__(self, projection: type[ModelProjection[Row]], id: str, history: Sequence[DomainEvent]) -> None:
        self._projection = subscribers.instance(projection)
        self._model = projection.model
        self._id = id
        self._makes_row = makes_row(projection)
        self._normalise = normaliser(self._model, self._projection.database)
        self._version = 0
        self.row: Row | None = None
        self._handle(streams(id, history))

    def when(self, *events: DomainEvent) -> Self:
        """Deliver the aggregate's next events, each as if from its own command. Raises what the handlers raise, and
        `AssertionError` if one sets a value that is no field of the row."""
        check_events(events)
        self._handle(list(streams(self._id, events, after=self._version)))
        return self

    def then(self, /, **values: Any) -> Self:
        """Assert that there is a row with these values. Other fields are ignored."""
        if self.row is None:
            raise AssertionError(f"expected a row with {values!r}, but there is none")
        check_values(self.row, values)
        check_storable(self._projection, self.row)
        return self

    def then_no_row(self) -> Self:
        """Assert that there is no row: none was made, or it was deleted."""
        if self.row is not None:
            raise AssertionError(f"expected no row, got {self.row!r}")
        return self

    def _handle(self, records: Iterable[StreamRecord]) -> None:
        followed = HandledEvents(self._projection)
        for record in records:
            events = followed.of(record)
            with handling(self._projection, self._model):
                self.row = changed_row(self._model, self._id, self.row, events, self._normalise, self._makes_row)
            self._version = record.version or 0
            if self.row is not None:
                check_fields(self._projection, self.row)
                self.row.version = self._version  # type: ignore[union-attr]


@contextmanager
def handling(projection: Subscriber, model: type[models.Model]) -> Iterator[None]:
    """Let the projection's handlers run inside the block. `AssertionError` is raised before one writes into the table
    of the ``model``: a worker stores its rows, and nothing would roll back what a scenario has written."""

    def refuse_writes(execute: Callable[..., Any], statement: Any, parameters: Any, many: bool, context: Any) -> Any:
        connection = context["connection"]
        table = connection.ops.quote_name(model._meta.db_table)
        if str(statement).lstrip().upper().startswith(_WRITES) and table in str(statement):
            raise AssertionError(
                f"{type(projection).__qualname__} writes into the database {connection.alias!r}: {shown(statement)}; "
                "change the row alone, without save() and delete(): a worker stores it"
            )
        return execute(statement, parameters, many, context)

    with running(projection), ExitStack() as stack:
        for connection in connections.all():
            stack.enter_context(connection.execute_wrapper(refuse_writes))
        yield


def check_values(row: models.Model, values: Mapping[str, Any], whose: str = "") -> None:
    """Raise `AssertionError` if the row has another value, and `DefinitionError` if it can have none of this name."""
    for name, value in values.items():
        if not hasattr(type(row), name) and name not in vars(row):
            fields = ", ".join(field.name for field in row._meta.concrete_fields)
            raise DefinitionError(f"{type(row).__qualname__} has no field {name!r}; its fields are {fields}")
        found = getattr(row, name)
        if found != value:
            raise AssertionError(f"expected {name}{whose} to be {value!r}, got {found!r}")


def check_fields(projection: Subscriber, row: models.Model) -> None:
    """Raise `AssertionError` if a handler has given the row a value that is not stored, such as one under a misspelt
    name."""
    for name in vars(row):
        if not (name.startswith("_") or hasattr(type(row), name) or name in vars(type(row)())):
            fields = ", ".join(field.name for field in row._meta.concrete_fields)
            raise AssertionError(
                f"{type(projection).__qualname__} sets {name!r}, which is no field of {type(row).__qualname__} and is "
                f"not stored; its fields are {fields}"
            )


def check_storable(projection: Subscriber, row: models.Model) -> None:
    """Raise `AssertionError` if a field of the row is None and its column takes no NULL: a worker would park the
    aggregate."""
    connection: Any = connections[projection.database]
    for field in row._meta.concrete_fields:
        is_ours = not (field.null or field.primary_key or field.generated or is_set_when_saved(field))
        is_none = is_ours and row.__dict__.get(field.attname, field) is None
        if is_none and field.get_db_prep_save(None, connection=connection) is None:
            raise AssertionError(
                f"{type(projection).__qualname__} leaves {type(row).__qualname__}.{field.name} None, which the "
                "database refuses; set it, or give the field a default, or null=True"
            )


def normaliser(model: type[models.Model], alias: str) -> Callable[[Any], object]:
    """Return the function that makes a row a stored one, and converts its values. Without PostgreSQL in the settings it
    leaves these as they are."""
    connection = connections[alias]
    if connection.vendor == "postgresql":
        return partial(RowNormaliser(model, connection).normalise, partly=True)
    return partial(make_stored, alias=alias)
