"""An event mailbox without its thread: entries in, final outcomes out.

What the store refuses is not failed but decided again: the aggregate's later entries of that epoch are dropped, here
and as they arrive, and a `Recovery` tells the command mailbox to start anew. No thread waits for another.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

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
from enode_django.commanding.identity import conflict_with_row, is_conflict
from enode_django.commanding.outcomes import failed
from enode_django.concurrency.backoff import Persist
from enode_django.equeue.offsets import OffsetWindow
from enode_django.eventstore.base import Appended, CommandKey, EventStore, Outcome, StreamRecord
from enode_django.eventstore.positions import FIRST
from enode_django.exceptions import MessageError, StoreUnavailable

logger = logging.getLogger("enode_django.store")

_CONFLICT = Appended(Outcome.CONFLICT)
_DURABLE = Outcome.STORED
_STORED = Appended(_DURABLE)
RECORDS = (STREAM, REFUSAL)
UNSTORED = (DecisionKind.VERDICT, DecisionKind.REPEAT)


class Committed(NamedTuple):
    """The outcome of one batch.

    ``finished`` is for the publisher, in order. ``released`` are entries the command mailbox can let go of, and
    ``recoveries`` what it must do after that.
    """

    finished: Sequence[Finished]
    released: Sequence[Decision]
    recoveries: Sequence[Recovery]


class Committer:
    """All methods are called by one thread. ``commit`` blocks until the store has decided."""

    def __init__(self, store: EventStore, *, persist: Persist, clock: Callable[[], float]) -> None:
        self._store = store
        self._persist = persist
        self._clock = clock
        self._refused: dict[str, int] = {}
        self.conflicts = 0
        self.store_seconds: float | None = None
        """The seconds that the store took for the last batch's records; None if it had no records."""
        self.found_bytes = 0
        """Bytes of the stored events that were looked up for commands of the last batch."""

    @property
    def awaiting(self) -> Mapping[str, int]:
        """Aggregates whose entries are dropped, up to an epoch, until the command mailbox has recovered them."""
        return self._refused

    def commit(self, entries: Sequence[Decision]) -> Committed:
        batch = _Batch(self._refused, self._clock(), self._store)
        self.store_seconds, self.found_bytes = None, 0
        if self._are_streams_of_ours(entries, batch.began):
            sent, appended = self._send(entries)
            if len(sent) == len(entries) and _are_all_stored(appended):
                batch.finish_stored(entries)  # nearly every batch: with no step for each entry that is not needed
            else:
                self._settle(entries, _by_entry(sent, appended), batch)
        else:
            live = [entry for entry in entries if self._belongs(entry, batch)]
            records = [entry for entry in live if entry.kind in RECORDS]
            self._settle(live, self._store_records(records) if records else {}, batch)
        self.conflicts += len(batch.recoveries)
        return Committed(batch.finished, batch.released, batch.recoveries)

    def _settle(self, live: Sequence[Decision], outcomes: Mapping[int, Appended], batch: _Batch) -> None:
        """Decide on entries whose records have these outcomes, by the entries' identities."""
        unstored = [entry for entry in live if entry.kind in UNSTORED]
        facts = self._look_up(unstored) if unstored else _NO_FACTS
        heads = _own_heads(live, outcomes) if unstored else {}
        refused = batch.refused_now
        for entry in live:
            if refused and entry.epoch <= refused.get(entry.aggregate_root_id, -1) and entry.kind is not STORED:
                continue  # it rests on what was refused; it will be handled again
            if entry.kind in UNSTORED:
                self._settle_unstored(entry, facts, heads, batch)
            elif entry.kind is STORED:
                batch.finish(entry, entry.record)
            else:
                self._settle_record(entry, outcomes.get(id(entry)), batch)

    # -- what may be stored at all --------------------------------------------------------------------------------

    def _are_streams_of_ours(self, entries: Sequence[Decision], now: float) -> bool:
        """Return True if all entries are streams, none is to be dropped, and no lease of theirs is over."""
        if not entries or self._refused or [entry for entry in entries if entry.kind is not STREAM]:
            return False
        windows = {entry.envelope.window for entry in entries if entry.envelope is not None}
        return all(window is None or _is_held(window, now) for window in windows)

    def _belongs(self, entry: Decision, batch: _Batch) -> bool:
        if entry.kind is POSTPONED:
            return False
        refused = self._refused.get(entry.aggregate_root_id) if self._refused else None
        dropped = refused is not None and entry.epoch <= refused and entry.kind is not STORED
        if refused is not None and entry.epoch > refused:
            del self._refused[entry.aggregate_root_id]
        if entry.kind is RESUMED:
            return False
        if not self._is_ours(entry, batch.began):
            # The queue went to another worker, which gets the command again and decides it.
            batch.released.append(entry)
            if not dropped and entry.kind is not STORED:
                batch.refuse(entry)
            return False
        return not dropped

    @staticmethod
    def _is_ours(entry: Decision, now: float) -> bool:
        window = entry.envelope.window if entry.envelope is not None else None
        return window is None or _is_held(window, now)

    def _store_records(self, records: Sequence[Decision]) -> Mapping[int, Appended]:
        """By the entries' identities. What is missing was not stored, and is not ours any more."""
        outdated = self._outdated(records)
        if not outdated:
            return self._append(records)
        fresh = [entry for entry in records if entry.aggregate_root_id not in outdated]
        outcomes = dict(self._append(fresh)) if fresh else {}
        outcomes.update({id(entry): _CONFLICT for entry in records if entry.aggregate_root_id in outdated})
        return outcomes

    def _outdated(self, records: Sequence[Decision]) -> set[str]:
        """Aggregates with a refusal that was not decided on the stored head. A refusal has no version that the index
        could judge, and once it is stored it is final; so somebody else's write is looked for before."""
        refusing = {entry.aggregate_root_id for entry in records if entry.kind is REFUSAL}
        if not refusing:
            return set()
        rests_on: dict[str, int | None] = {}
        for entry in records:
            if entry.aggregate_root_id in refusing:
                rests_on.setdefault(entry.aggregate_root_id, entry.rests_on)
        heads = self._persist(lambda: self._store.heads(refusing))
        return {id for id, version in rests_on.items() if heads.get(id, 0) != version}

    # -- asking the store -----------------------------------------------------------------------------------------

    def _append(self, entries: Sequence[Decision]) -> Mapping[int, Appended]:
        return _by_entry(*self._send(entries))

    def _send(self, entries: Sequence[Decision]) -> tuple[Sequence[Decision], Sequence[Appended]]:
        """Store the entries' records. Returns the entries that were sent at last, and the outcome of each: all entries,
        unless leases ended while the store was away."""
        sent = entries
        doubtful = False

        def append() -> tuple[Sequence[Decision], Sequence[Appended]]:
            nonlocal sent, doubtful
            if doubtful:
                # The store was away, maybe for longer than a lease: what somebody else has decided must stay decided.
                now = self._clock()
                sent = [entry for entry in sent if self._is_ours(entry, now)]
            records = [entry.record for entry in sent if entry.record is not None]
            began = self._clock()
            try:
                appended = self._store.append(records, doubtful=doubtful)
                self.store_seconds = self._clock() - began
                return sent, appended
            except StoreUnavailable:
                doubtful = True
                raise

        return self._persist(append)

    def _look_up(self, entries: Sequence[Decision]) -> _Facts:
        keys = [_key(entry) for entry in entries]
        resting = {entry.aggregate_root_id for entry in entries if entry.rests_on is not None}
        found = self._persist(lambda: self._store.find(keys))
        self.found_bytes += sum(len(record.events) for record in found.values())
        heads = self._persist(lambda: self._store.heads(resting)) if resting else {}
        return _Facts(found, heads)

    # -- deciding -------------------------------------------------------------------------------------------------

    def _settle_record(self, entry: Decision, appended: Appended | None, batch: _Batch) -> None:
        if appended is None:
            batch.released.append(entry)
            batch.refuse(entry)
        elif appended.outcome is _DURABLE:
            batch.finish(entry, entry.record)
        elif appended.outcome is Outcome.REPEATED:
            batch.overrule(entry, appended.stored)
        elif appended.outcome is Outcome.INVALID:
            error = MessageError(f"the database refuses the events: {appended.error}")
            command_id, id = _key(entry)
            extra = {"command_id": command_id, "aggregate_root_id": id}
            logger.error("command %r on aggregate %r: %s", command_id, id, error, extra=extra)
            batch.fail(entry, error)
            batch.refuse(entry)
        else:
            batch.refuse(entry)

    def _settle_unstored(self, entry: Decision, facts: _Facts, own_heads: Mapping[str, int], batch: _Batch) -> None:
        stored = None if is_conflict(entry.result) else facts.found.get(_key(entry))
        if stored is not None:
            if entry.kind is DecisionKind.VERDICT and entry.rests_on is not None:
                batch.overrule(entry, stored)  # the state that gave another verdict knows nothing of what is stored
            else:
                batch.repeat(entry, stored)
        elif entry.kind is DecisionKind.REPEAT or self._is_stale(entry, facts, own_heads):
            batch.refuse(entry)
        else:
            batch.finish(entry, None)

    @staticmethod
    def _is_stale(entry: Decision, facts: _Facts, own_heads: Mapping[str, int]) -> bool:
        if entry.rests_on is None:
            return False
        expected = own_heads.get(entry.aggregate_root_id, entry.rests_on)
        return facts.heads.get(entry.aggregate_root_id, 0) != expected


