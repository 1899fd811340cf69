"""The invariants that hold after every fault, once the system is quiet: one checker for all acceptance tests.

`violations` is pure; `Facts` are the reports of the senders, the store and the queue.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from decimal import Decimal
from typing import Any, NamedTuple

from enode_django import Command, CommandResult, CommandStatus
from enode_django.eventstore.base import CommandKey, StreamRecord
from enode_django.eventstore.buckets import BUCKETS, bucket_of
from enode_django.serialization.codec import StoredRefusal, StoredStream, read_stored
from sample_project.bank.domain import Withdraw
from tests.acceptance.journal import Journal


class Facts(NamedTuple):
    """``published`` are the records of the events topic, queue by queue, in order (None: not to be checked); offsets
    are those of the commands' topic."""

    journal: Journal
    stored: Sequence[StreamRecord]
    published: Sequence[StreamRecord] | None
    committed: Mapping[int, int]
    end: Mapping[int, int]


DERIVED = {
    f"bank.{name}"
    for name in (
        *("ReserveWithdrawal", "ReserveDeposit", "ConfirmWithdrawal", "ConfirmDeposit", "CancelReservation"),
        *("NoteReserved", "NoteMoved", "CancelTransfer"),
    )
}
"""The commands that no sender sent, but the process manager."""
TRANSFERRED = {"bank.WithdrawalConfirmed": -1, "bank.DepositConfirmed": 1}


def violations(facts: Facts) -> list[str]:
    by_key: dict[CommandKey, StreamRecord] = {record.command_key: record for record in facts.stored}
    return [
        *_answers(facts.journal, by_key),
        *_ends(facts.journal, by_key),
        *_rows(facts.stored, facts.journal),
        *_histories(facts.stored, facts.journal),
        *(_published(facts.stored, facts.published) if facts.published is not None else ()),
        *_offsets(facts),
    ]


def misplaced(shards: Sequence[Sequence[StreamRecord]], owned: Sequence[Collection[int]]) -> Iterator[str]:
    """Yield a violation for each stream outside of the shard that recorded its bucket. ``owned``: the buckets of each
    shard."""
    if sorted(bucket for buckets in owned for bucket in buckets) != list(range(BUCKETS)):
        yield "the shards have not recorded each bucket once"
    for number, (records, buckets) in enumerate(zip(shards, owned, strict=True)):
        for record in records:
            if bucket_of(record.aggregate_root_id) not in buckets:
                yield f"command {record.command_id} of {record.aggregate_root_id} is stored in shard {number}"


def _answers(journal: Journal, stored: Mapping[CommandKey, StreamRecord]) -> Iterator[str]:
    for id, answers in journal.answers.items():
        if any(answer != answers[0] for answer in answers):
            yield f"command {id} was answered in different ways: {answers}"
        for answer in answers:
            if (answer.command_id, answer.aggregate_root_id) != _key(journal.sent[id]):
                yield f"command {id} got the answer of another one: {answer}"
            yield from _answer(answer, stored.get((id, answer.aggregate_root_id)))


def _answer(answer: CommandResult, row: StreamRecord | None) -> Iterator[str]:
    said = f"command {answer.command_id} was answered {answer.status.name} {answer.error_type}"
    if answer.status is CommandStatus.SUCCESS:
        if row is None or row.version is None:
            yield f"{said}, but stored is {row}"
        elif row.version != answer.version:
            yield f"{said} with version {answer.version}, but stored is version {row.version}"
    elif answer.status is CommandStatus.NOTHING_CHANGED:
        if row is not None:
            yield f"{said}, but stored is {row}"
    elif answer.status is CommandStatus.REFUSED:
        refusal = read_stored(row.events) if row is not None else None
        if not isinstance(refusal, StoredRefusal) or refusal.type_name != answer.error_type:
            yield f"{said}, but stored is {row}"
    elif row is not None:
        yield f"{said}, but stored is {row}"


def _ends(journal: Journal, stored: Mapping[CommandKey, StreamRecord]) -> Iterator[str]:
    for id in journal.unanswered:
        yield f"command {id} was never answered"
    for id, command in journal.sent.items():
        if _key(command) not in stored and id not in journal.answers:
            yield f"command {id} ({type(command).__name__}) was sent and has no end"


def _rows(stored: Iterable[StreamRecord], journal: Journal) -> Iterator[str]:
    for key, times in Counter(record.command_key for record in stored).items():
        if times > 1:
            yield f"command {key} is stored {times} times"
    for record in stored:
        if record.command_id not in journal.sent and record.command_type not in DERIVED:
            yield f"command {record.command_id} is stored, but nobody sent it"
        if isinstance(read_stored(record.events), StoredRefusal) != (record.version is None):
            yield f"command {record.command_id} is stored as the wrong kind of row"


def _histories(stored: Iterable[StreamRecord], journal: Journal) -> Iterator[str]:
    histories: dict[str, list[StreamRecord]] = defaultdict(list)
    for record in stored:
        if record.version is not None:
            histories[record.aggregate_root_id].append(record)
    for id, records in histories.items():
        versions = sorted(record.version or 0 for record in records)
        if versions != list(range(1, len(records) + 1)):
            yield f"aggregate {id} has the versions {versions}"
        yield from _balances(id, sorted(records, key=lambda record: record.version or 0), journal)


def _balances(id: str, records: Iterable[StreamRecord], journal: Journal) -> Iterator[str]:
    balance = Decimal(0)
    for record in records:
        command = journal.sent.get(record.command_id)
        amount = getattr(command, "amount", Decimal(0))
        balance += -amount if isinstance(command, Withdraw) else amount
        stream = read_stored(record.events)
        assert isinstance(stream, StoredStream)
        for event in stream.events:
            balance += TRANSFERRED.get(event.type_name, 0) * Decimal(event.fields.get("amount", 0))
            said = event.fields.get("balance", balance)
            if Decimal(said) != balance:
                yield f"aggregate {id} has the balance {said} at version {record.version}; accepted was {balance}"


def _published(stored: Iterable[StreamRecord], published: Iterable[StreamRecord]) -> Iterator[str]:
    first: dict[CommandKey, StreamRecord] = {}
    last: dict[str, int] = {}
    for record in published:
        if record.command_key in first:
            if first[record.command_key] != record:
                yield f"command {record.command_key} was published in different ways"
            continue
        first[record.command_key] = record
        if record.version is not None:
            before = last.get(record.aggregate_root_id, 0)
            if record.version != before + 1:
                yield f"aggregate {record.aggregate_root_id}: version {record.version} was published after {before}"
            last[record.aggregate_root_id] = record.version
    for record in stored:
        if first.pop(record.command_key, None) != record:
            yield f"version {record.version} of {record.aggregate_root_id} was not published as it is stored"
    for key in first:
        yield f"command {key} was published, but is not stored"


def _offsets(facts: Facts) -> Iterator[str]:
    for queue, end in facts.end.items():
        if facts.committed.get(queue, 0) != end:
            yield f"queue {queue} is committed up to {facts.committed.get(queue, 0)}, and ends at {end}"


def _key(command: Command) -> CommandKey:
    return (command.id, command.aggregate_root_id)


def variety(journal: Journal) -> dict[str, Any]:
    """Return how often each kind of outcome occurred. A check proves nothing if the load had no effect."""
    answers = [answers[0] for answers in journal.answers.values()]
    return {
        "sent": len(journal.sent),
        "repeats": journal.repeats + sum(len(answers) - 1 for answers in journal.answers.values()),
        **Counter(answer.error_type or answer.status.name for answer in answers),
    }
