"""Fingerprints of subscribers' code. They change with the code, and ignore comments and the paths of files."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache

from enode_django.eventing.base_projections import BaseProjection, models_of
from enode_django.eventing.event_handlers import EventHandlerGroup
from enode_django.eventing.marks import Followed
from enode_django.eventing.multi_projections import MultiProjection
from enode_django.eventing.process_managers import has_state
from enode_django.eventing.processes import state_type_of
from enode_django.eventing.subscribers import Subscriber, followed_by
from enode_django.repository.codetexts import CodeReader, digest
from enode_django.serialization.registry import types
from enode_django.serialization.upcasting import upcasters

logger = logging.getLogger("enode_django.subscribers")


@lru_cache(maxsize=1_000)
def code_fingerprint(subscriber: Subscriber) -> str:
    """Return ``<tag>:<32 hexadecimal digits>``, as `codetexts.digest` does; computed once in a process, when all apps
    are loaded. Failed events are tried again when it changes.

    It covers what `handlers_fingerprint` does, and the types that the process knows. It is empty if the code cannot be
    read.
    """
    return _fingerprint(subscriber, _description, "what it parks is not tried again when it changes")


@lru_cache(maxsize=1_000)
def handlers_fingerprint(subscriber: Subscriber) -> str:
    """Return the fingerprint, like `code_fingerprint`, of the code on which the effects of a subscriber depend.

    It covers the handlers with their marks and what they use of the same package, the state of a process manager, and
    the upcasters of the types that they handle.
    """
    return _fingerprint(subscriber, _description_of_handlers, "it is taken for unchanged")


_Describe = Callable[[Subscriber, Sequence[Followed], CodeReader], Iterator[str]]


def _fingerprint(subscriber: Subscriber, describe: _Describe, consequence: str) -> str:
    try:
        followed = sorted(followed_by(subscriber), key=types.stable_name_of)
        models = models_of(subscriber) if isinstance(subscriber, BaseProjection) else ()
        reader = CodeReader([type(subscriber), *models, *followed])
        return digest(describe(subscriber, followed, reader), reader)
    except Exception:
        # A worker must not end because it cannot read application code.
        logger.exception("the code of %s cannot be read: %s", subscriber, consequence)
        return ""


def _description(subscriber: Subscriber, followed: Sequence[Followed], reader: CodeReader) -> Iterator[str]:
    yield from _description_of_handlers(subscriber, followed, reader)
    yield from sorted(f"knows {name} {getattr(cls, 'schema_version', 0)}" for cls, name in types.names().items())


def _description_of_handlers(subscriber: Subscriber, followed: Sequence[Followed], reader: CodeReader) -> Iterator[str]:
    name_of = types.stable_name_of
    for cls in followed:
        yield f"handles {name_of(cls)} {cls.schema_version}"
        yield from _upcasters(cls, reader)
    if isinstance(subscriber, EventHandlerGroup):
        for handler in sorted(
            subscriber.handlers, key=lambda one: (name_of(one.followed), one.priority, one.full_name)
        ):
            yield f"{name_of(handler.followed)} {handler.priority} {handler.full_name} {reader.value(handler.function)}"
    for followed_class, method in _methods(type(subscriber)):
        yield f"{name_of(followed_class)} {method}"
        if method in subscriber._enode_creators:
            yield "creates"
        if mark := subscriber._enode_marks.get(method):
            yield f"marked {reader.value(mark)}"
        yield from reader.methods_named(type(subscriber), method)
    if has_state(subscriber):
        yield from reader.own_methods(state_type_of(subscriber).cls)
    if subscriber._enode_has_keys or subscriber._enode_key is not None:
        yield f"key {reader.value(subscriber._enode_key)}"


def rows_fingerprint(projection: BaseProjection) -> str:
    """Return the fingerprint, like `code_fingerprint`, of the code on which a projection's rows depend.

    It covers the handlers, what they use of the same package (methods, functions, constants, methods of the events and
    of the models), and the upcasters of the events.
    """
    cls = type(projection)
    reader = CodeReader([cls, *models_of(projection), *(event for event, _ in _methods(cls))])
    return digest(_description_of_rows(cls, reader), reader)


def known_rows_fingerprint(subscriber: Subscriber) -> str | None:
    """Return the `rows_fingerprint` of a projection, which a new subscription keeps; None for other subscribers, and if
    the code cannot be read."""
    if not isinstance(subscriber, BaseProjection):
        return None
    try:
        return rows_fingerprint(subscriber)
    except Exception:
        # A worker must not end because it cannot read application code.
        logger.exception("the code of %s cannot be read: W030 will not say when it changes", subscriber)
        return None


def _description_of_rows(cls: type[BaseProjection], reader: CodeReader) -> Iterator[str]:
    for event, method in _methods(cls):
        yield f"event {types.stable_name_of(event)} {event.schema_version} {method}"
        if method in cls._enode_creators:
            yield "creates"
        if method in cls._enode_keys:
            yield f"key {reader.value(cls._enode_keys[method])}"
        yield from reader.methods_named(cls, method)
        yield from _upcasters(event, reader)
    if issubclass(cls, MultiProjection):
        yield f"{cls.key_field!r} {reader.value(cls._enode_key)}"


def _methods(cls: type[Subscriber]) -> Sequence[tuple[Followed, str]]:
    return sorted(cls._enode_methods.items(), key=lambda item: types.stable_name_of(item[0]))


def _upcasters(cls: Followed, reader: CodeReader) -> Iterator[str]:
    for version, upcaster in upcasters.of(cls).items():
        yield f"from {version} {reader.value(upcaster)}"


def is_other_code(one: str, other: str) -> bool:
    """Return True if two fingerprints stand for different code. Those with different tags cannot be compared.

    >>> is_other_code("source:ab", "source:cd"), is_other_code("cpython-311:ab", "cpython-312:cd")
    (True, False)
    """
    return one != other and one.partition(":")[0] == other.partition(":")[0]