class _Facts(NamedTuple):
    found: Mapping[CommandKey, StreamRecord]
    heads: Mapping[str, int]


_NO_FACTS = _Facts({}, {})


def _is_held(window: OffsetWindow, now: float) -> bool:
    """Return True if the window's lease is ours. One that has run out is closed."""
    if not window.closed and now >= window.deadline:
        logger.warning("the lease of %s/%d ran out: whoever takes it handles its commands", window.topic, window.queue)
        window.close()
    return not window.closed


def _by_entry(sent: Sequence[Decision], appended: Sequence[Appended]) -> Mapping[int, Appended]:
    """The outcomes by the entries' identities."""
    return dict(zip(map(id, sent), appended, strict=True))


def _are_all_stored(appended: Sequence[Appended]) -> bool:
    """Return True if every record was stored. Drivers give the same object for each, so this takes hardly any time."""
    return bool(appended) and appended[0] == _STORED and appended.count(appended[0]) == len(appended)


_finished: Callable[[Iterable[Any]], Finished] = partial(tuple.__new__, Finished)


class _Batch:
    """``began`` is when the commit began: leases are held against it. The last append to ``store`` by this thread is
    the batch's."""

    def __init__(self, refused: dict[str, int], began: float, store: EventStore) -> None:
        self.began = began
        self._store = store
        self.finished: list[Finished] = []
        self.released: list[Decision] = []
        self.recoveries: list[Recovery] = []
        self.refused_now: dict[str, int] = {}
        self._refused = refused

    def finish(self, entry: Decision, record: StreamRecord | None) -> None:
        if entry.envelope is not None:
            result, generation = entry.result, FIRST.generation
            if record is not None:
                # What was read by another thread, maybe before a failover, is known to belong to the first one only.
                result = None
                generation = 0 if entry.kind is STORED else self._store.generation_of(entry.aggregate_root_id)
            self.finished.append(_finished((entry.envelope, record, result, generation)))
            self.released.append(entry)

    def finish_stored(self, entries: Sequence[Decision]) -> None:
        """Finish streams whose records were all written now; the batch has no others."""
        if len(self._store.shards) == 1:
            # One place, one generation: whatever aggregate is asked about.
            generation = self._store.generation_of(entries[0].aggregate_root_id)
            found = [_finished((entry.envelope, entry.record, None, generation)) for entry in entries]
        else:
            of = self._store.generation_of
            found = [_finished((entry.envelope, entry.record, None, of(entry.aggregate_root_id))) for entry in entries]
        self.finished, self.released = found, list(entries)

    def repeat(self, entry: Decision, stored: StreamRecord | None) -> None:
        """Finish an entry with what is stored under its command's ids, or as the conflict of two commands."""
        envelope = entry.envelope
        conflict = conflict_with_row(envelope, stored) if envelope is not None and stored is not None else None
        if envelope is None or conflict is None:
            self.finish(entry, stored)
            return
        self.finished.append(Finished(envelope, None, conflict))
        self.released.append(entry)
        entry.kind = STORED

    def overrule(self, entry: Decision, stored: StreamRecord | None) -> None:
        """Finish an entry as `repeat` does, and drop what was decided in its place."""
        self.repeat(entry, stored)
        self.refuse(entry)
        entry.kind = STORED

    def fail(self, entry: Decision, error: Exception) -> None:
        if entry.envelope is not None:
            self.finished.append(Finished(entry.envelope, None, failed(entry.envelope, error)))
            self.released.append(entry)

    def refuse(self, entry: Decision) -> None:
        """Drop everything of the entry's aggregate up to its epoch: later in this batch, and until it is recovered."""
        id, epoch = entry.aggregate_root_id, entry.epoch
        self.refused_now[id] = max(epoch, self.refused_now.get(id, epoch))
        self._refused[id] = max(epoch, self._refused.get(id, epoch))
        mailbox = entry.envelope.command_mailbox if entry.envelope is not None else 0
        self.recoveries.append(Recovery(id, epoch, mailbox))


def _key(entry: Decision) -> CommandKey:
    assert entry.envelope is not None
    return (entry.envelope.id, entry.aggregate_root_id)


def _own_heads(records: Iterable[Decision], outcomes: Mapping[int, Appended]) -> dict[str, int]:
    """The newest version per aggregate that this batch has stored itself."""
    heads: dict[str, int] = {}
    for entry in records:
        version = entry.record.version if entry.record is not None else None
        appended = outcomes.get(id(entry))
        if version is not None and appended is not None and appended.outcome is Outcome.STORED:
            heads[entry.aggregate_root_id] = version
    return heads
