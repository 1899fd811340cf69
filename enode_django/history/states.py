"""The state of an aggregate at any of its versions, by replay through its class."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from copy import copy
from typing import Any, NamedTuple

from enode_django.domain.aggregate import AggregateRoot
from enode_django.domain.declarations import schema_of
from enode_django.eventstore.base import EventStore
from enode_django.eventstore.limits import holds
from enode_django.exceptions import AggregateNotFound, EnodeError, HistoryTooLong, InvalidField, InvalidState, shown
from enode_django.history.differences import Change, differences
from enode_django.repository.loading import AggregateLoader, Begin
from enode_django.repository.reading import SnapshotReader
from enode_django.repository.state import is_same
from enode_django.repository.store import SnapshotStore
from enode_django.runtime import current_store, make_snapshots
from enode_django.serialization.registry import types

MOST_REPLAYED = 20_000
"""The most streams that a request should replay for a state. They take some tenths of a second."""


class State(NamedTuple):
    """The state of an aggregate at a version. ``fields`` are the plain values of a snapshot. If a class's own
    ``snapshot()`` does not return a map, its result is the only field, named ``snapshot()``."""

    aggregate_root_type: str
    aggregate_root_id: str
    version: int
    fields: Mapping[str, Any]


def state_at(aggregate_root_id: str, version: int | None = None, *, most: int | None = None) -> State:
    """Return the state at a version, by default the newest one. The replay begins with the snapshot, if that is not
    later. Changes nothing: an unusable snapshot is kept.

    Raises `AggregateNotFound` for a version that is not stored, `UnknownMessageType` if the class of the aggregate or
    of an event is missing, `BrokenHistory` or `InvalidState` if the class cannot make a state of the events, and
    `HistoryTooLong` if more than ``most`` streams would be replayed.

    For example::

        execute_command(OpenAccount("ada", owner="Ada"))
        execute_command(Deposit("ada", amount=Decimal(5)))
        assert state_at("ada").fields["balance"] == 5
        assert state_at("ada", 1).fields["balance"] == 0
    """
    aggregate = loaded(current_store(), aggregate_root_id, version, most=most)
    return State(types.name_of(type(aggregate)), aggregate_root_id, aggregate.version, fields_of(aggregate))


def loaded(
    store: EventStore, aggregate_root_id: str, version: int | None = None, *, most: int | None = None
) -> AggregateRoot:
    """Return the aggregate at a version. Raises as `state_at` does."""
    head = head_of(store, aggregate_root_id)
    version = head if version is None else version
    if type(version) is not int or not 1 <= version <= head:
        raise AggregateNotFound(f"{aggregate_root_id!r} has no version {shown(version)}; it has 1 to {head}")
    snapshots = make_snapshots(store)
    if most is not None:
        _check_length(aggregate_root_id, version - _start(snapshots, aggregate_root_id, version), most)
    aggregate = AggregateLoader(store, snapshots, only_reads=True).load(
        aggregate_root_id, until=version, begin=Begin.SNAPSHOT
    )
    if aggregate is None or aggregate.version != version:
        raise AggregateNotFound(f"{aggregate_root_id!r} has no version {version!r} any more")
    return aggregate


def difference(one: State, other: State) -> Sequence[Change]:
    """Return the changes that turn the first state into the second. They may be of different aggregates. The same items
    of a set in another order are no change, nor are those that the sets at a path have in common, unless the class has
    a ``snapshot()`` of its own. States of an unknown type are compared by their values.

    For example::

        execute_command(OpenAccount("ada", owner="Ada"))
        execute_command(Deposit("ada", amount=Decimal(5)))
        (change,) = difference(state_at("ada", 1), state_at("ada"))
        assert (change.path, change.before, change.after) == (("balance",), 0, 5)
    """
    name = one.aggregate_root_type
    if name != other.aggregate_root_type or types.find(AggregateRoot, name) is None:
        return list(differences(dict(one.fields), dict(other.fields)))
    return changes_of(types.class_of(AggregateRoot, name), one.fields, other.fields)


def changes_of(cls: type[AggregateRoot], before: Mapping[str, Any], after: Mapping[str, Any]) -> list[Change]:
    """Return the changes of plain values of the class's fields, like `difference`."""
    earlier, later = dict(before), dict(after)
    for name in before.keys() & after.keys():
        if before[name] != after[name]:
            earlier[name], later[name] = _in_one_order(cls, name, before[name], after[name])
    return list(differences(earlier, later))


