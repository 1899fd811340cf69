"""Decide when the state of an aggregate is kept, as ``snapshot_every`` of its class says."""

from __future__ import annotations

from collections.abc import Iterator

from enode_django.domain.aggregate import AggregateRoot
from enode_django.domain.declarations import declared


def is_on(cls: type[AggregateRoot]) -> bool:
    return bool(cls.snapshot_every)


def is_due(cls: type[AggregateRoot], previous: int, version: int) -> bool:
    """Return True if an aggregate at ``version`` is due for a snapshot, the last one being of ``previous`` (0: none).

    Raises what the class's own function raises.
    """
    every = cls.snapshot_every
    if not every or version <= previous:
        return False
    return bool(every(previous, version)) if callable(every) else version - previous >= every


def lowest() -> int | None:
    """Return the lowest version at which an aggregate of any class may have a snapshot, or None if none may."""
    return min(_lowest_versions(), default=None)


def _lowest_versions() -> Iterator[int]:
    for cls in declared():
        if issubclass(cls, AggregateRoot) and cls is not AggregateRoot and is_on(cls):
            yield 1 if callable(cls.snapshot_every) else cls.snapshot_every or 1
