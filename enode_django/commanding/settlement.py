"""Settle decisions, by their kind and by the store's outcome for them.

A decision of a command mailbox is final once the store agrees. The store's answer on a decision is its `Finding`.
Events and refusals are sent to the store, which stores them or says why not. A verdict, which leaves no row, counts if
the aggregate still has the version that it rests on. A repeat counts if its command has a row.

A decision that does not count is *refused*: all decisions on the aggregate up to that epoch are dropped, here and as
they arrive, and the command mailbox decides them again on what is stored.

|               | stored | repeated | invalid | conflict | unsent    | found    | stale  | agreed |
|---------------|--------|----------|---------|----------|-----------|----------|--------|--------|
| stream        | finish | overrule | reject  | refuse   | hand over |          |        |        |
| refusal       | finish | overrule | reject  | refuse   | hand over |          |        |        |
| verdict       |        |          |         |          |           | correct  | refuse | finish |
| repeat        |        |          |         |          |           | repeat   | refuse | refuse |
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import Enum
from functools import partial
from typing import Any

from enode_django.commanding.decisions import STORED, Decision, DecisionKind, Finished, Recovery
from enode_django.commanding.identity import conflict_with_row
from enode_django.commanding.outcomes import failed, log_mistake
from enode_django.eventstore.base import Appended, CommandKey, EventStore, Outcome, StreamRecord
from enode_django.eventstore.positions import FIRST
from enode_django.exceptions import MessageError

logger = logging.getLogger("enode_django.store")


class Finding(Enum):
    STORED = "stored"
    """The row of the decision was written now."""
    REPEATED = "repeated"
    """The store already has a row with its command's ids."""
    INVALID = "invalid"
    """The database refuses its values; sending them again is useless."""
    CONFLICT = "conflict"
    """Another command has the version, or the aggregate's head has moved."""
    UNSENT = "unsent"
    """The store was away for longer than the lease of its queue: another worker decides."""
    FOUND = "found"
    """Nothing had to be written, and the store has a row with its command's ids."""
    STALE = "stale"
    """Nothing had to be written, and the aggregate is not at the version that the decision rests on."""
    AGREED = "agreed"
    """Nothing had to be written, and the store does not contradict the decision."""

    __hash__ = object.__hash__  # faster than Enum's: findings are looked up for every decision


FINDINGS: Mapping[Outcome, Finding] = {
    Outcome.STORED: Finding.STORED,
    Outcome.REPEATED: Finding.REPEATED,
    Outcome.INVALID: Finding.INVALID,
    Outcome.CONFLICT: Finding.CONFLICT,
}

_finished: Callable[[Iterable[Any]], Finished] = partial(tuple.__new__, Finished)


class Batch:
    """The outcomes of one batch of decisions. ``began`` is when the commit began; leases are checked against it. The
    last append to ``store`` by this thread is the batch's."""

    def __init__(self, refused: dict[str, int], began: float, store: EventStore) -> None:
        self.began = began
        self._store = store
        self.finished: list[Finished] = []
        self.released: list[Decision] = []
        self.recoveries: list[Recovery] = []
        self.refused_now: dict[str, int] = {}
        self._refused = refused

    def finish(self, decision: Decision, record: StreamRecord | None) -> None:
        if decision.envelope is not None:
            result, generation = decision.result, FIRST.generation
            if record is not None:
                # A record of another thread may have been read before a failover: only the first generation is certain.
                result = None
                generation = 0 if decision.kind is STORED else self._store.generation_of(decision.aggregate_root_id)
            self.finished.append(_finished((decision.envelope, record, result, generation)))
            self.released.append(decision)

    def finish_stored(self, decisions: Sequence[Decision]) -> None:
        """Finish streams whose records were all written now; the batch has no others."""
        if len(self._store.shards) == 1:
            # All aggregates of one shard have the same generation.
            generation = self._store.generation_of(decisions[0].aggregate_root_id)
            found = [_finished((decision.envelope, decision.record, None, generation)) for decision in decisions]
        else:
            of = self._store.generation_of
            found = [
                _finished((decision.envelope, decision.record, None, of(decision.aggregate_root_id)))
                for decision in decisions
            ]
        self.finished, self.released = found, list(decisions)

    def repeat(self, decision: Decision, stored: StreamRecord | None) -> None:
        """Finish a decision with the row stored under its command's ids, or as a conflict of ids."""
        envelope = decision.envelope
        conflict = conflict_with_row(envelope, stored) if envelope is not None and stored is not None else None
        if envelope is None or conflict is None:
            self.finish(decision, stored)
            return
        self.finished.append(Finished(envelope, None, conflict))
        self.released.append(decision)
        decision.kind = STORED

    def overrule(self, decision: Decision, stored: StreamRecord | None) -> None:
        """Finish a decision as `repeat` does, and drop the decisions that were made in its place."""
        self.repeat(decision, stored)
        self.refuse(decision)
        decision.kind = STORED

    def fail(self, decision: Decision, error: Exception) -> None:
        if decision.envelope is not None:
            self.finished.append(Finished(decision.envelope, None, failed(decision.envelope, error)))
            self.released.append(decision)

    def refuse(self, decision: Decision) -> None:
        """Drop all decisions on the aggregate up to this epoch, in the rest of this batch and until it is recovered."""
        id, epoch = decision.aggregate_root_id, decision.epoch
        self.refused_now[id] = max(epoch, self.refused_now.get(id, epoch))
        self._refused[id] = max(epoch, self._refused.get(id, epoch))
        mailbox = decision.envelope.command_mailbox if decision.envelope is not None else 0
        self.recoveries.append(Recovery(id, epoch, mailbox))


