"""Subscribers that follow events without any database."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from enode_django.eventing.calling import Calls
from enode_django.eventing.process_managers import crash_handler
from enode_django.eventing.projections import ModelProjection, Projection
from enode_django.eventing.registry import subscribers
from enode_django.eventing.subscribers import NOW, Subscriber, follows, key_of, running_subscriber
from enode_django.eventing.work import FollowedEvents, followed_refusal
from enode_django.eventstore.base import StreamRecord
from enode_django.eventstore.positions import BEGINNING, END

if TYPE_CHECKING:
    from enode_django.immediate.bus import ImmediateCommandBus

logger = logging.getLogger("enode_django.subscribers")

MOST = 2**31


class MemoryFollowing:
    """Calls process managers and event handlers; projections have no database. How far each has come lies in memory. An
    aggregate whose handler fails is tried again with its next event. Handlers run one at a time."""

    def __init__(self, bus: ImmediateCommandBus) -> None:
        self._bus = bus
        self._store = bus.store
        self._lock = threading.RLock()
        self._reached: dict[Subscriber, dict[str, int]] = {}
        self._failed: set[tuple[str, str]] = set()

    def begin(self) -> None:
        for subscriber in _subscribers():
            if subscriber not in self._reached:
                self._reached[subscriber] = dict(self._heads()) if subscriber.start == NOW else {}

    def follow(self, record: StreamRecord) -> None:
        with self._lock:
            for subscriber in _subscribers():
                if follows(subscriber, record.aggregate_root_type) or record.version is None:
                    self._follow(subscriber, record)

    def keep_up(self) -> None:
        """Nothing is due: what a process leaves behind is gone with it."""

    def catch_up(self) -> None:
        """As `keep_up`."""

    def progress(self, record: StreamRecord, keys: Sequence[str]) -> tuple[list[str], list[str]]:
        id = record.aggregate_root_id
        return [one.name for one in _subscribers() if key_of(one) in keys and (one.name, id) in self._failed], []

    def _heads(self) -> Iterator[tuple[str, int]]:
        for id, (_, version) in self._store.shards[0].settled(BEGINNING, END, limit=MOST).settled.heads.items():
            yield id, version

    def _follow(self, subscriber: Subscriber, record: StreamRecord) -> None:
        id = record.aggregate_root_id
        reached = self._reached.setdefault(subscriber, {})
        token = running_subscriber.set(subscriber.name)
        try:
            if record.version is None:
                self._call(subscriber, record)
                return
            for stream in self._store.load(id, after=reached.get(id, 0)):
                self._call(subscriber, stream)
                reached[id] = stream.version or 0
            self._failed.discard((subscriber.name, id))
        except Exception as error:  # handlers are application code; the command is stored all the same
            self._failed.add((subscriber.name, id))
            told, extra = "%s failed at %s: %s", {"subscriber": subscriber.name, "aggregate_root_id": id}
            logger.error(told, subscriber.name, id, error, exc_info=error, extra=extra)
        finally:
            running_subscriber.reset(token)

    def _call(self, subscriber: Subscriber, record: StreamRecord) -> None:
        handler = crash_handler(subscriber)
        calls = Calls(subscriber, lambda commands: self._bus.forward(commands, handler))
        if record.version is not None:
            calls.run(FollowedEvents(subscriber).of(record))
        elif (refused := followed_refusal(subscriber, record)) is not None:
            calls.run([refused])
        calls.send()


def _subscribers() -> list[Subscriber]:
    return [one for one in subscribers.all() if not isinstance(one, ModelProjection | Projection)]
