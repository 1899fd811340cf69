"""The base of aggregates, messages and refusals: declared fields, and a list of all classes.

Classes are listed in the order of definition. The type registry (`enode_django.serialization.registry`) names them
later, when Django has loaded its apps.
"""

from __future__ import annotations

from typing import Any, ClassVar

from enode_django.domain.fields import Schema
from enode_django.domain.names import check_names, names_of
from enode_django.exceptions import DefinitionError, shown

_declared: list[type[Declared]] = []


def declared(since: int = 0) -> list[type[Declared]]:
    """Return the declared classes from index ``since`` on."""
    return _declared[since:]


class Declared:
    """A class with declared fields. The fields in ``_enode_envelope`` are not stored."""

    _enode_settings: ClassVar[frozenset[str]] = frozenset({"type_name", "aliases"})
    _enode_hooks: ClassVar[frozenset[str]] = frozenset()
    _enode_envelope: ClassVar[frozenset[str]] = frozenset()
    _enode_schema: ClassVar[Schema | None] = None

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        check_names(cls, Declared, has_fields=True)
        check_aliases(cls.__qualname__, cls.__dict__.get("aliases", ()))
        _check_schema_version(cls)
        cls._enode_schema = None
        super(cls, cls)._enode_complete()  # type: ignore[misc]  # it is for subclasses of its class
        _declared.append(cls)

    @classmethod
    def _enode_complete(cls) -> None:
        """Complete a subclass. If this raises, it is not declared."""


def schema_of(cls: type[Declared]) -> Schema:
    """Return the declared fields, resolved at first use. Raises `DefinitionError`, which names an unstorable field."""
    schema: Schema | None = cls.__dict__.get("_enode_schema")
    if schema is None:
        schema = cls._enode_schema = resolved_schema(cls, cls._enode_envelope)
    return schema


def plain_of(instance: Declared) -> dict[str, Any]:
    """Return the declared fields as plain values."""
    return (instance._enode_schema or schema_of(type(instance))).encode(instance.__dict__)


def aliases_of(cls: type) -> tuple[str, ...]:
    """Return the former names of the class, the oldest first. A subclass does not inherit them."""
    return tuple(cls.__dict__.get("aliases", ()))


def check_aliases(owner: str, given: object) -> None:
    """Raise `DefinitionError` if the aliases of ``owner`` are not a tuple or list of names."""
    if not isinstance(given, tuple | list) or not all(isinstance(name, str) and name for name in given):
        raise DefinitionError(
            f"{owner} has aliases = {shown(given)}; "
            'give a tuple of the names that it had before: aliases = ("label.OldName",)'
        )


def _check_schema_version(cls: type[Declared]) -> None:
    version = cls.__dict__.get("schema_version", 1)
    if "schema_version" in names_of(cls).settings and (type(version) is not int or version < 1):
        raise DefinitionError(f"{cls.__qualname__} has schema_version = {shown(version)}; use 1, 2, 3 …")


def resolved_schema(cls: type, without: frozenset[str] = frozenset()) -> Schema:
    """Return the fields of any class with annotations. Raises `DefinitionError`, which names an unstorable field."""
    try:
        return Schema(cls, without)
    except DefinitionError:
        raise
    except Exception as error:  # evaluating an annotation may raise anything
        raise DefinitionError(f"{cls.__qualname__}: an annotation cannot be resolved: {error}") from error
