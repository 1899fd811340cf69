"""Projections whose rows are fed by the events of many aggregates, each event exactly once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

from django.core.exceptions import FieldDoesNotExist
from django.db import models

from enode_django.domain.messages import DomainEvent
from enode_django.eventing.base_projections import Row, RowProjection
from enode_django.eventing.event_keys import EventKey, EventKeys, event_key
from enode_django.eventing.subscribers import is_declared
from enode_django.exceptions import DefinitionError


class MultiProjection(RowProjection[Row]):
    """A projection whose rows are keyed by what events carry: one row takes in the events of many aggregates. Handlers
    are ``(self, row, event) -> None`` and change the row in memory. Rows are loaded, locked and stored in bulk, so
    neither ``save()`` nor its signals are called.

    The model of the rows is the parameter of the class. ``key_field`` names the field, or several, that identify a row
    and are unique; by default they are the primary key. ``key``, a parameter of the class, is a function of an event.
    It returns the value of the key field, or a tuple of those of several; ``@handles(key=…)`` is for events with
    another key. A handler is not called if the key is None. If an event changes several rows, give ``keys`` instead of
    ``key``: a function that returns their keys, at most 1,000. The handler is called once with each of these rows, in
    the order of the keys. The rows are stored together, or none of them.

    Events of one aggregate are handled in their order, events of different aggregates in any order: handlers have to
    give the same row in every order, as counts, sums and values by the id of their aggregate do. A row without a key
    yet is new. If some handlers have ``creates=True``, the others are not called before one of these has made the row.
    ``delete`` removes a row, and the next event with its key makes a new one: delete a row only when a new row would
    say as much. ``volatile`` and ``indexes_after_load`` are as in a `ModelProjection`.

    For example::

        class Payees(MultiProjection[Payee], key=lambda event: (event.source, event.target)):
            key_field = ("source", "target")

            @handles
            def confirmed(self, row: Payee, event: TransferConfirmed) -> None:
                row.transfers += 1
                row.last_at = max(row.last_at or event.timestamp, event.timestamp)
    """

    abstract: ClassVar[bool] = True
    _enode_settings: ClassVar[frozenset[str]] = frozenset({"key_field"})
    _enode_has_keys: ClassVar[bool] = True
    key_field: ClassVar[str | Sequence[str]] = ""

    def __init_subclass__(cls, *, key: EventKey | None = None, keys: EventKeys | None = None, **options: Any) -> None:
        super().__init_subclass__(_enode_key=event_key(cls.__qualname__, key, keys), **options)

    @classmethod
    def _enode_complete(cls) -> None:
        super()._enode_complete()
        if not is_declared(cls):
            return
        key_fields(cls)
        for name in sorted(set(cls._enode_methods.values())):
            found = cls._enode_keys.get(name, cls._enode_key)
            if not callable(found):
                raise DefinitionError(
                    f"{cls.__qualname__} has the key {found!r} for {name}(); give it a function of the event: "
                    f"class {cls.__name__}(MultiProjection[…], key=lambda event: event.customer), or @handles(key=…); "
                    "for events that change several rows, keys instead of key"
                )


def key_fields(cls: type[MultiProjection[Any]]) -> Sequence[models.Field[Any, Any]]:
    """Return the fields that identify a row. Raises `DefinitionError` if the projection's rows have no such fields."""
    model, given = cls.model, cls.key_field
    if getattr(model._meta.pk, "name", "") == "aggregate_root_id" or model._meta.parents:
        raise DefinitionError(
            f"{cls.__qualname__} has the model {model.__qualname__}; its rows belong to no single aggregate: derive it "
            "from models.Model, not from a ReadModel or a model that has a table"
        )
    names = [given] if isinstance(given, str) else list(given)
    fields = _primary_key(model) if names in ([], [""]) else [_field(cls, name) for name in names]
    if any(isinstance(field, _COUNTED) for field in fields):
        raise DefinitionError(
            f"{cls.__qualname__} has no key_field, and {model.__qualname__} counts its primary keys; name the unique "
            "field or fields that the events' keys are the values of"
        )
    if any(isinstance(field, models.JSONField) for field in fields):
        raise DefinitionError(
            f"{cls.__qualname__} has key_field = {given!r} with a JSONField, whose values may be lists and maps; take "
            "fields with texts or numbers, one for each part of the key"
        )
    if any(field.null for field in fields) or not _are_unique(model, {field.name for field in fields}):
        raise DefinitionError(
            f"{cls.__qualname__} has key_field = {given!r}, by which {model.__qualname__} may have several rows; it "
            "takes fields that are unique, or unique together, and never null"
        )
    return fields


def key_of_event(cls: type[MultiProjection[Any]]) -> Callable[[DomainEvent], Any]:
    """Return a function that calls an event's key function: it returns None, a key, or the `Keys` of several rows."""
    known: dict[type[DomainEvent], EventKey] = {}

    def key(event: DomainEvent) -> Any:
        try:
            function = known[type(event)]
        except KeyError:
            name = cls._enode_method_for(type(event)) or ""
            found = cls._enode_keys.get(name) or cls._enode_key
            assert found is not None
            function = known[type(event)] = found
        return function(event)

    return key


_COUNTED = (models.AutoField, models.BigAutoField, models.SmallAutoField)


def _primary_key(model: type[models.Model]) -> Sequence[models.Field[Any, Any]]:
    options: Any = model._meta  # the stubs do not know composite keys
    return list(options.pk_fields)


def _field(cls: type[MultiProjection[Any]], name: str) -> models.Field[Any, Any]:
    try:
        field = cls.model._meta.get_field(name)
    except FieldDoesNotExist:
        field = None
    if not isinstance(field, models.Field) or not field.concrete:
        raise DefinitionError(
            f"{cls.__qualname__} names {name!r} in key_field, but {cls.model.__qualname__} has no such field"
        )
    return field


def _are_unique(model: type[models.Model], names: set[str]) -> bool:
    options = model._meta
    together = [*options.unique_together, *(one.fields for one in options.total_unique_constraints)]
    together.append([field.name for field in _primary_key(model)])
    together += [[field.name] for field in options.concrete_fields if field.unique]
    return any(names == set(one) for one in together)
