"""Unique values: claimed before a stream is stored, confirmed afterwards, and decided by the event store in between.

A claim names its command in the row of the value. Only the event store knows the outcome of that command. A row with
commands under way is settled by asking the event store:

* The commands that claim the value and have no row in the store are *open*. Until the deadline they may be a worker's
  that is about to store them, so the value counts as held. After it they are *fenced*: a refusal is stored under their
  ids. A pair (command id, aggregate root id) is there once, in one database, so the stream of a fenced command can
  never be stored, even if its worker stood still and goes on.
* When no claim is open, the stored state of the owner says whether it holds the value. Versions that may give it up
  stay noted until they are stored, by this command or another one.
* A row is changed with the token that was read before. A claim made meanwhile has changed the token.

So two aggregates never have the same value in their stored states, even if processes crash or stand still. This does
not depend on clocks: a deadline that is too short refuses commands, but confirms no value twice.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from enum import Enum
from typing import NamedTuple

from enode_django.commanding.decisions import Decision, Envelope
from enode_django.domain.aggregate import AggregateRoot
from enode_django.domain.refusals import ValueTaken
from enode_django.domain.unique import Unique
from enode_django.eventstore.base import StreamRecord
from enode_django.eventstore.unique_values import (
    Change,
    Claim,
    Confirmed,
    Owner,
    UniqueKey,
    UniqueValue,
    UniqueValues,
    unique_values_of,
)
from enode_django.exceptions import StoreUnavailable, shown
from enode_django.repository.loading import AggregateLoader, Begin
from enode_django.repository.unique_keys import Values, keys_of, unique_named, values_of
from enode_django.serialization.codec import encode_refusal

logger = logging.getLogger("enode_django.commands")

CLAIM_DEADLINE = 60.0
"""Seconds after which the claim of a command without an outcome may be taken, if the settings say nothing."""
_LATE = "it was claimed, but not stored in time; send another command"


class Found(Enum):
    """The result of looking into a row."""

    HELD = "held"
    """Its owner holds the value, or may be about to."""
    FREE = "free"
    """Its owner does not: the row is the taker's now, or deleted."""
    CHANGED = "changed"
    """The row was changed meanwhile. Look again."""


class NewValues(NamedTuple):
    """The claim of a command, and the declarations of all values that its aggregate has then."""

    claim: Claim
    fields: Mapping[UniqueKey, Unique]


