"""The versions of an aggregate that its subscribers have handled. Only reads: no subscriber begins by being asked."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import psycopg
from django.db import DatabaseError, transaction

from enode_django.eventing import checkpoints, parking
from enode_django.eventing.effects import EffectProcessor
from enode_django.eventing.event_processors import EventProcessor
from enode_django.eventing.registry import subscribers
from enode_django.eventing.subscribers import Subscriber, follows
from enode_django.eventstore.base import EventStore
from enode_django.exceptions import EnodeError, shown
from enode_django.history.states import head_of
from enode_django.runtime import make_processor, make_store


class Reached(NamedTuple):
    """The progress of a subscriber in an aggregate. ``version`` is None if the subscriber has not begun with the
    aggregate's shard, or if it is unknown for the reason ``trouble``. ``parked`` is the class of the error for which
    the aggregate is parked, or empty."""

    subscriber: str
    version: int | None
    behind: int
    parked: str = ""
    trouble: str = ""


def reached(aggregate_root_id: str) -> Sequence[Reached]:
    """Return the progress of all subscribers that follow the aggregate's type. Raises `AggregateNotFound`.

    For example::

        execute_command(OpenAccount("ada", owner="Ada"))
        behind = {one.subscriber: one.behind for one in reached("ada")}
        assert "bank.AccountSummaries" in behind
    """
    store = make_store()
    head = head_of(store, aggregate_root_id)
    (last,) = store.load_ranges({aggregate_root_id: (head - 1, head)})[aggregate_root_id]
    following = [one for one in subscribers.all() if follows(one, last.aggregate_root_type)]
    return [_reached(one, store, aggregate_root_id, head) for one in following]


def _reached(subscriber: Subscriber, store: EventStore, id: str, head: int) -> Reached:
    try:
        processor = make_processor(subscriber, store, lambda commands: None)
        with transaction.atomic(using=processor.alias):
            if not _has_begun(processor, id):
                return Reached(subscriber.name, None, head)
            version = processor.positions([id]).get(id, 0)
            parked = parking.parked_among(processor.alias, processor.key, [id]).get(id, "")
    except (DatabaseError, psycopg.Error, EnodeError) as error:  # for example, its table is not migrated yet
        return Reached(subscriber.name, None, 0, trouble=shown(error))
    return Reached(subscriber.name, version, max(0, head - version), parked)


def _has_begun(processor: EventProcessor, id: str) -> bool:
    """Return True if the positions can be read without a side effect: an effect processor begins at the first call."""
    if not isinstance(processor, EffectProcessor):
        return True
    shard = processor.store.shards[processor.store.place_of(id)]
    return checkpoints.subscription(processor.alias, processor.key, shard.number) is not None
