"""Upcasters: functions that turn the stored fields of an older schema version into those of the next one.

They are chained up to the class's ``schema_version``. A step without an upcaster leaves the fields unchanged: when the
message is made, removed fields are left out and added ones get their default.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn, TypeVar

from enode_django.domain.messages import Command, DomainEvent
from enode_django.domain.refusals import DomainException
from enode_django.exceptions import DefinitionError, MalformedMessage, UnknownMessageType, shown

Fields = dict[str, Any]
Upcaster = Callable[[Fields], Fields]
AnyUpcaster = TypeVar("AnyUpcaster", bound=Upcaster)
Upcastable = type[Command] | type[DomainEvent] | type[DomainException]
Chain = Sequence[tuple[int, Upcaster]]


class UpcasterTable:
    """A table of upcasters by class and version. A subclass that inherits ``schema_version`` inherits the upcasters,
    too; a subclass with a version in its own body has only its own upcasters."""

    def __init__(self) -> None:
        self._own: dict[Upcastable, dict[int, Upcaster]] = {}
        self._chains: dict[tuple[Upcastable, int], Chain] = {}

    def add(self, cls: Upcastable, from_version: int, upcaster: Upcaster) -> None:
        """Add an upcaster; a reloaded module replaces its own. Raises `DefinitionError` if the step has another one."""
        steps = self._own.setdefault(cls, {})
        other = steps.get(from_version)
        if other is not None and _path(other) != _path(upcaster):
            raise DefinitionError(
                f"{cls.__qualname__} has two upcasters from version {from_version}: {_path(other)}() and "
                f"{_path(upcaster)}(); keep one"
            )
        steps[from_version] = upcaster
        self._chains.clear()

    def remove(self, cls: Upcastable, from_version: int) -> None:
        del self._own[cls][from_version]
        self._chains.clear()

    def of(self, cls: Upcastable) -> Mapping[int, Upcaster]:
        """Return the upcasters of a class by the version that they start from, in order."""
        found: dict[int, Upcaster] = {}
        for base in cls.__mro__:
            found = {**self._own.get(base, {}), **found}
            if "schema_version" in vars(base):
                break
        return dict(sorted(found.items()))

    def upcast(self, cls: Upcastable, name: str, version: int, fields: Fields) -> Fields:
        """Return ``fields`` in the class's schema version. ``fields`` is not changed: each upcaster gets a copy.

        Raises `UnknownMessageType` for a version newer than the class here, and `MalformedMessage` for an invalid
        version, and if an upcaster raises an error or does not return a dict.
        """
        if type(version) is not int or version < 1:
            raise MalformedMessage(f"{shown(name)} comes with schema version {shown(version)}, which is none")
        if version > cls.schema_version:
            raise UnknownMessageType(
                f"{name!r} comes with schema version {shown(version)}, known here is {cls.schema_version}; "
                "deploy newer code"
            )
        for from_version, upcaster in self._chain(cls, version):
            fields = _one_step(upcaster, fields, f"{name!r} of schema version {version}", from_version)
        return fields

    def _chain(self, cls: Upcastable, version: int) -> Chain:
        chain = self._chains.get((cls, version))
        if chain is None:
            steps = self.of(cls).items()
            chain = [step for step in steps if version <= step[0] < cls.schema_version]
            self._chains[cls, version] = chain
        return chain


def _one_step(upcaster: Upcaster, fields: Fields, described: str, from_version: int) -> Fields:
    try:
        returned = upcaster(_copied(fields))
    except Exception as error:
        _refuse(described, from_version, upcaster, f"raised {type(error).__name__}: {shown(error)}", error)
    if type(returned) is not dict:
        _refuse(described, from_version, upcaster, f"returned {shown(returned)}; it must return the dict of fields")
    return returned


def _refuse(
    described: str, from_version: int, upcaster: Upcaster, what: str, cause: Exception | None = None
) -> NoReturn:
    raise MalformedMessage(f"{described} cannot be read: {_path(upcaster)}(), from {from_version}, {what}") from cause


def _copied(value: Any) -> Any:
    """Return a copy of a plain value, which shares only immutable values with it."""
    if type(value) is dict:
        return {key: _copied(each) for key, each in value.items()}
    if type(value) is list:
        return [_copied(each) for each in value]
    return value


def _path(upcaster: Upcaster) -> str:
    return f"{upcaster.__module__}.{upcaster.__qualname__}"


upcasters = UpcasterTable()


def upcasts(*classes: Upcastable, from_version: int) -> Callable[[AnyUpcaster], AnyUpcaster]:
    """Mark a function ``dict -> dict`` as the upcaster of these events, refusals or commands: it takes the stored plain
    fields of that schema version and returns those of the next version.

    It gets a copy, which it may change and return. It must not depend on anything else: no clock, no queries. Raises
    `DefinitionError` for two upcasters of one step, and for a version that is not below the class's ``schema_version``.

    For example::

        class Weighed(DomainEvent):
            schema_version = 2
            grams: int

        @upcasts(Weighed, from_version=1)
        def weight_is_in_grams(fields: dict[str, Any]) -> dict[str, Any]:
            return {"grams": int(fields["kilograms"] * 1000)}
    """
    if not classes:
        raise DefinitionError("upcasts() names no class; write @upcasts(SomeEvent, from_version=1)")
    for cls in classes:
        _check(cls, from_version)

    def register(upcaster: AnyUpcaster) -> AnyUpcaster:
        if inspect.iscoroutinefunction(upcaster) or inspect.isgeneratorfunction(upcaster):
            raise DefinitionError(f"{upcaster.__qualname__} is async or yields; an upcaster is a plain function")
        for cls in classes:
            upcasters.add(cls, from_version, upcaster)
        return upcaster

    return register


def _check(cls: Upcastable, from_version: int) -> None:
    if not (isinstance(cls, type) and issubclass(cls, Command | DomainEvent | DomainException)):
        raise DefinitionError(f"upcasts() takes classes of events, domain exceptions or commands, got {cls!r}")
    if type(from_version) is not int or from_version < 1:
        raise DefinitionError(f"upcasts() got from_version={from_version!r}; versions are whole numbers from 1 on")
    if from_version >= cls.schema_version:
        raise DefinitionError(
            f"{cls.__qualname__} has schema_version = {cls.schema_version}, so nothing of version {from_version} is to "
            f"be upcast; raise it to {from_version + 1} or more"
        )
