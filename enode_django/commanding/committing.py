"""An event mailbox without its thread: entries in, final outcomes out.

What the store refuses is not failed but decided again: the aggregate's later entries of that epoch are dropped, here
and as they arrive, and a `Recovery` tells the command mailbox to start anew. No thread waits for another.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from enode_django.commanding.entries import (
    POSTPONED,
    REFUSAL,
    RESUMED,
    STORED,
    STREAM,
    Entry,
    EntryKind,
    Finished,
    Recovery,
)
from enode_django.commanding.outcomes import failed
from enode_django.concurrency.backoff import Persist
from enode_django.eventstore.base import Appended, CommandKey, EventStore, Outcome, StreamRecord
from enode_django.eventstore.positions import FIRST
from enode_django.exceptions import MessageError, StoreUnavailable

logger = logging.getLogger("enode_django.store")

_CONFLICT = Appended(Outcome.CONFLICT)
_DURABLE = Outcome.STORED
RECORDS = (STREAM, REFUSAL)
UNSTORED = (EntryKind.VERDICT, EntryKind.REPEAT)


class Committed(NamedTuple):
    """The outcome of one batch.

    ``finished`` is for the publisher, in order. ``released`` are entries the command mailbox can let go of, and
    ``recoveries`` what it must do after that.
    """

    finished: Sequence[Finished]
    released: Sequence[Entry]
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

    def commit(self, entries: Sequence[Entry]) -> Committed:
        batch = _Batch(self._refused, self._clock(), self._store.generation_of)
        self.store_seconds, self.found_bytes = None, 0
        live = [entry for entry in entries if self._belongs(entry, batch)]
        records = [entry for entry in live if entry.kind in RECORDS]
        outcomes = self._store_records(records) if records else {}
        unstored = [entry for entry in live if entry.kind in UNSTORED]
        facts = self._look_up(unstored) if unstored else _NO_FACTS
        heads = _own_heads(records, outcomes) if unstored else {}
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
        self.conflicts += len(batch.recoveries)
        return Committed(batch.finished, batch.released, batch.recoveries)

    # -- what may be stored at all --------------------------------------------------------------------------------

    def _belongs(self, entry: Entry, batch: _Batch) -> bool:
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
    def _is_ours(entry: Entry, now: float) -> bool:
        window = entry.envelope.window if entry.envelope is not None else None
        if window is None:
            return True
        if not window.closed and now >= window.deadline:
            logger.warning(
                "the lease of %s/%d ran out: whoever takes it handles its commands", window.topic, window.queue
            )
            window.close()
        return not window.closed

    def _store_records(self, records: Sequence[Entry]) -> Mapping[int, Appended]:
        """By the entries' identities. What is missing was not stored, and is not ours any more."""
        outdated = self._outdated(records)
        if not outdated:
            return self._append(records)
        fresh = [entry for entry in records if entry.aggregate_root_id not in outdated]
        outcomes = dict(self._append(fresh)) if fresh else {}
        outcomes.update({id(entry): _CONFLICT for entry in records if entry.aggregate_root_id in outdated})
        return outcomes

    def _outdated(self, records: Sequence[Entry]) -> set[str]:
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

    def _append(self, entries: Sequence[Entry]) -> Mapping[int, Appended]:
        sent = entries
        doubtful = False

        def append() -> Mapping[int, Appended]:
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
                return dict(zip(map(id, sent), appended, strict=True))
            except StoreUnavailable:
                doubtful = True
                raise

        return self._persist(append)

    def _look_up(self, entries: Sequence[Entry]) -> _Facts:
        keys = [_key(entry) for entry in entries]
        resting = {entry.aggregate_root_id for entry in entries if entry.rests_on is not None}
        found = self._persist(lambda: self._store.find(keys))
        self.found_bytes += sum(len(record.events) for record in found.values())
        heads = self._persist(lambda: self._store.heads(resting)) if resting else {}
        return _Facts(found, heads)

    # -- deciding -------------------------------------------------------------------------------------------------

    def _settle_record(self, entry: Entry, appended: Appended | None, batch: _Batch) -> None:
        if appended is None:
            batch.released.append(entry)
            batch.refuse(entry)
        elif appended.outcome is _DURABLE:
            batch.finish(entry, entry.record)
        elif appended.outcome is Outcome.REPEATED:
            batch.finish(entry, appended.stored)
            batch.refuse(entry)
        elif appended.outcome is Outcome.INVALID:
            error = MessageError(f"the database refuses the events: {appended.error}")
            command_id, id = _key(entry)
            extra = {"command_id": command_id, "aggregate_root_id": id}
            logger.error("command %r on aggregate %r: %s", command_id, id, error, extra=extra)
            batch.fail(entry, error)
            batch.refuse(entry)
        else:
            batch.refuse(entry)

    def _settle_unstored(self, entry: Entry, facts: _Facts, own_heads: Mapping[str, int], batch: _Batch) -> None:
        stored = facts.found.get(_key(entry))
        if stored is not None:
            batch.finish(entry, stored)
            if entry.kind is EntryKind.VERDICT and entry.rests_on is not None:
                batch.refuse(entry)  # the state that gave another verdict knows nothing of what is stored
        elif entry.kind is EntryKind.REPEAT or self._is_stale(entry, facts, own_heads):
            batch.refuse(entry)
        else:
            batch.finish(entry, None)

    @staticmethod
    def _is_stale(entry: Entry, facts: _Facts, own_heads: Mapping[str, int]) -> bool:
        if entry.rests_on is None:
            return False
        expected = own_heads.get(entry.aggregate_root_id, entry.rests_on)
        return facts.heads.get(entry.aggregate_root_id, 0) != expected


