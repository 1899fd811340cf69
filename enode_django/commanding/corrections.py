"""The lookout of a command mailbox for corrections of stored events. Aggregates made of the originals are reloaded."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection

from enode_django.commanding.cache import AggregateCache, Slot
from enode_django.commanding.shared_state_writer import SharedStateWriter
from enode_django.eventstore.base import EventStore, Shard
from enode_django.exceptions import StoreUnavailable
from enode_django.repository.loading import AggregateLoader, Begin

logger = logging.getLogger("enode_django.commands")

LOOK_EVERY = 1.0
"""Seconds between looks."""


class CorrectionLookout:
    """Looks every second, while there are commands, for corrected aggregates of a shard. Used by one thread."""

    def __init__(self, shard: Shard, clock: Callable[[], float] = time.monotonic) -> None:
        self._shard = shard
        self._clock = clock
        self._next = clock()
        self._number = 0
        self.ids: set[str] = set()
        """The aggregates of the shard that have ever had a correction."""

    def look(self) -> Collection[str]:
        """Return the aggregates corrected since the last call. Block on the shard if a look is due. After an
        unavailable shard the next look is due in ten times as long as it took to fail, but not before `LOOK_EVERY`."""
        began = self._clock()
        if began < self._next:
            return ()
        try:
            found = self._shard.corrected_since(self._number)
        except StoreUnavailable as error:
            logger.debug("a shard does not say what was corrected: %s", error)
            self._next = self._clock() + max(LOOK_EVERY, 10 * (self._clock() - began))
            return ()
        self._next = self._clock() + LOOK_EVERY
        if not found:
            return ()
        self._number = found[-1].number
        new = {one.aggregate_root_id for one in found}
        self.ids |= new
        return new

    def heed(
        self,
        loader: AggregateLoader,
        cache: AggregateCache,
        keeper: SharedStateWriter | None,
        restore: Callable[[str, Slot], None],
    ) -> None:
        """Drop corrected aggregates that are idle from the cache; ``restore`` the others. Block as long as `look`
        does."""
        for id in self.look():
            loader.without_states = self.ids
            if keeper is not None:
                keeper.forget(id)
            slot = cache.get(id)
            if slot is not None and slot.unfinished:
                restore(id, slot)
            elif slot is not None:
                cache.drop(id)

    def begin_of(self, store: EventStore, aggregate_root_id: str) -> Begin:
        """Return the form that the load of another aggregate begins with. Corrections in other shards are not checked
        here, so the shared states of their aggregates cannot be used."""
        is_ours = store.shards[store.place_of(aggregate_root_id)] is self._shard
        return Begin.STATE if is_ours else Begin.SNAPSHOT
