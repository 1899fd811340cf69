"""System checks of what the project's code declares. ``docs/reference/checks.md`` has every id."""

from __future__ import annotations

import dataclasses
import inspect
import typing
from collections.abc import Iterator, Sequence
from collections.abc import Set as AbstractSet
from datetime import timedelta
from enum import Enum
from itertools import chain
from typing import Any

from django.apps import AppConfig
from django.core.checks import CheckMessage, Error, Warning

from enode_django.checks.misspelt import misspelt_settings
from enode_django.domain.aggregate import AggregateRoot, applied_events
from enode_django.domain.declarations import declared, schema_of
from enode_django.domain.handlers import command_handlers
from enode_django.domain.messages import Command, DomainEvent
from enode_django.domain.unique import unknown_fields
from enode_django.exceptions import DefinitionError
from enode_django.serialization.registry import Kind, types


def check_definitions(app_configs: Sequence[AppConfig] | None, **_: Any) -> list[CheckMessage]:
    return [
        *_handlers(),
        *_unhandled(),
        *_names(),
        *_fields(),
        *_results(),
        *(message for cls in declared() for message in misspelt_settings(cls)),
        *_appliers(),
        *_shared_ids(),
        *_uniques(),
    ]


def _handlers() -> Iterator[CheckMessage]:
    for command, names in command_handlers.duplicates():
        yield Error(
            f"{command.__qualname__} has several handlers: {names}.",
            hint="Keep one.",
            obj=command,
            id="enode_django.E010",
        )
    for stray in sorted(command_handlers.strays, key=lambda stray: stray.name):
        yield Error(
            f"{stray.name}() is marked with @command_handler in a class that is not an aggregate root.",
            hint="Derive the class from AggregateRoot, or move the function out of it. If it is derived from it, a "
            "decorator above the mark hides it: let that use functools.wraps, or write it below.",
            id="enode_django.E150",
        )


def _unhandled() -> Iterator[CheckMessage]:
    """Warn about commands without a handler in apps of handled commands. Commands of other apps may be handled in
    another project."""
    marked = chain.from_iterable(stray.commands for stray in command_handlers.strays)  # E150 speaks of these
    handled = (*command_handlers.commands(), *marked)
    commands = _named(Command)
    apps = {_app(name) for cls, name in commands.items() if issubclass(cls, handled)}
    for command, name in commands.items():
        is_base = any(issubclass(one, command) for one in handled)
        if _app(name) in apps and not is_base and not issubclass(command, handled):
            yield Warning(
                f"{command.__module__}.{command.__qualname__} has no handler: sent, it would become a dead letter.",
                hint="Mark a method of its aggregate, or a function, with @command_handler, and annotate its parameter "
                f"with {command.__name__}; or remove the class.",
                obj=command,
                id="enode_django.W175",
            )


def _names() -> Iterator[CheckMessage]:
    for name, one, other in types.duplicates():
        yield Error(
            f"{one.__module__}.{one.__qualname__} and {other.__module__}.{other.__qualname__} are both named {name!r}.",
            hint="Give one of them another type_name in its body, or take the alias away.",
            id="enode_django.E011",
        )
    for cls in types.unnamed():
        yield Warning(
            f"{cls.__module__}.{cls.__qualname__} belongs to no installed app: it cannot be sent or stored.",
            hint='Give it a type_name = "label.Name" in its body, or install its app.',
            id="enode_django.W012",
        )


def _fields() -> Iterator[CheckMessage]:
    for cls in declared():
        try:
            schema_of(cls)
        except DefinitionError as error:
            yield Error(f"{cls.__module__}: {error}", obj=cls, id="enode_django.E013")


def _results() -> Iterator[CheckMessage]:
    for command in _named(Command):
        for result in _declared_results(command):
            if not _can_be_sent(result):
                yield Warning(
                    f"{command.__module__}.{command.__qualname__} declares the result {result!r}, but no handler can "
                    "return that: a command's result is a plain value, or a list or dict of them.",
                    hint="Let the handler return what it consists of, such as a number or a dict.",
                    obj=command,
                    id="enode_django.W188",
                )