def key_of(decision: Decision) -> CommandKey:
    assert decision.envelope is not None
    return (decision.envelope.id, decision.aggregate_root_id)


Settle = Callable[[Batch, Decision, Any], None]
"""Called with the outcome of a record (`Appended`), with the row that was found, or with None."""


def _finish_record(batch: Batch, decision: Decision, appended: Appended) -> None:
    batch.finish(decision, decision.record)


def _finish_verdict(batch: Batch, decision: Decision, nothing: None) -> None:
    if decision.rests_on is not None and decision.envelope is not None and decision.result is not None:
        log_mistake(decision.envelope, decision.result)
    batch.finish(decision, None)


def _overrule(batch: Batch, decision: Decision, appended: Appended) -> None:
    batch.overrule(decision, appended.stored)


def _correct(batch: Batch, decision: Decision, stored: StreamRecord) -> None:
    """Finish a verdict with the stored row. If it rests on a version, that state lacked the row, and is overruled."""
    if decision.rests_on is not None:
        batch.overrule(decision, stored)
    else:
        batch.repeat(decision, stored)


def _reject(batch: Batch, decision: Decision, appended: Appended) -> None:
    error = MessageError(f"the database refuses the events: {appended.error}")
    command_id, id = key_of(decision)
    extra = {"command_id": command_id, "aggregate_root_id": id}
    logger.error("command %r on aggregate %r: %s", command_id, id, error, extra=extra)
    batch.fail(decision, error)
    batch.refuse(decision)


def _refuse(batch: Batch, decision: Decision, reason: Any) -> None:
    batch.refuse(decision)


def _hand_over(batch: Batch, decision: Decision, nothing: None) -> None:
    batch.released.append(decision)
    batch.refuse(decision)


_OF_RECORDS: Mapping[Finding, Settle] = {
    Finding.STORED: _finish_record,
    Finding.REPEATED: _overrule,
    Finding.INVALID: _reject,
    Finding.CONFLICT: _refuse,
    Finding.UNSENT: _hand_over,
}
TABLE: Mapping[DecisionKind, Mapping[Finding, Settle]] = {
    DecisionKind.STREAM: _OF_RECORDS,
    DecisionKind.REFUSAL: _OF_RECORDS,
    DecisionKind.VERDICT: {Finding.FOUND: _correct, Finding.STALE: _refuse, Finding.AGREED: _finish_verdict},
    DecisionKind.REPEAT: {Finding.FOUND: Batch.repeat, Finding.STALE: _refuse, Finding.AGREED: _refuse},
}


def settle(batch: Batch, decision: Decision, finding: Finding, fact: Any = None) -> None:
    """Settle a decision as the table says. ``fact``: see `Settle`. Raises `AssertionError` for a pair not in the
    table."""
    effect = TABLE.get(decision.kind, {}).get(finding)
    if effect is None:
        raise AssertionError(f"a decision of the kind {decision.kind.value!r} cannot be {finding.value!r}")
    effect(batch, decision, fact)
