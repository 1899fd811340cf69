"""Aggregates of types that this process does not know: newer code has them, or no code has them.

They are not parked, unless a subscriber handles one of their events. They are passed over, without a checkpoint, and
the sweep notes the type with the position below which it has met none. A sweep by code that knows the type, and whose
subscriber follows it, begins there.

Their refusals are passed over in the same way, and so are those of commands whose aggregate does not exist, if their
class is unknown. The sweep notes that class: a subscriber may handle refusals of aggregates that it does not follow.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

from enode_django.databases import execute
from enode_django.domain.aggregate import AggregateRoot
from enode_django.domain.refusals import DomainException
from enode_django.eventing.checkpoints import SUBSCRIPTION
from enode_django.eventing.event_types import REFUSAL
from enode_django.eventing.pending import follows_refusal, is_own_crash
from enode_django.eventing.subscribers import Subscriber, event_handlers_of, follows, key_of, refusal_handlers_of
from enode_django.eventstore.base import EventStore, Settled, StreamRecord
from enode_django.eventstore.positions import Position
from enode_django.exceptions import MessageError, UnknownMessageType
from enode_django.serialization.codec import StoredRefusal, StoredStream, read_stored
from enode_django.serialization.registry import types

_LOADED_AT_ONCE = 100
"""Aggregates whose streams are read at once."""

_NOTED = f"SELECT passed_over::text FROM {SUBSCRIPTION} WHERE subscriber = %s AND shard = %s"
# An earlier note stays: it has the lower position.
_NOTE = f"""
    UPDATE {SUBSCRIPTION} SET passed_over = (
        SELECT jsonb_object_agg(name, jsonb_build_array(swept_generation, swept_position))
        FROM unnest(%b::text[]) AS name
    ) || passed_over
    WHERE subscriber = %s AND shard = %s
"""
_FORGET = f"UPDATE {SUBSCRIPTION} SET passed_over = passed_over - %b::text[] WHERE subscriber = %s AND shard = %s"


def is_known(aggregate_root_type: str) -> bool:
    """Return True if this process has the class of the aggregates."""
    return types.find(AggregateRoot, aggregate_root_type) is not None


def is_passed_over(subscriber: Subscriber, record: StreamRecord) -> bool:
    """Return True for a stream or refusal of an unknown type of aggregate, if it came without its events or the
    subscriber handles nothing of it that this process knows."""
    return not is_known(record.aggregate_root_type) and not (record.events and _handles_any(subscriber, record))


def _handles_any(subscriber: Subscriber, record: StreamRecord) -> bool:
    """Return True if the subscriber handles the refusal or one of the events. Unknown types do not count; unreadable
    records do, and crashes of the subscriber's own commands."""
    try:
        stored = read_stored(record.events)
    except MessageError:
        return True
    return any(_is_handled(subscriber, stored, name) for name in _names(stored)) or is_own_crash(subscriber, stored)


def _names(stored: StoredStream | StoredRefusal) -> Iterable[str]:
    return [stored.type_name] if isinstance(stored, StoredRefusal) else [event.type_name for event in stored.events]


def _is_handled(subscriber: Subscriber, stored: StoredStream | StoredRefusal, name: str) -> bool:
    look_up = refusal_handlers_of if isinstance(stored, StoredRefusal) else event_handlers_of
    try:
        return bool(look_up(subscriber, name))
    except UnknownMessageType:
        return False


def passed_over_among(
    subscriber: Subscriber, store: EventStore, heads: Mapping[str, tuple[str, int]], positions: Mapping[str, int]
) -> set[str]:
    """Return the aggregates with these heads that are passed over. Blocks on the store if a type is unknown."""
    unknown = [id for id, (type_name, _) in heads.items() if not is_known(type_name)]
    passed: set[str] = set()
    for begin in range(0, len(unknown), _LOADED_AT_ONCE):
        some = unknown[begin : begin + _LOADED_AT_ONCE]
        ranges = {id: (positions.get(id, 0), heads[id][1]) for id in some}
        found = store.load_ranges(ranges)
        handled = {id for id, records in found.items() if any(_handles_any(subscriber, one) for one in records)}
        passed.update(id for id in some if id not in handled)
    return passed


def unknown_types(subscriber: Subscriber, settled: Settled) -> set[str]:
    """Return the unknown types of aggregates in these rows, and the classes of refusals that are passed over."""
    heads = {type_name for type_name, _ in settled.heads.values()}
    passed = (one for one in settled.refusals if is_passed_over(subscriber, one) and follows_refusal(subscriber, one))
    return {name for name in heads if not is_known(name)} | set(map(_class_of, passed))


def _class_of(refusal: StreamRecord) -> str:
    """Return the name under which the class of a refusal is noted; empty for a refusal that cannot be read."""
    try:
        stored = read_stored(refusal.events)
    except MessageError:
        return ""
    return REFUSAL + stored.type_name if isinstance(stored, StoredRefusal) else ""


def note(alias: str, subscriber: str, shard: int, names: Collection[str]) -> None:
    """Note types that were passed over, at the position up to which the shard is swept."""
    if names:
        execute(alias, _NOTE, (sorted(names), subscriber, shard))


class Arrived(NamedTuple):
    """Noted types that are known now. If the subscriber follows one of them, the sweep begins at ``since``."""

    names: Sequence[str]
    since: Position | None

    def among(self, refusals: Iterable[StreamRecord]) -> Sequence[StreamRecord]:
        """Return those of the ``refusals`` that may have been passed over."""
        return [one for one in refusals if _class_of(one) in self.names]


NOTHING_ARRIVED = Arrived((), None)


def arrived(alias: str, subscriber: Subscriber, shard: int) -> Arrived:
    """Return the noted types that this process knows. Blocks on the database."""
    row = execute(alias, _NOTED, (key_of(subscriber), shard)).fetchone()
    noted: Mapping[str, Sequence[int]] = json.loads(row[0]) if row else {}
    known = [name for name in noted if _has_arrived(name)]
    since = min((Position(*noted[name]) for name in known if _is_followed(subscriber, name)), default=None)
    return Arrived(known, since)


def _has_arrived(noted: str) -> bool:
    if noted.startswith(REFUSAL):
        return types.find(DomainException, noted.removeprefix(REFUSAL)) is not None
    return is_known(noted)


def _is_followed(subscriber: Subscriber, arrived: str) -> bool:
    if arrived.startswith(REFUSAL):
        return bool(refusal_handlers_of(subscriber, arrived.removeprefix(REFUSAL)))
    return follows(subscriber, arrived)


def forget(alias: str, subscriber: str, shard: int, names: Sequence[str]) -> None:
    """Forget that these types were passed over. Call this when all of their aggregates were compared."""
    execute(alias, _FORGET, (list(names), subscriber, shard))