def _declared_results(command: type[Command]) -> Iterator[Any]:
    for base in vars(command).get("__orig_bases__", ()):
        if typing.get_origin(base) is Command:
            yield from typing.get_args(base)


def _can_be_sent(result: Any) -> bool:
    """Return False for an annotation that certainly stands for a value that is not plain."""
    if arguments := typing.get_args(result):
        kind = typing.get_origin(result)
        return kind not in (set, frozenset) and all(map(_can_be_sent, arguments))
    if not isinstance(result, type):
        return True
    is_enum = issubclass(result, Enum) and not issubclass(result, str | int)
    return not (is_enum or dataclasses.is_dataclass(result) or issubclass(result, set | frozenset | timedelta))


def _appliers() -> Iterator[CheckMessage]:
    """Warn about events without an applier in apps that have aggregates. Events of other apps may be applied in another
    project."""
    aggregates = _named(AggregateRoot)
    applied = {event for cls in aggregates for event in applied_events(cls)}
    for event, name in _named(DomainEvent).items():
        candidates = sorted(cls.__qualname__ for cls, known in aggregates.items() if _app(known) == _app(name))
        if candidates and not _is_applied(event, applied):
            yield Warning(
                f"{event.__module__}.{event.__qualname__} is applied by no aggregate: apply() would refuse it, and no "
                f"aggregate that has such an event could be loaded.",
                hint=f"Mark a method of {' or '.join(candidates)} with @applies, and annotate its parameter with "
                f"{event.__name__}, or say applied = False in the body of the event.",
                obj=event,
                id="enode_django.W028",
            )


def _shared_ids() -> Iterator[CheckMessage]:
    """Warn about classes of aggregates that can have the same ids, with one warning for all."""
    prefixes = {name: cls.id_prefix for cls, name in _named(AggregateRoot).items() if applied_events(cls)}
    shared = sorted(
        name
        for name, prefix in prefixes.items()
        if any(prefix.startswith(p) or p.startswith(prefix) for n, p in prefixes.items() if n != name)
    )
    if shared:
        yield Warning(
            f"Aggregates of {', '.join(shared)} can have the same ids, but an id belongs to one aggregate: if one "
            "class has used it, no other class can.",
            hint='Give each an id_prefix, such as id_prefix = "account-". If ids are UUIDs, or differ for other '
            "reasons, silence it: SILENCED_SYSTEM_CHECKS = ['enode_django.W171'].",
            id="enode_django.W171",
        )


def _uniques() -> Iterator[CheckMessage]:
    for cls, name in _named(AggregateRoot).items():
        try:
            known = schema_of(cls).names
        except DefinitionError:  # E013 says so
            continue
        for unique, field in unknown_fields(cls._enode_unique, known):
            yield Error(
                f"{name} declares {unique!r}, but has no field {field!r}.",
                hint=f"It has {', '.join(known) or 'none'}.",
                obj=cls,
                id="enode_django.E270",
            )
        for unique in cls._enode_unique:
            if unique.normalize is not None and not callable(unique.normalize):
                yield Error(
                    f"{name} declares {unique!r} with normalize = {unique.normalize!r}, which cannot be called.",
                    hint="Give it a function, such as str.casefold, or leave it out.",
                    obj=cls,
                    id="enode_django.E271",
                )


def _named(kind: type[Kind]) -> dict[type[Kind], str]:
    """Return the project's registered classes with their present names. If a reloaded module has defined a class again,
    only the new one is returned."""
    classes = {types.class_of(kind, name) for name in types.names_of(kind)}
    return {cls: types.name_of(cls) for cls in classes if not cls.__module__.startswith("enode_django.")}


def _app(name: str) -> str:
    return name.partition(".")[0]


def _is_applied(event: type[DomainEvent], applied: AbstractSet[type[DomainEvent]]) -> bool:
    """Return True if the event, one of its bases, or an event derived from it is applied, or if its own body has
    ``applied = False``."""
    given = event.__dict__.get("applied", True) is False and "applied" not in inspect.get_annotations(event)
    return (
        given
        or any(base in applied for base in event.__mro__)
        or any(_is_applied(derived, applied) for derived in event.__subclasses__())
    )
