"""The facts of a run, as plain values. No I/O.

Times from a database or the queue are in microseconds since 1970, those from clients' logs in seconds.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from hashlib import blake2b
from typing import Any, NamedTuple, TypeAlias

from chaos.checker.decoding import REFUSAL, Contents, read_contents
from chaos.checker.replay.bank import Replay, replay

CommandKey: TypeAlias = tuple[str, str]
"""Command id and aggregate root id."""
Consumption: TypeAlias = tuple[str, str, int]
"""Group, topic and queue."""


class Violation(NamedTuple):
    """A broken rule. ``rule`` is a name in `chaos.checker.rules.RULES`, or ``unreadable``."""

    rule: str
    text: str


class Send(NamedTuple):
    """A command that a client was about to send. ``fields`` are texts."""

    command_id: str
    aggregate_root_id: str
    type_name: str
    fields: Mapping[str, str]


class Answer(NamedTuple):
    """An answer. ``status`` is SUCCESS, NOTHING_CHANGED, REFUSED or FAILED; ``value`` is a text, or None."""

    command_id: str
    aggregate_root_id: str
    status: str
    version: int | None = None
    value: str | None = None
    error_type: str = ""
    error_message: str = ""

    @property
    def key(self) -> CommandKey:
        return (self.command_id, self.aggregate_root_id)


@dataclass(frozen=True, slots=True)
class StoredRow:
    """A row of the event store. ``version`` is None for a refusal. ``digest`` is the result of `digest_of`."""

    shard: int
    aggregate_root_type: str
    aggregate_root_id: str
    version: int | None
    command_id: str
    command_type: str
    created_at: int
    payload: bytes
    digest: bytes

    @property
    def key(self) -> CommandKey:
        return (self.command_id, self.aggregate_root_id)

    @property
    def is_refusal(self) -> bool:
        """True if the stored contents are a refusal, whatever the version."""
        return self.payload[0] == REFUSAL

    @property
    def contents(self) -> Contents:
        """The contents, decoded at each access, because decoded rows would take several times the memory."""
        return read_contents(self.payload)


class Published(NamedTuple):
    """A stream in the event topic."""

    queue: int
    offset: int
    aggregate_root_id: str
    version: int | None
    command_id: str
    digest: bytes

    @property
    def key(self) -> CommandKey:
        return (self.command_id, self.aggregate_root_id)


def digest_of(
    aggregate_root_type: str,
    aggregate_root_id: str,
    version: int | None,
    command_id: str,
    command_type: str,
    created_at: int,
    payload: bytes,
    metadata: bytes,
) -> bytes:
    """Return a digest of eight bytes of a whole row, by which published streams are compared without being kept."""
    digest = blake2b(digest_size=8)
    texts = (aggregate_root_type, aggregate_root_id, str(version), command_id, command_type, str(created_at))
    for part in (*(text.encode() for text in texts), payload, metadata):
        digest.update(len(part).to_bytes(4, "little") + part)
    return digest.digest()


class Handled(NamedTuple):
    """An event that an observing subscriber handled."""

    at: float
    subscriber: str
    aggregate_root_id: str
    version: int
    event_id: str


class Parked(NamedTuple):
    subscriber: str
    aggregate_root_id: str
    version: int | None
    error_type: str


# -- the queue's log, in its order --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Appended:
    """Messages in a queue. ``producer`` and ``sequence`` identify the send; ``producer`` is empty if it is unknown. The
    batch is number ``part`` of the ``parts`` of the send.
    """

    place: str
    topic: str
    queue: int
    first_offset: int
    count: int
    producer: bytes = b""
    sequence: int = 0
    part: int = 0
    parts: int = 1


class Acquired(NamedTuple):
    place: str
    consumption: Consumption
    owner: str
    epoch: int


class Committed(NamedTuple):
    place: str
    consumption: Consumption
    epoch: int
    offset: int


class OffsetSet(NamedTuple):
    """The offset of a group was set manually."""

    place: str
    consumption: Consumption


LogRecord: TypeAlias = Appended | Acquired | Committed | OffsetSet


class Sample(NamedTuple):
    """A sample of the queue's administration. ``epoch`` is 0 and ``owner`` empty if nobody owns the queue."""

    at: float
    consumption: Consumption
    committed: int
    owner: str = ""
    epoch: int = 0


# -- read models --------------------------------------------------------------------------------------------------

TableRow: TypeAlias = tuple[Any, ...]
"""Columns in the order of `chaos.checker.replay.read_models`."""


@dataclass(frozen=True, kw_only=True)
class Facts:
    """The facts of a run. ``published`` is None if the queue was not read. ``tables`` holds the read models by name,
    ``checkpoints`` the versions by (subscriber, aggregate root id). ``dead`` are the commands among the dead letters.
    ``garbage`` is the number of invalid messages that the run itself has sent. ``trimmed`` are the queues of the event
    topic that no longer begin at offset 0. ``widened`` are the topics to which the run has added queues while messages
    waited.
    """

    sends: Sequence[Send] = ()
    acknowledged: frozenset[str] = frozenset()
    answers: Sequence[Answer] = ()
    stored: Sequence[StoredRow] = ()
    published: Sequence[Published] | None = None
    trimmed: frozenset[int] = frozenset()
    subscribers: Sequence[str] = ()
    handled: Sequence[Handled] = ()
    log: Sequence[LogRecord] = ()
    log_is_whole: bool = True
    samples: Sequence[Sample] = ()
    dead: frozenset[CommandKey] = frozenset()
    garbage: int = 0
    tables: Mapping[str, Sequence[TableRow]] = field(default_factory=dict)
    checkpoints: Mapping[tuple[str, str], int] = field(default_factory=dict)
    parked: Sequence[Parked] = ()
    command_topic: str = "commands"
    event_topic: str = "events"
    widened: frozenset[str] = frozenset()
    group: str = "processors"

    @property
    def are_all_answers_final(self) -> bool:
        """False if a copy of a command whose answer left no row may have got another answer: it may have come to a
        queue that was added while messages waited."""
        return self.command_topic not in self.widened

    @cached_property
    def sent(self) -> Mapping[str, Send]:
        return {send.command_id: send for send in self.sends}

    @cached_property
    def rows_by_key(self) -> Mapping[CommandKey, Sequence[StoredRow]]:
        """The rows of each command: exactly one, unless a promise is broken."""
        rows: dict[CommandKey, tuple[StoredRow, ...]] = {}
        for row in self.stored:
            rows[row.key] = (*rows.get(row.key, ()), row)
        return rows

    @cached_property
    def answers_by_command(self) -> Mapping[str, Sequence[Answer]]:
        answers: dict[str, list[Answer]] = {}
        for answer in self.answers:
            answers.setdefault(answer.command_id, []).append(answer)
        return answers

    @cached_property
    def histories(self) -> Mapping[str, Sequence[StoredRow]]:
        """The rows of each aggregate without refusals, sorted by version."""
        histories: defaultdict[str, list[StoredRow]] = defaultdict(list)
        for row in self.stored:
            if row.version is not None:
                histories[row.aggregate_root_id].append(row)
        for rows in histories.values():
            rows.sort(key=lambda row: row.version or 0)
        return dict(histories)

    @cached_property
    def refusals(self) -> Sequence[StoredRow]:
        return [row for row in self.stored if row.version is None]

    @cached_property
    def replay(self) -> Replay:
        """The bank, replayed from the stored events."""
        return replay(self.histories, self.refusals)