def _in_one_order(cls: type[AggregateRoot], name: str, one: Any, other: Any) -> tuple[Any, Any]:
    """Return two plain values of a field as they can be compared by index: each set has its own order."""
    kind = schema_of(cls).types.get(name)
    if kind is None or cls.snapshot is not AggregateRoot.snapshot:
        return one, other
    try:
        values = kind.decode(one), kind.decode(other)
    except InvalidField:
        return one, other
    return _paired(one, other, *values)


def _paired(one: Any, other: Any, value: Any, other_value: Any) -> tuple[Any, Any]:
    """Return two plain values as `_in_one_order` does; the ``value`` of each tells its sets from its lists."""
    if _sorted(one) == _sorted(other) and is_same(value, other_value):
        return other, other
    if isinstance(value, set | frozenset) and isinstance(other_value, set | frozenset):
        common = {*map(repr, one)} & {*map(repr, other)}
        return _common_first(one, common), _common_first(other, common)
    parts, other_parts = _parts(one, value), _parts(other, other_value)
    mine, theirs = copy(one), copy(other)
    for key in parts.keys() & other_parts.keys():
        mine[key], theirs[key] = _paired(one[key], other[key], parts[key], other_parts[key])
    return mine, theirs


def _parts(plain: Any, value: Any) -> Mapping[Any, Any]:
    """Return the parts of a value by their keys or indices in the plain value."""
    if isinstance(plain, list):
        return dict(enumerate(value)) if isinstance(value, list | tuple) else {}
    if not isinstance(plain, dict):
        return {}
    if isinstance(value, dict):
        return dict(zip(plain, value.values(), strict=True)) if len(value) == len(plain) else {}
    return {name: getattr(value, name) for name in plain if hasattr(value, name)}


def _common_first(items: Sequence[Any], common: Collection[str]) -> list[Any]:
    """Return the items in the order of their texts, those first whose text is in ``common``."""
    return sorted(items, key=lambda item: (repr(item) not in common, repr(item)))


def _sorted(plain: Any) -> Any:
    """Return a plain value with all its lists sorted."""
    if isinstance(plain, dict):
        return {key: _sorted(value) for key, value in plain.items()}
    return sorted(map(_sorted, plain), key=repr) if isinstance(plain, list) else plain


def head_of(store: EventStore, aggregate_root_id: str) -> int:
    """Return the newest version. Raises `AggregateNotFound`."""
    head = store.heads([aggregate_root_id]).get(aggregate_root_id) if holds(aggregate_root_id) else None
    if head is None:
        raise AggregateNotFound(f"nothing is stored of an aggregate {shown(aggregate_root_id)}")
    return head


def _start(snapshots: SnapshotStore | None, id: str, version: int) -> int:
    snapshot = SnapshotReader(snapshots, only_reads=True).find([id]).get(id) if snapshots is not None else None
    return snapshot.version if snapshot is not None and snapshot.version <= version else 0


def _check_length(id: str, length: int, most: int) -> None:
    if length > most:
        raise HistoryTooLong(
            f"{length} streams of {id!r} would have to be replayed, and {most} is the most; "
            "ask for a version that comes soon after the newest snapshot, or replay it in a shell with state_at"
        )


def fields_of(aggregate: AggregateRoot) -> Mapping[str, Any]:
    """Return the fields of `State`. Raises `InvalidState`."""
    try:
        plain = aggregate.snapshot()
    except EnodeError:
        raise
    except Exception as error:  # a hook is application code
        raise InvalidState(f"{type(aggregate).__qualname__} {aggregate.id!r}: {shown(error)}") from error
    return named(plain)


def named(plain: Any) -> Mapping[str, Any]:
    """Return the result of ``snapshot()`` as the fields of `State`."""
    return plain if isinstance(plain, dict) else {"snapshot()": plain}
