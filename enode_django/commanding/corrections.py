"""A command mailbox looks for corrections of stored events, and loads the aggregates anew that were made of the
originals."""

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
"""Seconds."""


class CorrectionLookout:
    """Looks every second, while there are commands, which aggregates of a shard were corrected. Used by one thread."""

    def __init__(self, shard: Shard, clock: Callable[[], float] = time.monotonic) -> None:
        self._shard = shard
        self._clock = clock
        self._next = clock()
        self._number = 0
        self.ids: set[str] = set()
        """The aggregates that have ever had a correction."""

    def look(self) -> Collection[str]:
        """Return the aggregates that were corrected since the last call. Blocks on the shard if it is time to look; one
        that is away is asked again after a while."""
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
        """Let idle aggregates that were corrected leave the cache, and ``restore`` the others. Blocks as `look`."""
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
        """Return what the load of another aggregate begins with: of other shards nobody looks here what was corrected,
        so that their shared states cannot be used."""
        is_ours = store.shards[store.place_of(aggregate_root_id)] is self._shard
        return Begin.STATE if is_ours else Begin.SNAPSHOT
