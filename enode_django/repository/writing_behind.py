"""Shared states that are changed by a separate thread: no command waits for them."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable, Mapping, Sequence

from enode_django.concurrency.mailbox import Mailbox
from enode_django.repository.states import SharedStates
from enode_django.repository.store import Snapshot

logger = logging.getLogger("enode_django.snapshots")

MOST_WAITING = 16 * 1024 * 1024
"""The most bytes of payloads that wait to be saved. Further states are not saved."""
TAKEN_AT_ONCE = 1_000

Change = Sequence[Snapshot] | str
"""States to be saved, or the id of the one to be deleted."""


class WriteBehind:
    """Shared states that are written behind. `load` is answered by ``states`` at once, in the calling thread. The saves
    and deletions of one thread are done in their order, by the thread in `run`."""

    def __init__(self, states: SharedStates, *, most_waiting: int = MOST_WAITING) -> None:
        self.name = "enode-states"
        self._states = states
        self._most_waiting = most_waiting
        self._changes: Mailbox[Change] = Mailbox(self.name)
        self._lock = threading.Lock()
        self._waiting = 0
        self._is_behind = False

    def load(self, aggregate_root_ids: Iterable[str]) -> Mapping[str, Snapshot]:
        return self._states.load(aggregate_root_ids)

    def save(self, states: Sequence[Snapshot]) -> None:
        if states and self._is_room_for(sum(len(state.payload) for state in states)):
            self._changes.post(states)

    def delete(self, aggregate_root_id: str) -> None:
        self._changes.post(aggregate_root_id)

    def discard(self, state: Snapshot) -> None:
        self.delete(state.aggregate_root_id)

    def close(self) -> None:
        """Let `run` return when everything posted so far is done."""
        self._changes.close()

    def run(self) -> None:
        """Make the changes. Block until `close`, then close the states."""
        while (changes := self._changes.take(TAKEN_AT_ONCE)) is not None:
            together: list[Snapshot] = []
            for change in changes:
                if isinstance(change, str):
                    self._save(together)
                    together = []
                    self._states.delete(change)
                else:
                    together += change
            self._save(together)
        self._states.close()

    def _save(self, states: Sequence[Snapshot]) -> None:
        if states:
            self._states.save(states)
            with self._lock:
                self._waiting -= sum(len(state.payload) for state in states)

    def _is_room_for(self, size: int) -> bool:
        with self._lock:
            has_room = self._waiting + size <= self._most_waiting
            self._waiting += size if has_room else 0
            fell_behind, self._is_behind = not has_room and not self._is_behind, not has_room
        if fell_behind:
            logger.warning("%d bytes of states wait to be written; those that come now are left out", self._waiting)
        return has_room