class _Facts(NamedTuple):
    found: Mapping[CommandKey, StreamRecord]
    heads: Mapping[str, int]


_NO_FACTS = _Facts({}, {})


_finished: Callable[[Iterable[Any]], Finished] = partial(tuple.__new__, Finished)


class _Batch:
    """``began`` is when the commit began: leases are held against it. ``generation_of`` is the store's, since its last
    append was this batch's."""

    def __init__(self, refused: dict[str, int], began: float, generation_of: Callable[[str], int]) -> None:
        self.began = began
        self._generation_of = generation_of
        self.finished: list[Finished] = []
        self.released: list[Entry] = []
        self.recoveries: list[Recovery] = []
        self.refused_now: dict[str, int] = {}
        self._refused = refused

    def finish(self, entry: Entry, record: StreamRecord | None) -> None:
        if entry.envelope is not None:
            result, generation = entry.result, FIRST.generation
            if record is not None:
                # What was read by another thread, maybe before a failover, is known to belong to the first one only.
                result, generation = None, 0 if entry.kind is STORED else self._generation_of(entry.aggregate_root_id)
            self.finished.append(_finished((entry.envelope, record, result, generation)))
            self.released.append(entry)

    def fail(self, entry: Entry, error: Exception) -> None:
        if entry.envelope is not None:
            self.finished.append(Finished(entry.envelope, None, failed(entry.envelope, error)))
            self.released.append(entry)

    def refuse(self, entry: Entry) -> None:
        """Drop everything of the entry's aggregate up to its epoch: later in this batch, and until it is recovered."""
        id, epoch = entry.aggregate_root_id, entry.epoch
        self.refused_now[id] = max(epoch, self.refused_now.get(id, epoch))
        self._refused[id] = max(epoch, self._refused.get(id, epoch))
        mailbox = entry.envelope.command_mailbox if entry.envelope is not None else 0
        self.recoveries.append(Recovery(id, epoch, mailbox))


def _key(entry: Entry) -> CommandKey:
    assert entry.envelope is not None
    return (entry.envelope.id, entry.aggregate_root_id)


def _own_heads(records: Iterable[Entry], outcomes: Mapping[int, Appended]) -> dict[str, int]:
    """The newest version per aggregate that this batch has stored itself."""
    heads: dict[str, int] = {}
    for entry in records:
        version = entry.record.version if entry.record is not None else None
        appended = outcomes.get(id(entry))
        if version is not None and appended is not None and appended.outcome is Outcome.STORED:
            heads[entry.aggregate_root_id] = version
    return heads
