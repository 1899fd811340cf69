"""An event mailbox without its thread: decisions in, final outcomes out. The table in
`enode_django.commanding.settlement` says how each decision ends.

A decision that conflicts with the store does not fail: it is made again. The aggregate's later decisions of that epoch
are dropped, here and as they arrive, and a `Recovery` tells the command mailbox to reload the aggregate. No thread
waits for another.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from enode_django.commanding.decisions import (
    POSTPONED,
    REFUSAL,
    RESUMED,
    STORED,
    STREAM,
    Decision,
    DecisionKind,
    Finished,
    Recovery,
)
from enode_django.commanding.identity import is_conflict
from enode_django.commanding.settlement import FINDINGS, Batch, Finding, key_of, settle
from enode_django.concurrency.backoff import Persist
from enode_django.equeue.offsets import OffsetWindow
from enode_django.eventstore.base import Appended, CommandKey, EventStore, Outcome, StreamRecord
from enode_django.exceptions import StoreUnavailable

logger = logging.getLogger("enode_django.store")

_CONFLICT = Appended(Outcome.CONFLICT)
_DURABLE = Outcome.STORED
_STORED = Appended(_DURABLE)
RECORDS = (STREAM, REFUSAL)
UNSTORED = (DecisionKind.VERDICT, DecisionKind.REPEAT)


class Committed(NamedTuple):
    """The outcome of one batch.

    ``finished`` goes to the publisher, in order. ``released`` are the decisions that the command mailbox can release,
    and ``recoveries`` the aggregates that it must reload after that.
    """

    finished: Sequence[Finished]
    released: Sequence[Decision]
    recoveries: Sequence[Recovery]


class Committer:
    """Stores and settles decisions. All methods are called by one thread; `commit` blocks until the store has
    decided. ``clock`` is that of the leases: `boot_time`."""

    def __init__(self, store: EventStore, *, persist: Persist, clock: Callable[[], float]) -> None:
        self._store = store
        self._persist = persist
        self._clock = clock
        self.awaiting: dict[str, int] = {}
        """The epochs up to which decisions are dropped, by aggregate, until the command mailbox has recovered it."""
        self.conflicts = 0
        self.store_seconds: float | None = None
        """The seconds that the store took for the last batch's records; None if it had no records."""
        self.found_bytes = 0
        """The bytes of stored events that were looked up for commands of the last batch."""

    def commit(self, decisions: Sequence[Decision]) -> Committed:
        batch = Batch(self.awaiting, self._clock(), self._store)
        self.store_seconds, self.found_bytes = None, 0
        if self._are_streams_of_ours(decisions, batch.began):
            sent, appended = self._send(decisions)
            if len(sent) == len(decisions) and _are_all_stored(appended):
                batch.finish_stored(decisions)  # nearly every batch: settled without a step for each decision
            else:
                self._settle(decisions, _by_decision(sent, appended), batch)
        else:
            live = [decision for decision in decisions if self._belongs(decision, batch)]
            records = [decision for decision in live if decision.kind in RECORDS]
            self._settle(live, self._store_records(records) if records else {}, batch)
        self.conflicts += len(batch.recoveries)
        return Committed(batch.finished, batch.released, batch.recoveries)

    def _settle(self, live: Sequence[Decision], outcomes: Mapping[int, Appended], batch: Batch) -> None:
        """Settle decisions. ``outcomes`` are those of their records, by ``id(decision)``."""
        unstored = [decision for decision in live if decision.kind in UNSTORED]
        facts = self._look_up(unstored) if unstored else _NO_FACTS
        heads = _own_heads(live, outcomes) if unstored else {}
        refused = batch.refused_now
        for decision in live:
            if (
                refused
                and decision.epoch <= refused.get(decision.aggregate_root_id, -1)
                and decision.kind is not STORED
            ):
                continue  # it rests on a refused decision, and is handled again
            if decision.kind in UNSTORED:
                settle(batch, decision, *self._finding(decision, facts, heads))
            elif decision.kind is STORED:
                batch.finish(decision, decision.record)
            else:
                appended = outcomes.get(id(decision))
                settle(batch, decision, Finding.UNSENT if appended is None else FINDINGS[appended.outcome], appended)

    # -- what may be stored at all --------------------------------------------------------------------------------

    def _are_streams_of_ours(self, decisions: Sequence[Decision], now: float) -> bool:
        """Return True if all decisions are streams, none is of an aggregate that is being recovered, and all leases are
        still held."""
        if not decisions or [decision for decision in decisions if decision.kind is not STREAM]:
            return False
        refused = self.awaiting
        if refused and [decision for decision in decisions if decision.aggregate_root_id in refused]:
            return False
        windows = {decision.envelope.window for decision in decisions if decision.envelope is not None}
        return all(window is None or _is_held(window, now) for window in windows)

    def _belongs(self, decision: Decision, batch: Batch) -> bool:
        if decision.kind is POSTPONED:
            return False
        refused = self.awaiting.get(decision.aggregate_root_id) if self.awaiting else None
        dropped = refused is not None and decision.epoch <= refused and decision.kind is not STORED
        if refused is not None and decision.epoch > refused:
            del self.awaiting[decision.aggregate_root_id]
        if decision.kind is RESUMED:
            return False
        if not self._is_ours(decision, batch.began):
            # The queue went to another worker, which gets the command again and decides it.
            batch.released.append(decision)
            if not dropped and decision.kind is not STORED:
                batch.refuse(decision)
            return False
        return not dropped

    @staticmethod
    def _is_ours(decision: Decision, now: float) -> bool:
        window = decision.envelope.window if decision.envelope is not None else None
        return window is None or _is_held(window, now)

    def _store_records(self, records: Sequence[Decision]) -> Mapping[int, Appended]:
        """Return the outcomes by ``id(decision)``. A missing decision was not stored, because its lease is over."""
        outdated = self._outdated(records)
        if not outdated:
            return self._append(records)
        fresh = [decision for decision in records if decision.aggregate_root_id not in outdated]
        outcomes = dict(self._append(fresh)) if fresh else {}
        outcomes.update({id(decision): _CONFLICT for decision in records if decision.aggregate_root_id in outdated})
        return outcomes

    def _outdated(self, records: Sequence[Decision]) -> set[str]:
        """Return the aggregates with a refusal that was not decided on the stored head. A refusal has no version for
        the index to check, and is final once it is stored; so the heads are read first."""
        refusing = {decision.aggregate_root_id for decision in records if decision.kind is REFUSAL}
        if not refusing:
            return set()
        rests_on: dict[str, int | None] = {}
        for decision in records:
            if decision.aggregate_root_id in refusing:
                rests_on.setdefault(decision.aggregate_root_id, decision.rests_on)
        heads = self._persist(lambda: self._store.heads(refusing))
        return {id for id, version in rests_on.items() if heads.get(id, 0) != version}

    # -- asking the store -----------------------------------------------------------------------------------------

    def _append(self, decisions: Sequence[Decision]) -> Mapping[int, Appended]:
        return _by_decision(*self._send(decisions))

    def _send(self, decisions: Sequence[Decision]) -> tuple[Sequence[Decision], Sequence[Appended]]:
        """Store the decisions' records. Return the decisions of the last attempt, and the outcome of each. These are
        all decisions, unless leases ended while the store was away."""
        sent = decisions
        doubtful = False

        def append() -> tuple[Sequence[Decision], Sequence[Appended]]:
            nonlocal sent, doubtful
            if doubtful:
                # The store was away, maybe for longer than a lease: another worker's decisions since then must stand.
                sent = self._still_ours(sent)
            records = [decision.record for decision in sent if decision.record is not None]
            began = self._clock()
            try:
                appended = self._store.append(records, doubtful=doubtful)
                self.store_seconds = self._clock() - began
                return sent, appended
            except StoreUnavailable:
                doubtful = True
                raise

        return self._persist(append)

    def _still_ours(self, decisions: Sequence[Decision]) -> Sequence[Decision]:
        """Leave out the decisions whose leases are over, and those that were made on top of them: the commands of an
        aggregate may have come from several queues."""
        now = self._clock()
        left_out: set[str] = set()
        ours = []
        for decision in decisions:
            if decision.aggregate_root_id in left_out or not self._is_ours(decision, now):
                left_out.add(decision.aggregate_root_id)
            else:
                ours.append(decision)
        return ours

    def _look_up(self, decisions: Sequence[Decision]) -> _Facts:
        keys = [key_of(decision) for decision in decisions]
        resting = {decision.aggregate_root_id for decision in decisions if decision.rests_on is not None}
        found = self._persist(lambda: self._store.find(keys))
        self.found_bytes += sum(len(record.events) for record in found.values())
        heads = self._persist(lambda: self._store.heads(resting)) if resting else {}
        return _Facts(found, heads)

    @staticmethod
    def _finding(
        decision: Decision, facts: _Facts, own_heads: Mapping[str, int]
    ) -> tuple[Finding, StreamRecord | None]:
        """Return the finding on a decision without a record, and the stored row of its command, if there is one."""
        stored = None if is_conflict(decision.result) else facts.found.get(key_of(decision))
        if stored is not None:
            return Finding.FOUND, stored
        if decision.rests_on is None:
            return Finding.AGREED, None
        expected = own_heads.get(decision.aggregate_root_id, decision.rests_on)
        is_stale = facts.heads.get(decision.aggregate_root_id, 0) != expected
        return (Finding.STALE if is_stale else Finding.AGREED), None


