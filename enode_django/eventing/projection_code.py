"""Fingerprints of projections' code, on which their rows depend as they do on the events."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from typing import Any

from enode_django.eventing.base_projections import BaseProjection, models_of
from enode_django.eventing.marks import Followed
from enode_django.eventing.subscribers import Subscriber
from enode_django.repository.codetexts import CodeReader, digest
from enode_django.serialization.registry import types
from enode_django.serialization.upcasting import upcasters

logger = logging.getLogger("enode_django.subscribers")


def fingerprint_of(projection: BaseProjection) -> str:
    """Return ``<tag>:<32 hexadecimal digits>``, as `codetexts.digest` does.

    It covers the handlers, what they use of the same package (methods, functions, constants, methods of the events and
    of the models), and the upcasters of the events. It ignores comments and the paths of files.
    """
    cls = type(projection)
    methods = sorted(cls._enode_methods.items(), key=lambda item: types.stable_name_of(item[0]))
    reader = CodeReader([cls, *models_of(projection), *(event for event, _ in methods)])
    return digest(_description(cls, methods, reader), reader)


def known_fingerprint(subscriber: Subscriber) -> str | None:
    """Return the `fingerprint_of` a projection, which a new subscription keeps; None for other subscribers, and if the
    code cannot be read."""
    if not isinstance(subscriber, BaseProjection):
        return None
    try:
        return fingerprint_of(subscriber)
    except Exception:
        # A worker must not end because it cannot read application code.
        logger.exception("the code of %s cannot be read: W030 will not say when it changes", subscriber)
        return None


def is_other_code(one: str, other: str) -> bool:
    """Return True if two fingerprints stand for different code. Those with different tags cannot be compared.

    >>> is_other_code("source:ab", "source:cd"), is_other_code("cpython-311:ab", "cpython-312:cd")
    (True, False)
    """
    return one != other and one.partition(":")[0] == other.partition(":")[0]


def _description(cls: type[Any], methods: Sequence[tuple[Followed, str]], reader: CodeReader) -> Iterator[str]:
    for event, method in methods:
        yield f"event {types.stable_name_of(event)} {event.schema_version} {method}"
        if method in cls._enode_creators:
            yield "creates"
        if method in cls._enode_keys:
            yield f"key {reader.value(cls._enode_keys[method])}"
        yield from reader.methods_named(cls, method)
        for version, upcaster in upcasters.of(event).items():
            yield f"from {version} {reader.value(upcaster)}"
    if cls._enode_has_keys:
        yield f"{cls.key_field!r} {reader.value(cls._enode_key)}"
