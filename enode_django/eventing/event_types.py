"""The types of events and refusals that a subscriber's code knew and handled, as recorded with its subscriptions.

A process that meets an event or refusal of an unknown type asks the record. A type that was known and not handled has
been removed since, and is passed over. A type that was handled fails, and so does one that is not recorded: newer code
has it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import TypeVar

from enode_django.databases import execute
from enode_django.domain.messages import DomainEvent
from enode_django.domain.refusals import DomainException
from enode_django.eventing.checkpoints import SUBSCRIPTION
from enode_django.eventing.subscribers import Subscriber, handlers_of, key_of
from enode_django.serialization.registry import types

Kind = TypeVar("Kind", DomainEvent, DomainException)

REFUSAL = "refusal "
"""The prefix of the names of refusals in the record: an event may have the same name."""

# Types that the running code does not know keep the entry of the last code that knew them.
_RECORD = f"""
    UPDATE {SUBSCRIPTION} SET event_types = event_types || %s::text::jsonb
    WHERE subscriber = %s AND NOT event_types @> %s::text::jsonb
"""
_NOT_HANDLED = f"""
    SELECT name FROM {SUBSCRIPTION}, jsonb_each(event_types) AS type (name, is_handled)
    WHERE subscriber = %s GROUP BY name HAVING NOT bool_or(is_handled::boolean)
"""


def record(alias: str, subscriber: Subscriber) -> None:
    """Record all types of events that this process knows, by all their names, and those of refusals if the subscriber
    is of a kind that may handle them. Blocks on the database; writes only if something has changed."""
    known = _handled(subscriber, DomainEvent)
    if subscriber._enode_handles_refusals:
        known |= {REFUSAL + name: is_handled for name, is_handled in _handled(subscriber, DomainException).items()}
    text = json.dumps(known)
    execute(alias, _RECORD, (text, key_of(subscriber), text))


def _handled(subscriber: Subscriber, kind: type[Kind]) -> dict[str, bool]:
    return {name: bool(handlers_of(subscriber, types.class_of(kind, name))) for name in types.names_of(kind)}


def recall(alias: str, subscriber: Subscriber) -> bool:
    """Let the subscriber pass over types that it is recorded not to handle and that this process does not know. Return
    True if there are new ones. Blocks on the database."""
    names = [name for (name,) in execute(alias, _NOT_HANDLED, (key_of(subscriber),)).fetchall()]
    events = _unknown(DomainEvent, (name for name in names if not name.startswith(REFUSAL)))
    refusals = _unknown(DomainException, (name.removeprefix(REFUSAL) for name in names if name.startswith(REFUSAL)))
    has_more = bool(events - subscriber._enode_removed_types or refusals - subscriber._enode_removed_refusals)
    subscriber._enode_removed_types, subscriber._enode_removed_refusals = events, refusals
    return has_more


def _unknown(kind: type[Kind], names: Iterable[str]) -> frozenset[str]:
    return frozenset(name for name in names if types.find(kind, name) is None)
