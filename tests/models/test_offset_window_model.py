"""A lease's offset window, and what the queue has of it, against a set of unfinished offsets and a list of receipts.

The queue is the coordinator that transports keep: a commit may be lost on its way there, or its answer on the way back.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from enode_django.equeue.coordination import Coordinator
from enode_django.equeue.messages import Commit
from enode_django.equeue.offsets import OffsetWindow
from tests.models.profiles import as_test

GROUP, TOPIC, OWNER = "g", "orders", "one"
PLACES = st.sampled_from([0, 0, 0, 1, 2, 5])
"""Chooses one of several items, the oldest most often."""


class WindowMachine(RuleBasedStateMachine):
    @initialize(keep=st.sampled_from([1, 3, 9]))
    def begin(self, keep: int) -> None:
        self.coordinator = Coordinator()
        self.coordinator.create_topic(TOPIC, 1)
        self.keep = keep
        self.window: OffsetWindow | None = None
        self.committed = 0
        self.stored: list[int] = []
        self.acquire()

    @precondition(lambda self: self.steps >= 8)
    @rule()
    def acquire_anew(self) -> None:
        self.acquire()

    def acquire(self) -> None:
        """Take over the queue. The former owner is gone, with everything that it did not commit."""
        stale = self.window
        if stale is not None:
            stale.close()
            assert not stale.add([stale.next_offset])
            assert stale.add([]) is False
        lease = self.coordinator.acquire(GROUP, TOPIC, 0, OWNER, 60.0, bounds=(0, 99), now=0.0)
        assert lease.committed == self.committed
        self.window = OffsetWindow(TOPIC, 0, epoch=lease.epoch, committed=lease.committed, deadline=60.0)
        self.steps = 0
        self.unfinished: set[int] = set()
        self.added: list[int] = []
        self.kept: set[int] = set()
        self.next = self.known = self.reached = self.committed
        if stale is not None:
            commit = Commit(stale.epoch, stale.next_offset + 1)
            assert self.coordinator.commit(GROUP, TOPIC, {0: commit}) == {0}, "a commit of the lease before is refused"

    @rule(gaps=st.lists(st.sampled_from([0, 0, 0, 2]), max_size=5), contiguous=st.booleans())
    def add(self, gaps: list[int], contiguous: bool) -> None:
        offsets = range(self.next, self.next + len(gaps)) if contiguous else self._spread(gaps)
        assert self.window.add(offsets)
        self.unfinished.update(offsets)
        self.added.extend(offsets)
        self.next = max([self.next, *(offset + 1 for offset in offsets)])

    def _spread(self, gaps: list[int]) -> list[int]:
        offsets: list[int] = []
        for gap in gaps:
            offsets.append((offsets[-1] + 1 if offsets else self.next) + gap)
        return offsets

    @rule(wrong=st.sampled_from([(-1,), (1, 0), (0, 0), (0, 2, 1)]))
    def add_wrongly(self, wrong: tuple[int, ...]) -> None:
        with pytest.raises(ValueError, match="must ascend"):
            self.window.add([self.next + place for place in wrong])

    @rule(places=st.lists(PLACES, max_size=4), beyond=st.integers(0, 2))
    def finish(self, places: list[int], beyond: int) -> None:
        """Finish offsets, including some that are finished already, and some that were never added."""
        known = [offset for offset in self.added if offset >= self._committable] or [self.committed]
        offsets = [known[place % len(known)] for place in places] + [self.next + 5] * beyond
        self.window.finish_many(offsets)
        self.unfinished.difference_update(offsets)

    @precondition(lambda self: self.unfinished)
    @rule(place=PLACES, finish=st.booleans())
    def remember(self, place: int, finish: bool) -> None:
        offset = sorted(self.unfinished)[place % len(self.unfinished)]
        self.window.keep(offset, b"%d" % offset)
        self.kept.add(offset)
        if finish:
            self.window.finish(offset)
            self.unfinished.discard(offset)

    @rule(fate=st.sampled_from(["taken", "taken", "answer lost", "lost"]), between=st.none() | PLACES, data=st.data())
    def commit(self, fate: str, between: int | None, data: Any) -> None:
        commit = self.window.next_commit(self.keep)
        assert commit.offset == self._committable
        if fate != "lost":
            assert self.coordinator.commit(GROUP, TOPIC, {0: commit}) == set()
            self._store(commit.offset)
        if between is not None and self.unfinished:
            self.remember(between, finish=data.draw(st.booleans()))  # by the publishing thread, meanwhile
        if fate == "taken":
            self.window.commit_taken(commit.offset)
            self.known = commit.offset

    def _store(self, offset: int) -> None:
        if offset > self.committed:
            added = sorted(kept for kept in self.kept if self.committed <= kept < offset)
            self.stored = (self.stored + added)[-self.keep :]
            self.committed = offset

    @property
    def _committable(self) -> int:
        return min(self.unfinished, default=self.next)

    @rule(messages=st.integers(1, 4), answered=st.integers(0, 4))
    def work(self, messages: int, answered: int) -> None:
        """Add messages, and finish the oldest ones with a receipt each."""
        self.add([0] * messages, contiguous=True)
        for _ in range(min(answered, len(self.unfinished))):
            self.remember(0, finish=True)

    @invariant()
    def the_window_is_what_is_unfinished(self) -> None:
        self.steps += 1
        assert self.window.committable == self._committable
        assert self.window.unfinished == len(self.unfinished)
        assert self.window.next_offset == self.next
        assert self.window.held == sum(offset >= self._committable for offset in self.added)
        assert self.window.committed == self.known
        assert self.window.committable >= self.reached, "it never goes back"
        self.reached = self.window.committable

    @invariant()
    def the_queue_has_what_was_committed(self) -> None:
        assert self.coordinator.committed(GROUP, TOPIC) == {0: self.committed}
        assert self.coordinator.receipts(GROUP, TOPIC, 0) == [b"%d" % offset for offset in self.stored]


TestWindow = as_test(WindowMachine, runs=150)
