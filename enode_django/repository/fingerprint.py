"""The fingerprint of the code that an aggregate's state depends on besides its events, as one short text.

A snapshot made by other code is not used. The fingerprint covers the declared fields with their types and defaults; the
events that are applied, with their fields, schema versions and upcasters; the appliers, the constructor and the hooks;
and what these use of the same package: methods, functions, value classes, constants. It is made of syntax trees, so
comments, docstrings, layout, places of files and the version of Python make no difference.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from hashlib import blake2b
from typing import Any, get_type_hints

from enode_django.domain.aggregate import AggregateRoot, applied_events
from enode_django.domain.declarations import schema_of
from enode_django.domain.defaults import MISSING
from enode_django.domain.messages import DomainEvent
from enode_django.repository.codetexts import SOURCE, CodeReader, digest
from enode_django.repository.typetexts import type_text, value_classes
from enode_django.serialization.registry import types
from enode_django.serialization.upcasting import upcasters

_HOOKS = ("__new__", "__init__", "__setattr__", "__getattr__", "__getattribute__", "snapshot", "restore")
_known: dict[type[AggregateRoot], str] = {}


def fingerprint_of(cls: type[AggregateRoot]) -> str:
    """Return 32 hexadecimal digits. They are computed once in a process, when all apps are loaded."""
    known = _known.get(cls)
    if known is None:
        known = _known[cls] = compute_fingerprint(cls)
    return known


def compute_fingerprint(cls: type[AggregateRoot]) -> str:
    """Compute the fingerprint. Raises `DefinitionError` if a field cannot be resolved."""
    events = sorted(_all_events(cls), key=types.stable_name_of)
    reader = CodeReader([cls, *events])
    tag, _, digits = digest(description(cls, events, reader), reader).partition(":")
    return digits if tag == SOURCE else blake2b(f"{tag}{digits}".encode(), digest_size=16).hexdigest()


def description(cls: type[AggregateRoot], events: Sequence[type[DomainEvent]], reader: CodeReader) -> Iterator[str]:
    """Yield the lines that the fingerprint is made of."""
    yield from _fields(cls, reader)
    for event in events:
        yield f"event {types.stable_name_of(event)} {event.schema_version}"
        yield from _fields(event, reader)
        yield from reader.own_methods(event)
        for version, upcaster in upcasters.of(event).items():
            yield f"from {version} {reader.value(upcaster)}"
    for method in sorted({*cls._enode_appliers.values(), *_HOOKS}):
        yield from reader.methods_named(cls, method)


def _all_events(cls: type[AggregateRoot]) -> set[type[DomainEvent]]:
    found: set[type[DomainEvent]] = set()
    waiting = list(applied_events(cls))
    while waiting:
        event = waiting.pop()
        if event not in found:
            found.add(event)
            waiting.extend(event.__subclasses__())
    return found


def _fields(cls: type[AggregateRoot] | type[DomainEvent], reader: CodeReader) -> Iterator[str]:
    schema = schema_of(cls)
    hints = get_type_hints(cls)
    for name in schema.names:
        default = schema.defaults[name]
        default = getattr(default, "make", default)
        shown = "" if default is MISSING else f" = {reader.value(default)}"
        yield f"field {name}: {type_text(hints[name])}{shown}"
        for value_class in value_classes(hints[name]):
            yield from reader.own_methods(value_class)


def forget(cls: Any) -> None:
    """Forget the fingerprint, for tests that change a class."""
    _known.pop(cls, None)
