"""Count pulled commands that are unfinished, shard by shard."""

from __future__ import annotations

from collections.abc import Collection, Iterable, MutableMapping
from weakref import WeakKeyDictionary

from enode_django.equeue.offsets import OffsetWindow


class ShardBacklogs:
    """Each shard may have its share of ``max_unfinished`` commands, of which a large one counts for several; beyond it,
    the queues that bring it more pause, and the others go on. Used by the pulling thread.

    A queue that brings commands of several shards counts for each of them: which of its commands are unfinished is not
    known.
    """

    def __init__(self, shards: int, max_unfinished: int) -> None:
        self._share = max(1, max_unfinished // shards)
        self._served: MutableMapping[OffsetWindow, set[int]] = WeakKeyDictionary()

    def note(self, window: OffsetWindow, places: Collection[int]) -> None:
        """The window has brought commands of the shards at these places."""
        if places:
            self._served.setdefault(window, set()).update(places)

    def paused(self, windows: Iterable[OffsetWindow]) -> frozenset[int]:
        """The queues that nothing is to be pulled from, of these windows."""
        unfinished: dict[int, int] = {}
        windows = list(windows)
        for window in windows:
            for place in self._served.get(window, ()):
                unfinished[place] = unfinished.get(place, 0) + window.weight
        full = {place for place, count in unfinished.items() if count >= self._share}
        return frozenset(
            window.queue
            for window in windows
            # One that holds so much by itself may have brought nothing but what waits for a newer worker.
            if window.weight >= self._share or not full.isdisjoint(self._served.get(window, ()))
        )