class _Facts(NamedTuple):
    found: Mapping[CommandKey, StreamRecord]
    heads: Mapping[str, int]


_NO_FACTS = _Facts({}, {})


def _is_held(window: OffsetWindow, now: float) -> bool:
    """Return True if the window's lease is still held. Close the window if its lease has run out."""
    if not window.closed and now >= window.deadline:
        logger.warning("the lease of %s/%d ran out: whoever takes it handles its commands", window.topic, window.queue)
        window.close()
    return not window.closed


def _by_decision(sent: Sequence[Decision], appended: Sequence[Appended]) -> Mapping[int, Appended]:
    """Return the outcomes by ``id(decision)``."""
    return dict(zip(map(id, sent), appended, strict=True))


def _are_all_stored(appended: Sequence[Appended]) -> bool:
    """Return True if every record was stored. Drivers return the same object for each, which makes ``count`` fast."""
    return bool(appended) and appended[0] == _STORED and appended.count(appended[0]) == len(appended)


def _own_heads(records: Iterable[Decision], outcomes: Mapping[int, Appended]) -> dict[str, int]:
    """Return the newest version of each aggregate that this batch itself has stored."""
    heads: dict[str, int] = {}
    for decision in records:
        version = decision.record.version if decision.record is not None else None
        appended = outcomes.get(id(decision))
        if version is not None and appended is not None and appended.outcome is Outcome.STORED:
            heads[decision.aggregate_root_id] = version
    return heads
