"""Aggregates of types that this process does not know: newer code has them, or no code has them.

They are not parked, unless a subscriber handles one of their events. They are passed over, without a checkpoint, and
the sweep notes the type with the position below which it has met none. A sweep by code that knows the type, and whose
subscriber follows it, begins there.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import NamedTuple

from enode_django.databases import execute
from enode_django.domain.aggregate import AggregateRoot
from enode_django.eventing.checkpoints import SUBSCRIPTION
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
_SET_BACK = f"""
    UPDATE {SUBSCRIPTION} SET swept_generation = %s, swept_position = %s
    WHERE subscriber = %s AND shard = %s AND (swept_generation, swept_position) > (%s, %s)
"""


def is_known(aggregate_root_type: str) -> bool:
    """Return True if this process has the class of the aggregates."""
    return types.knows(AggregateRoot, aggregate_root_type)


def is_passed_over(subscriber: Subscriber, record: StreamRecord) -> bool:
    """Return True for a stream or refusal of an unknown type of aggregate, if it came without its events or the
    subscriber handles nothing of it that this process knows."""
    return not is_known(record.aggregate_root_type) and not (record.events and _handles_any(subscriber, record))


def _handles_any(subscriber: Subscriber, record: StreamRecord) -> bool:
    """Return True if the subscriber handles the refusal or one of the events. Unknown types do not count; unreadable
    records do."""
    try:
        stored = read_stored(record.events)
    except MessageError:
        return True
    return any(_is_handled(subscriber, stored, name) for name in _names(stored))


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
    for some in _in_parts(unknown):
        ranges = {id: (positions.get(id, 0), heads[id][1]) for id in some}
        found = store.load_ranges(ranges)
        handled = {id for id, records in found.items() if any(_handles_any(subscriber, one) for one in records)}
        passed.update(id for id in some if id not in handled)
    return passed


def _in_parts(ids: Sequence[str]) -> Iterator[Sequence[str]]:
    for begin in range(0, len(ids), _LOADED_AT_ONCE):
        yield ids[begin : begin + _LOADED_AT_ONCE]


def unknown_types(settled: Settled) -> set[str]:
    """Return the types of aggregates in these rows that this process does not know."""
    refused = (refusal.aggregate_root_type for refusal in settled.refusals)
    names = set(chain((type_name for type_name, _ in settled.heads.values()), refused))
    return {name for name in names if not is_known(name)}


def note(alias: str, subscriber: str, shard: int, names: Collection[str]) -> None:
    """Note types that were passed over, at the position up to which the shard is swept."""
    if names:
        execute(alias, _NOTE, (sorted(names), subscriber, shard))


class Arrived(NamedTuple):
    """Noted types that are known now. For those that the subscriber follows, the sweep begins at ``since`` (None: for
    none)."""

    names: Sequence[str]
    since: Position | None


def arrived(alias: str, subscriber: Subscriber, shard: int) -> Arrived:
    """Return the noted types that this process knows. Blocks on the database."""
    row = execute(alias, _NOTED, (key_of(subscriber), shard)).fetchone()
    noted: Mapping[str, Sequence[int]] = json.loads(row[0]) if row else {}
    known = [name for name in noted if is_known(name)]
    since = min((Position(*noted[name]) for name in known if follows(subscriber, name)), default=None)
    return Arrived(known, since)


def set_back(alias: str, subscriber: str, shard: int, position: Position) -> None:
    """Set the sweep back to this position, if it is beyond it."""
    place = (position.generation, position.transaction_id)
    execute(alias, _SET_BACK, (*place, subscriber, shard, *place))


def forget(alias: str, subscriber: str, shard: int, names: Sequence[str]) -> None:
    """Forget that these types were passed over. Call this when all of their aggregates were compared."""
    execute(alias, _FORGET, (list(names), subscriber, shard))
