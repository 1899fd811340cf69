"""The types of events that a subscriber's code has known, recorded with its subscriptions: which it handles, which not.

A process that meets an event of a type that it does not know asks the record. A type that was known and not handled was
removed since, and is passed over. One that was handled fails, and so does one that nobody has recorded: newer code has
it.
"""

from __future__ import annotations

import json
from contextlib import suppress

from enode_django.databases import execute
from enode_django.domain.messages import DomainEvent
from enode_django.eventing.checkpoints import SUBSCRIPTION
from enode_django.eventing.subscribers import Subscriber, handlers_of
from enode_django.exceptions import UnknownMessageType
from enode_django.serialization.registry import types

# Types that the running code does not know keep what the last code that knew them has said.
_RECORD = f"""
    UPDATE {SUBSCRIPTION} SET event_types = event_types || %s::text::jsonb
    WHERE subscriber = %s AND NOT event_types @> %s::text::jsonb
"""
_NOT_HANDLED = f"""
    SELECT name FROM {SUBSCRIPTION}, jsonb_each(event_types) AS type (name, is_handled)
    WHERE subscriber = %s GROUP BY name HAVING NOT bool_or(is_handled::boolean)
"""


def record(alias: str, subscriber: Subscriber) -> None:
    """Record all types of events that this process knows, by all their names. Blocks on the database; it writes only
    where something has changed."""
    known = {name: _is_handled(subscriber, name) for name in types.names_of(DomainEvent)}
    text = json.dumps(known)
    execute(alias, _RECORD, (text, subscriber.name, text))


def _is_handled(subscriber: Subscriber, name: str) -> bool:
    return bool(handlers_of(subscriber, types.class_of(DomainEvent, name)))


def recall(alias: str, subscriber: Subscriber) -> bool:
    """Let the subscriber pass over types that it is recorded not to handle, and that this process does not know. Return
    True if there are others than before. Blocks on the database."""
    names = [name for (name,) in execute(alias, _NOT_HANDLED, (subscriber.name,)).fetchall()]
    removed = frozenset(name for name in names if not _is_known(name))
    has_more = bool(removed - subscriber._enode_removed_types)
    subscriber._enode_removed_types = removed
    return has_more


def _is_known(name: str) -> bool:
    with suppress(UnknownMessageType):
        types.class_of(DomainEvent, name)
        return True
    return False
