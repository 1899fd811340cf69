"""The base of aggregates, messages and refusals: declared fields, and a list of all classes.

Every such class is kept in the order of definition. The type registry (`enode_django.serialization.registry`) names
them later, when Django knows its apps.
"""

from __future__ import annotations

import inspect
from typing import Any, ClassVar

from enode_django.domain.fields import Schema
from enode_django.exceptions import DefinitionError, shown

_declared: list[type[Declared]] = []


def declared(since: int = 0) -> list[type[Declared]]:
    """The classes declared from index ``since`` on."""
    return _declared[since:]


class Declared:
    """``_reserved`` are names that no subclass may declare as a field, ``_envelope`` fields that are not stored."""

    _reserved: ClassVar[frozenset[str]] = frozenset()
    _envelope: ClassVar[frozenset[str]] = frozenset()
    _schema: ClassVar[Schema | None] = None

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        _check_private_names(cls)
        taken = sorted((cls._reserved | {"aliases"}) & inspect.get_annotations(cls).keys())
        if taken:
            raise DefinitionError(f"{cls.__qualname__} declares the field {taken[0]!r}, which it has already")
        _check_aliases(cls)
        _check_schema_version(cls)
        cls._schema = None
        _declared.append(cls)

    @classmethod
    def schema(cls) -> Schema:
        """The declared fields, resolved at first use; raises `DefinitionError` naming what cannot be stored."""
        schema = cls.__dict__.get("_schema")
        if schema is None:
            schema = cls._schema = _resolve(cls)
        return schema


_PRIVATE = frozenset(
    {"_reserved", "_envelope", "_schema", "_appliers", "_initial", "_initial_state", "_id", "_version", "_uncommitted"}
    | {"_new_stamp", "_applier_of", "_stamp", "_index", "_plain", "_origin"}
)
"""Names that the base classes use."""


def _check_private_names(cls: type[Declared]) -> None:
    """A method that overrides one of ours by chance would break far away from here."""
    if cls.__module__.startswith("enode_django."):
        return
    taken = sorted(_PRIVATE & (vars(cls).keys() | inspect.get_annotations(cls).keys()))
    if taken:
        raise DefinitionError(
            f"{cls.__qualname__} defines {taken[0]!r}, a name that its base class uses; choose another"
        )


def aliases_of(cls: type) -> tuple[str, ...]:
    """The names that the class had before, the oldest first. A subclass has none of its base's."""
    return tuple(cls.__dict__.get("aliases", ()))


def _check_aliases(cls: type[Declared]) -> None:
    given = cls.__dict__.get("aliases", ())
    if not isinstance(given, tuple | list) or not all(isinstance(name, str) and name for name in given):
        raise DefinitionError(
            f"{cls.__qualname__} has aliases = {shown(given)}; "
            'give a tuple of the names that it had before: aliases = ("label.OldName",)'
        )


def _check_schema_version(cls: type[Declared]) -> None:
    version = cls.__dict__.get("schema_version", 1)
    if "schema_version" in cls._reserved and (type(version) is not int or version < 1):
        raise DefinitionError(f"{cls.__qualname__} has schema_version = {shown(version)}; use 1, 2, 3 …")


def _resolve(cls: type[Declared]) -> Schema:
    try:
        return Schema(cls, cls._envelope)
    except DefinitionError:
        raise
    except Exception as error:  # whatever evaluating an annotation raises
        raise DefinitionError(f"{cls.__qualname__}: an annotation cannot be resolved: {error}") from error