class Uniqueness:
    """Claims, confirms and settles the unique values of aggregates. Methods block and raise `StoreUnavailable`, unless
    they say otherwise. Used by one thread, like its ``loader``. ``deadline`` is in seconds."""

    def __init__(self, loader: AggregateLoader, deadline: float = CLAIM_DEADLINE) -> None:
        self._loader = loader
        self._store = loader.store
        self._deadline = deadline
        self._found: UniqueValues | None = None
        self._skip = 0
        """The number of old rows that `settle_old` could not settle since it began with the oldest."""

    @property
    def values(self) -> UniqueValues:
        if self._found is None:
            self._found = unique_values_of(self._store)
        return self._found

    # -- of a command ---------------------------------------------------------------------------------------------

    def change_of(self, envelope: Envelope, aggregate: AggregateRoot, before: Values) -> NewValues | None:
        """Return the values that a command sets, and those that it gives up; None if they are the same as ``before``.
        Does not block."""
        values = values_of(aggregate)
        if values == before:
            return None
        cls = type(aggregate)
        old, new = keys_of(cls, before) if before else {}, keys_of(cls, values)
        change = Change([key for key in new if key not in old], [key for key in old if key not in new])
        return NewValues(Claim(self._owner_of(envelope, aggregate.version + 1), change), new) if any(change) else None

    def claim(self, claims: Sequence[Claim]) -> Sequence[Sequence[UniqueValue] | Exception]:
        """Claim values of many commands together. Return for each the rows that others have, for `settle_others`, or
        the error that has kept it from claiming. Safe to call again for the same commands."""
        try:
            return self.values.claim_all(claims)
        except Exception as error:
            if len(claims) == 1 or isinstance(error, StoreUnavailable):
                return [error] * len(claims)
        return [self.claim([one])[0] for one in claims]  # only the claims that cause the error fail

    def settle_others(self, values: NewValues, others: Sequence[UniqueValue]) -> None:
        """Take over values that the owners of these rows no longer hold. Raises `ValueTaken` for a value that another
        aggregate holds, or may be about to hold."""
        owner, change = values.claim
        while others:
            for row in others:
                if self.settle(row, owner) is Found.HELD:
                    raise values.fields[row.key].refused()
            others = self.values.claim(owner, [row.key for row in others], change.releases)

    def _owner_of(self, envelope: Envelope, version: int) -> Owner:
        id = envelope.aggregate_root_id
        return Owner(id, version, envelope.id, envelope.type_name, self._shard_of(id))

    def _shard_of(self, aggregate_root_id: str) -> str:
        return getattr(self._store.shards[self._store.place_of(aggregate_root_id)], "alias", "")

    def _is_certain(self, aggregate_root_id: str) -> bool:
        """Return False if a rollback may undo the state that is seen of the aggregate, but not the changes that are
        based on it here."""
        return self.values.is_certain(self._shard_of(aggregate_root_id))

    def confirm(self, decisions: Sequence[Decision]) -> None:
        """Confirm the claims of the decisions that are stored as they were made, and claim again what a failover has
        lost of them. Other claims are settled by later commands or `settle_old`, and so are these if the store is
        unavailable: that raises nothing."""
        changes = {(one.envelope.id, one.aggregate_root_id): one for one in decisions if one.envelope is not None}
        try:
            found = self._store.find(changes)
            confirmed = [
                Confirmed(one.aggregate_root_id, command_id, one.record.version, *one.change)
                for (command_id, _), one in changes.items()
                if one.change and one.record and one.record.version and found.get(one.record.command_key) == one.record
                if self._is_certain(one.aggregate_root_id)
            ]
            for lost in self.values.confirm(confirmed) if confirmed else ():
                self._claim_again(lost, changes[lost.command_id, lost.aggregate_root_id])
        except StoreUnavailable as error:
            logger.warning("%d claims of unique values are settled later: %s", len(changes), error)

    def _claim_again(self, lost: Confirmed, decision: Decision) -> None:
        """Claim the values of a stored stream whose claims are not there, since a standby without them took over. They
        stay unsettled: the aggregate may have given them up since."""
        assert decision.envelope is not None
        owner = self._owner_of(decision.envelope, lost.version)
        for row in self.values.claim(owner, lost.claims, []):
            if self.settle(row, owner) is Found.HELD:
                logger.error(
                    "%r has a unique value of %s, whose claim was lost, and so may %r; see enode unique rebuild",
                    *(lost.aggregate_root_id, row.key.name, row.aggregate_root_id),
                )

    # -- of anybody -----------------------------------------------------------------------------------------------

    def settle_old(self, *, limit: int = 1_000) -> int:
        """Look into up to ``limit`` rows whose commands are under way for longer than the deadline, and settle them.
        Return their number. The next call goes on with younger ones, and begins anew after the youngest, so that rows
        that cannot be settled keep nobody from the others. If a shard is away, raises `StoreUnavailable` after the rows
        of the other shards. Rows of declarations that this process does not know are left: newer processes may have
        made them."""
        found = self.values.unsettled(self._deadline, skip=self._skip, limit=limit)
        rows = [row for row in found if unique_named(row.key.name) is not None]
        away: dict[int, StoreUnavailable] = {}
        for row in rows:
            place = self._store.place_of(row.aggregate_root_id)
            if place not in away:
                try:
                    self.settle(row)
                except StoreUnavailable as error:
                    away[place] = error
        self._skip = self._skip + self._left(found, limit) if len(found) == limit else 0
        for unavailable in away.values():
            raise unavailable
        return len(rows)

    def _left(self, found: Sequence[UniqueValue], limit: int) -> int:
        """Return how many of these rows could not be settled."""
        left = {row.key for row in self.values.unsettled(self._deadline, skip=self._skip, limit=limit)}
        return sum(row.key in left for row in found)

    def settle(self, row: UniqueValue, taker: Owner | None = None) -> Found:
        """Find out whether the owner of a row holds the value. Give the row of a free value to the ``taker``, or delete
        it."""
        if (row.is_settled and taker is not None) or not self._is_certain(row.aggregate_root_id):
            return Found.HELD
        id, is_due = row.aggregate_root_id, row.age >= self._deadline
        known = {command for command, _ in self._store.find([(command, id) for command in row.claims])}
        is_open = {command: row.claims[command] for command in row.claims if command not in known}
        if is_open and not is_due:
            return Found.HELD
        self._fence(row, is_open)
        try:
            version = self._version_that_holds(row)
        except StoreUnavailable:
            raise
        except Exception as error:  # the owner's code is the application's, or of a newer release
            logger.warning("%r keeps a unique value, because it cannot be looked into: %s", id, shown(error))
            return Found.HELD
        if version:
            self.values.keep(row, version)
            return Found.HELD
        is_ours = self.values.free(row) if taker is None else self.values.take_over(row, taker)
        return Found.FREE if is_ours else Found.CHANGED

    def _version_that_holds(self, row: UniqueValue) -> int:
        """Return the stored version of the owner if it holds the value, else 0."""
        owner = self._loader.load(row.aggregate_root_id, begin=Begin.SNAPSHOT)
        return owner.version if owner is not None and row.key in keys_of(type(owner), values_of(owner)) else 0

    def _fence(self, row: UniqueValue, commands: Mapping[str, str]) -> None:
        """Store a refusal of each command, unless its outcome is stored meanwhile."""
        if not commands:
            return
        unique = unique_named(row.key.name)
        refusal = unique.refused(f"{unique.message}: {_LATE}") if unique else ValueTaken(_LATE, fields=())
        events, id, now = encode_refusal(refusal), row.aggregate_root_id, datetime.now(UTC)
        for command_id, command_type in commands.items():
            self._store.append([StreamRecord(id, None, command_id, "", command_type, now, events, b"")])
            text = "the claim of command %s %r for a unique value has run out: it is refused"
            logger.warning(text, command_type, command_id, extra={"aggregate_root_id": id})
