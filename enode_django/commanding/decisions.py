"""The items that travel between the mailboxes of a worker.

intake ── Envelope ──► command mailbox ── Decision ──► event mailbox ── Finished ──► publisher
                              ▲                        │
                              └── finished decisions, Recovery

Those that are made for every command are structs of `msgspec`, whose constructors take a fraction of the time.
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

from msgspec import Struct

from enode_django.bus.results import CommandResult
from enode_django.domain.messages import Command
from enode_django.equeue.offsets import OffsetWindow
from enode_django.eventstore.base import StreamRecord
from enode_django.eventstore.positions import FIRST
from enode_django.eventstore.unique_values import Change


class Envelope(Struct, eq=False):
    """A pulled command with all that is known of it. It does not change once it has left the intake.

    At most one of ``command`` (to be handled) and ``failed`` (why it cannot be) is set; neither is for a command that
    was answered before. ``window`` is None if the command does not come from a queue. ``body`` is the message.
    ``expected_version`` is the only version of the aggregate that the command may be handled on (None: any).
    ``crash_handler`` names the process manager that handles the command's crash, if one does; nobody waits for its
    answer then.
    """

    id: str
    aggregate_root_id: str
    type_name: str
    command: Command | None
    failed: Exception | None = None
    metadata: bytes = b""
    reply_to: str = ""
    window: OffsetWindow | None = None
    offset: int = 0
    body: bytes | None = None
    suspect: bool = False
    command_mailbox: int = 0
    event_mailbox: int = 0
    expected_version: int | None = None
    crash_handler: str = ""

    @property
    def position(self) -> int:
        """Queue and offset as one integer above 0, as `position_of` encodes them."""
        return ((self.window.queue << 48) | self.offset) + 1 if self.window is not None else 1

    @property
    def is_backlog(self) -> bool:
        """True if the command was in its queue when the queue was taken over."""
        return self.window is not None and self.offset < self.window.backlog_end

    @property
    def is_lost(self) -> bool:
        """True if the lease under which the command was pulled is over."""
        return self.window is not None and self.window.closed


class DecisionKind(Enum):
    STREAM = "stream"
    """Events to be stored (``record``, with a version)."""
    REFUSAL = "refusal"
    """A durable refusal to be stored (``record``, without a version)."""
    VERDICT = "verdict"
    """Nothing to be stored: ``result`` is the answer, if the store has the version that it rests on."""
    REPEAT = "repeat"
    """The command was seen before: its outcome should be in the store."""
    STORED = "stored"
    """The outcome is known without handling the command: its row in the store (``record``), or a failure (``result``).
    A decision of another kind becomes this kind if the store turns out to have a row with its command's ids."""
    POSTPONED = "postponed"
    """Not decided yet: the command is handled later. Nothing is stored or finished."""
    RESUMED = "resumed"
    """Not a decision on a command: no more decisions of older epochs come for this aggregate."""

    __hash__ = object.__hash__  # faster than Enum's: kinds are looked up for every decision


# A global is several times faster than a member of the class, and these are looked up for every decision.
STREAM, REFUSAL, STORED, RESUMED = DecisionKind.STREAM, DecisionKind.REFUSAL, DecisionKind.STORED, DecisionKind.RESUMED
POSTPONED = DecisionKind.POSTPONED


class Decision(Struct, eq=False):
    """A command mailbox's decision on one command, made on the version ``rests_on`` (None: on any). ``change`` are the
    unique values that it has claimed and gives up."""

    kind: DecisionKind
    aggregate_root_id: str
    epoch: int
    envelope: Envelope | None
    rests_on: int | None
    record: StreamRecord | None = None
    result: CommandResult | None = None
    change: Change | None = None

    @property
    def is_lost(self) -> bool:
        return self.envelope is not None and self.envelope.is_lost


class Finished(NamedTuple):
    """A command whose outcome is final: a stored ``record`` to answer from and to publish, or else a ``result``.

    ``result`` is answered once the consume offset has moved past the command. The queue remembers it from then on: no
    row in the store keeps a redelivery or a copy from being decided otherwise. ``generation`` is the one of the store
    in which the record was written, or an earlier one.
    """

    envelope: Envelope
    record: StreamRecord | None
    result: CommandResult | None
    generation: int = FIRST.generation


class Recovery(NamedTuple):
    """Says that the store refused a stream of this aggregate: the effects of commands handled since in this epoch are
    lost.

    ``command_mailbox`` is the one that handled it. If the shard map has changed, later commands have another one.
    """

    aggregate_root_id: str
    epoch: int
    command_mailbox: int = 0
