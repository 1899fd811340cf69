"""Projections: Django models that follow the events, each event exactly once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from django.db import models, router
from django.db.models import Model

from enode_django.eventing.base_projections import BaseProjection, Row, RowProjection, is_model
from enode_django.eventing.read_models.waiting_inserts import insert
from enode_django.eventing.subscribers import is_declared
from enode_django.exceptions import DefinitionError, shown


class ModelProjection(RowProjection[Row]):
    """A projection with one row for each aggregate. Handlers are ``(self, row, event) -> None`` and change the row in
    memory. Rows are loaded and stored in bulk, so neither ``save()`` nor its signals are called.

    The model of the rows is the parameter of the class, and is derived from `enode_django.models.ReadModel`; ``model``
    names it, too. An aggregate without a row gets a new one, whose ``version`` is 0, with the first event that is
    handled. If a handler says ``creates=True``, only the events of such handlers make rows, and the other handlers are
    not called before. ``volatile`` names fields that may differ after a rebuild. ``indexes_after_load``: a rebuild
    makes secondary indexes and foreign keys when all rows are there; say False if handlers look rows up by such an
    index.

    For example::

        class Balances(ModelProjection[AccountSummary]):
            @handles(creates=True)
            def opened(self, row: AccountSummary, event: AccountOpened) -> None:
                row.owner = event.owner

            @handles
            def deposited(self, row: AccountSummary, event: Deposited) -> None:
                row.balance = event.balance
    """

    abstract: ClassVar[bool] = True

    @classmethod
    def _enode_complete(cls) -> None:
        super()._enode_complete()
        if not is_declared(cls):
            return
        model: Any = cls.model
        if getattr(model._meta.pk, "name", "") != "aggregate_root_id" or model._meta.parents:
            raise DefinitionError(
                f"{cls.__qualname__} has the model {model.__qualname__}; derive that from "
                "enode_django.models.ReadModel, and not from another model that has a table"
            )
        if not any(_is_of_read_model(field) for field in model._meta.fields if field.name == "version"):
            raise DefinitionError(
                f"{cls.__qualname__} has the model {model.__qualname__}, whose own version stands for that of "
                "enode_django.models.ReadModel; choose another name"
            )


class Projection(BaseProjection):
    """A projection with any ORM code. Handlers are ``(self, event) -> None`` and may touch only the rows of the event's
    aggregate.

    ``models`` names every model that the handlers write; they must lie in one database. `insert` is the cheap way to
    create a row.

    For a rebuild: ``aggregate_field`` names the field with the aggregate root id of a row, so that rows can be compared
    while commands go on; ``volatile`` names fields that may differ. ``indexes_after_load``: secondary indexes and
    foreign keys are made when all rows are there; say True if handlers look rows up by primary keys and unique values
    only.

    For example::

        class Entries(Projection):
            models = [LedgerEntry]

            @handles
            def closed(self, event: AccountClosed) -> None:
                LedgerEntry.objects.filter(account=event.aggregate_root_id).delete()
    """

    abstract: ClassVar[bool] = True
    _enode_settings: ClassVar[frozenset[str]] = frozenset({"models", "aggregate_field"})
    models: ClassVar[Sequence[type[models.Model]]]
    aggregate_field: ClassVar[str] = ""

    @classmethod
    def _enode_complete(cls) -> None:
        super()._enode_complete()
        if not is_declared(cls):
            return
        given = getattr(cls, "models", None)
        if not isinstance(given, list | tuple) or not given:
            raise DefinitionError(f"{cls.__qualname__} has models = {given!r}; list the models that it writes")
        for model in given:
            if not is_model(model):
                raise DefinitionError(f"{cls.__qualname__} lists {model!r} in its models, which is not a model")

    @property
    def database(self) -> str:
        return databases_of(self)[0]

    def insert(self, row: Model) -> None:
        """Insert a new row of one of the ``models``, together with others: it is sent before the next statement of any
        kind in the same connection, and at the end of the batch.

        As with Django's ``bulk_create``, no signals are sent and ``save()`` is not called. An automatic key is set when
        the row is sent; the row must not be changed before. Raises `TypeError` for a row of another model.
        """
        if type(row) not in self.models:
            raise TypeError(f"{type(self).__qualname__}.insert() got {shown(row)}, and it writes {self.models!r} only")
        insert(row, self.database)


def databases_of(projection: Projection) -> Sequence[str]:
    """Return the databases of its models, each once. A system check refuses more than one."""
    return list(dict.fromkeys(router.db_for_write(model) for model in projection.models))


def _is_of_read_model(version: models.Field[Any, Any]) -> bool:
    """Return True for a field as `ReadModel` declares it. Another one would be editable, or begin elsewhere."""
    return isinstance(version, models.BigIntegerField) and not version.editable and version.default == 0
