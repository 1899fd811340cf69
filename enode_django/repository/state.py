"""Conversions between aggregates and their stored states.

A payload is a digest, then msgpack of ``[command id, plain state]``. The command is the one that made the version: it
tells a load whether the store still has the history that the state was made from. The digest also covers the row's id,
type, version and fingerprint.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from functools import cache
from hashlib import blake2b
from typing import Any, NamedTuple

from enode_django.domain.aggregate import AggregateRoot, read_only, restored
from enode_django.domain.declarations import schema_of
from enode_django.exceptions import InvalidField, InvalidState, MalformedMessage, UnusableSnapshot, shown
from enode_django.repository.fingerprint import fingerprint_of
from enode_django.repository.store import Snapshot
from enode_django.serialization.plain import pack, unpack
from enode_django.serialization.registry import types

_DIGEST = 16
_NOTHING = object()
"""Stands for an attribute that is not set."""


class ReadSnapshot(NamedTuple):
    """A snapshot with sound bytes that was made by this process's code. ``stored`` is what was read.

    ``is_shared`` says that it is a shared state: then ``stored.created_at`` is that of the stream it ends with.
    """

    cls: type[AggregateRoot]
    stored: Snapshot
    command_id: str
    plain: Any
    is_shared: bool = False

    @property
    def version(self) -> int:
        return self.stored.version

    def rebuild(self) -> AggregateRoot:
        """Return the aggregate at that version. Raises `UnusableSnapshot`: hooks and types are application code."""
        id = self.stored.aggregate_root_id
        try:
            return restored(self.cls, id, self.version, self.plain)
        except Exception as error:
            raise UnusableSnapshot(f"its state cannot be restored: {type(error).__name__}: {shown(error)}") from error


def snapshot_of(aggregate: AggregateRoot, command_id: str) -> Snapshot:
    """Return a snapshot of the aggregate. ``command_id`` is that of the command which made its version.

    Raises `InvalidState` for a state that would not be restored unchanged.
    """
    cls, id, version = type(aggregate), aggregate.id, aggregate.version
    try:
        plain = aggregate.snapshot()
        body = pack((command_id, plain))
        copy = restored(cls, id, version, unpack(body)[1])
    except Exception as error:
        raise InvalidState(f"{cls.__qualname__} {id!r} at version {version}: {shown(error)}") from error
    _compare(aggregate, copy)
    name, fingerprint = types.name_of(cls), fingerprint_of(cls)
    payload = _digest(id, name, version, fingerprint, body) + body
    return Snapshot(id, name, version, fingerprint, payload, datetime.now(UTC))


def read_snapshot(cls: type[AggregateRoot], stored: Snapshot) -> ReadSnapshot:
    """Read a snapshot. Raises `UnusableSnapshot` if its bytes are not as they were written."""
    digest, body = stored.payload[:_DIGEST], stored.payload[_DIGEST:]
    if digest != _digest(*stored[:4], body):
        raise UnusableSnapshot("its bytes are not those that were written")
    try:
        command_id, plain = unpack(body)
    except (MalformedMessage, InvalidField, ValueError, TypeError) as error:
        raise UnusableSnapshot(f"it has another shape than ours: {shown(error)}") from error
    return ReadSnapshot(cls, stored, command_id, plain)


def _digest(id: str, type_name: str, version: int, fingerprint: str, body: bytes) -> bytes:
    return blake2b(pack((id, type_name, version, fingerprint)) + body, digest_size=_DIGEST).digest()


def differences(one: AggregateRoot, other: AggregateRoot) -> Mapping[str, tuple[Any, Any]]:
    """Return what differs in the state of two aggregates of a class: both values by name."""
    if type(one).snapshot is not AggregateRoot.snapshot:
        plain, others = one.snapshot(), other.snapshot()
        return {} if is_same(plain, others) else {"snapshot()": (plain, others)}
    found = {}
    for name in schema_of(type(one)).names:
        mine, theirs = getattr(one, name, _NOTHING), getattr(other, name, _NOTHING)
        if mine is not theirs and not is_same(mine, theirs):
            found[name] = (_or_none(mine), _or_none(theirs))
    return found


def _or_none(value: Any) -> Any:
    return None if value is _NOTHING else value


@cache
def _own_names() -> frozenset[str]:
    """Return the names of the framework's attributes of aggregates."""
    return frozenset(vars(read_only(AggregateRoot("any"))))


def _compare(aggregate: AggregateRoot, copy: AggregateRoot) -> None:
    cls = type(aggregate)
    if cls.snapshot is not AggregateRoot.snapshot:
        return  # the hooks choose the attributes to leave out
    undeclared = sorted(vars(aggregate).keys() - schema_of(cls).types.keys() - _own_names())
    for name in undeclared:
        # A value that the constructor sets is restored, if it is equal in every instance.
        if name not in vars(copy) or not is_same(vars(aggregate)[name], vars(copy)[name]):
            error = InvalidState(
                f"{cls.__qualname__} keeps state in {name!r}, which is not a declared field: declare it, define "
                "snapshot() and restore(), or say snapshot_every = None"
            )
            error.concerns_class = True
            raise error
    for name, (value, comes_back) in differences(aggregate, copy).items():
        raise InvalidState(
            f"{cls.__qualname__}.{name} of {aggregate.id!r} is {shown(value)} ({type(value).__name__}) and would come "
            f"back as {shown(comes_back)} ({type(comes_back).__name__}); let the field's type say what it holds"
        )


def is_same(one: Any, other: Any) -> bool:
    """Return True if the values are equal and of the same types, at any depth of lists, tuples and dicts."""
    if type(one) is not type(other):
        return False
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(is_same, one, other))
    if isinstance(one, dict):
        return len(one) == len(other) and all(
            is_same(key, key_there) and is_same(value, value_there)
            for (key, value), (key_there, value_there) in zip(one.items(), other.items(), strict=True)
        )
    return bool(one == other)
