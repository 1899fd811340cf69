"""Commands that wait until the unique values that they set are claimed, those of a batch together."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from enode_django.commanding.cache import Slot
from enode_django.commanding.context import CommandContext
from enode_django.commanding.decisions import STREAM, Decision, Envelope
from enode_django.commanding.uniqueness import NewValues, Uniqueness
from enode_django.concurrency.in_flight import NOTHING_IN_FLIGHT, InFlightMarker
from enode_django.domain.aggregate import AggregateRoot, accept_events
from enode_django.eventstore.base import StreamRecord
from enode_django.eventstore.unique_values import Change, UniqueKey, UniqueValue


class Claiming(Decision, kw_only=True):
    """Stands for a command that is handled, and not decided until its ``values`` are claimed. Then the ``slot`` gets
    the ``aggregate``, or the command is refused. ``handled`` is its envelope."""

    handled: Envelope
    slot: Slot
    context: CommandContext
    aggregate: AggregateRoot
    values: NewValues


def claiming(
    slot: Slot,
    envelope: Envelope,
    context: CommandContext,
    aggregate: AggregateRoot,
    record: StreamRecord,
    values: NewValues,
) -> Claiming:
    """Return the stand-in for a command whose handler has changed the aggregate."""
    of_decision = (STREAM, slot.id, slot.epoch, envelope, aggregate.version, record)
    return Claiming(*of_decision, handled=envelope, slot=slot, context=context, aggregate=aggregate, values=values)


def accepted(
    slot: Slot,
    envelope: Envelope,
    aggregate: AggregateRoot,
    record: StreamRecord | None,
    change: Change | None = None,
) -> Decision:
    """Give the slot the changed aggregate, and return the decision to store its events."""
    accept_events(aggregate)
    slot.aggregate, rests_on = aggregate, aggregate.version - 1
    return Decision(STREAM, slot.id, slot.epoch, envelope, rests_on, record, None, change)


Decide = Callable[[Claiming, Exception | None], Decision]


class ClaimingCommands:
    """The commands of a batch that wait: at most one of each aggregate, and at most one that sets or gives up a value.
    So their order does not matter, nor that of the commands between them.

    ``decide`` takes a waiting command and the error that its claim ended with, or None. ``note`` is that of the
    `CommandProcessor`.
    """

    def __init__(self, uniqueness: Uniqueness, note: InFlightMarker, decide: Decide) -> None:
        self._uniqueness = uniqueness
        self._note = note
        self._decide = decide
        self.places: dict[str, int] = {}
        """The places of the waiting commands among the decisions of the batch, by aggregate."""
        self._keys: set[UniqueKey] = set()

    def begin(self) -> None:
        """Forget a batch that an error has ended."""
        self.places.clear()
        self._keys.clear()

    def make_way(self, envelope: Envelope, entries: list[Decision]) -> None:
        """Decide on the waiting commands, if the next one may depend on that."""
        if envelope.aggregate_root_id in self.places or envelope.suspect:
            self.claim(entries)

    def add(self, entry: Claiming, entries: list[Decision]) -> None:
        """Let a command wait, whose stand-in comes next among the ``entries``."""
        keys = set(_keys_of(entry))
        if not keys.isdisjoint(self._keys):
            self.claim(entries)
        self._keys |= keys
        self.places[entry.aggregate_root_id] = len(entries)

    def claim(self, entries: list[Decision]) -> None:
        """Claim the values of all waiting commands, and put decisions in their places. Blocks on the store."""
        if self.places:
            places = list(self.places.values())
            self.begin()
            waiting = [entry for place in places if isinstance(entry := entries[place], Claiming)]
            for place, decision in zip(places, self._decisions(waiting), strict=True):
                entries[place] = decision

    def alone(self, entry: Decision) -> Decision:
        """Return the decision, made by now if the command waits. Blocks on the store then."""
        return next(self._decisions([entry])) if isinstance(entry, Claiming) else entry

    def _decisions(self, waiting: Sequence[Claiming]) -> Iterator[Decision]:
        self._note[0] = NOTHING_IN_FLIGHT  # a slow store is not the handlers' fault
        claimed = self._uniqueness.claim([entry.values.claim for entry in waiting])
        for entry, others in zip(waiting, claimed, strict=True):
            yield self._decide(entry, self._error_of(entry, others))

    def _error_of(self, entry: Claiming, others: Sequence[UniqueValue] | Exception) -> Exception | None:
        """Return the error of a claim that got all values except those of ``others``; None if it may have all."""
        if isinstance(others, Exception):
            return others
        try:
            if others:
                self._note[0] = entry.handled.position  # appliers of the other aggregates may hang or crash
                self._uniqueness.settle_others(entry.values, others)
        except Exception as error:
            return error
        return None


def _keys_of(entry: Claiming) -> Iterator[UniqueKey]:
    for keys in entry.values.claim.change:
        yield from keys
