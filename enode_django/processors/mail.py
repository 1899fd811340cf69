"""The items of a worker's mailboxes: their weights, and how batches are joined and divided. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Generic, NamedTuple, TypeVar

from enode_django.commanding.decisions import Decision, Envelope, Recovery
from enode_django.concurrency.mailbox import Mailbox
from enode_django.concurrency.room import Room
from enode_django.equeue.portions import portions
from enode_django.processors.statistics import CONSUME_OFFSET, MAX_OFFSET

HANDLE_BYTES = 4 * 1024 * 1024
"""Bytes of events after which a command mailbox hands its decisions over, and releases those that are stored."""
LOOKUP_BYTES = 16 * 1024 * 1024
"""Bytes of stored streams that one lookup should find, estimated from earlier lookups."""
FIRST_LOOKUP = 32
"""Commands of the first lookup in a backlog, before any sizes are known."""

Item = TypeVar("Item")


class Commands(NamedTuple):
    """Pulled commands. ``is_backlog``: some of them may be stored already."""

    envelopes: Sequence[Envelope]
    is_backlog: bool


class Outcomes(NamedTuple):
    released: Sequence[Decision]
    recoveries: Sequence[Recovery]


class Taken(NamedTuple):
    """A queue that was acquired. ``previous_owner`` is set if its lease ran out, so that it may still be writing."""

    queue: int
    previous_owner: str | None


CommandItem = Commands | Outcomes | Taken
"""An item of a command mailbox."""


class Sized(NamedTuple, Generic[Item]):
    """Items for an event mailbox or the publisher, and the bytes of a room that they give back when they are done."""

    items: Sequence[Item]
    size: int
    room: Room

    def give_back(self) -> None:
        self.room.give(self.size)


def size_of_decision(decision: Decision) -> int:
    return len(decision.record.events) if decision.record is not None else 0


def size_of_decisions(decisions: Sequence[Decision]) -> int:
    # A list comprehension without a call for each decision: this runs for every command.
    return sum([len(decision.record.events) for decision in decisions if decision.record is not None])


def command_weight(item: CommandItem) -> int:
    return len(item.envelopes) if isinstance(item, Commands) else 0


def weight(batch: Sized[Any]) -> int:
    return len(batch.items)


def joined(batches: Sequence[Sized[Item]]) -> Sized[Item]:
    """Join batches into one. They must share a room, as those of one event mailbox do."""
    if len(batches) == 1:
        return batches[0]
    items = [item for batch in batches for item in batch.items]
    return Sized(items, sum(batch.size for batch in batches), batches[0].room)


def divided(batch: Sized[Decision], most: int, most_bytes: int) -> Iterable[Sized[Decision]]:
    """Divide a batch into pieces, one COPY each, of up to ``most`` decisions and ``most_bytes``, or one larger one."""
    if len(batch.items) <= most and batch.size <= most_bytes:
        return (batch,)
    pieces = portions(batch.items, size_of_decision, most_bytes=most_bytes, most_items=most)
    return (Sized(some, size_of_decisions(some), batch.room) for some in pieces)


def offsets_of(boxes: Sequence[Mailbox[Any]]) -> dict[str, dict[str, int]]:
    """Return how many items were ever posted into each mailbox and taken from it. The taken ones are read first, so
    that they never exceed the posted ones."""
    taken = [box.consume_offset for box in boxes]
    return {
        box.name.removeprefix("enode-"): {MAX_OFFSET: box.max_offset, CONSUME_OFFSET: offset}
        for box, offset in zip(boxes, taken, strict=True)
    }
