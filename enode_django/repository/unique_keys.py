"""The unique values that an aggregate holds, as keys of the event store."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from datetime import date, datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

from enode_django.domain.aggregate import AggregateRoot
from enode_django.domain.declarations import declared
from enode_django.domain.unique import Unique
from enode_django.eventstore.unique_values import UniqueKey
from enode_django.exceptions import TypeNameError
from enode_django.serialization.registry import types

Values = Sequence[tuple[Any, ...]]
"""The values of the fields of each declaration of a class, as they are."""
_IMMUTABLE = frozenset({type(None), bool, int, float, str, bytes, Decimal, UUID, date, datetime})


def values_of(aggregate: AggregateRoot) -> Values:
    state = aggregate.__dict__
    kind = type(aggregate)
    return [
        tuple(state[field] if field in state else getattr(kind, field, None) for field in unique.fields)
        for unique in kind._enode_unique
    ]


def kept_values_of(aggregate: AggregateRoot) -> Values:
    """Return copies of the values, which stay as they are when the aggregate changes a mutable one in place."""
    return [tuple(map(_kept, some)) for some in values_of(aggregate)]


def _kept(value: Any) -> Any:
    return value if type(value) in _IMMUTABLE else deepcopy(value)


def keys_of(cls: type[AggregateRoot], values: Values) -> Mapping[UniqueKey, Unique]:
    """Return the keys of such values. Raises `TypeNameError`, and as `Unique.digest_of` does."""
    keys = {}
    for name, unique, some in zip(names_of(cls), cls._enode_unique, values, strict=True):
        digest = unique.digest_of(some)
        if digest is not None:
            keys[UniqueKey(name, digest)] = unique
    return keys


_names: dict[type[AggregateRoot], Sequence[str]] = {}


def names_of(cls: type[AggregateRoot]) -> Sequence[str]:
    """Return the name of each declaration of a class: its own, or that of the class that declares it with its fields.
    Raises `TypeNameError`."""
    names = _names.get(cls)
    if names is None:
        bases = [base for base in cls.__mro__ if issubclass(base, AggregateRoot) and base.unique is cls.unique]
        declaring = types.first_name_of(bases[-1])
        names = [unique.name or f"{declaring}:{','.join(unique.fields)}" for unique in cls._enode_unique]
        _names[cls] = names
    return names


def declaring_classes() -> Sequence[type[AggregateRoot]]:
    """Return the classes with unique fields that have a name."""
    classes = []
    for cls in declared():
        if issubclass(cls, AggregateRoot) and cls._enode_unique:
            try:
                types.name_of(cls)
            except TypeNameError:  # the system check says so
                continue
            classes.append(cls)
    return classes


def unique_named(name: str) -> Unique | None:
    """Return the declaration of this name; None if the code has it no more."""
    named = (pair for cls in declaring_classes() for pair in zip(names_of(cls), cls._enode_unique, strict=True))
    return next((unique for known, unique in named if known == name), None)
