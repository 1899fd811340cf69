"""The port of unique values: which aggregate holds a value, and which commands may be about to change that.

A value is *claimed* before the stream that needs it is stored, and *confirmed* afterwards. In between, and after a
crash in between, the event store decides: the value belongs to the aggregate if its stored state has it. So a row names
the commands under way, and `enode_django.commanding.uniqueness` asks the store for their outcomes. A driver only
promises that a key has one row, and that a row is changed by its owner, or with its newest token.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import count, islice
from typing import NamedTuple, Protocol

from enode_django.eventstore.base import EventStore
from enode_django.exceptions import ConfigurationError

__all__ = [
    "Change",
    "Claim",
    "Confirmed",
    "MemoryUniqueValues",
    "Owner",
    "UniqueKey",
    "UniqueValue",
    "UniqueValues",
    "unique_values_of",
]


class UniqueKey(NamedTuple):
    """A value that one aggregate holds at most: the name of its declaration, and the digest of the value."""

    name: str
    digest: bytes


class Owner(NamedTuple):
    """An aggregate that claims or releases values, the command that does so, and the aggregate's version afterwards.
    ``shard`` is the alias of the database that has its streams, empty if there is none."""

    aggregate_root_id: str
    version: int
    command_id: str
    command_type: str
    shard: str = ""


class UniqueValue(NamedTuple):
    """A row. ``claims`` are the types of the owner's commands under way that set the value, by command id, and
    ``releases`` the owner's versions that may give it up. ``version`` is the version at which it was confirmed last (0:
    never). ``age`` is the time in seconds since its owner has claimed or released it last, or was found to hold it.
    ``token`` changes with the row."""

    key: UniqueKey
    aggregate_root_id: str
    claims: Mapping[str, str]
    releases: Sequence[int]
    version: int
    age: float
    token: tuple[int, int]

    @property
    def is_settled(self) -> bool:
        """True if no command is under way: the aggregate holds the value."""
        return not self.claims and not self.releases


class Change(NamedTuple):
    """The unique values that a command has claimed, and those that its aggregate gives up."""

    claims: Sequence[UniqueKey]
    releases: Sequence[UniqueKey]


class Claim(NamedTuple):
    """The values that a command of the ``owner`` is about to set and to give up."""

    owner: Owner
    change: Change


class Confirmed(NamedTuple):
    """A stored stream of an aggregate that has claimed and released values."""

    aggregate_root_id: str
    command_id: str
    version: int
    claims: Sequence[UniqueKey]
    releases: Sequence[UniqueKey]


class UniqueValues(Protocol):
    """The values of one event store. All methods block, are thread-safe, and raise `StoreUnavailable`."""

    def claim(self, owner: Owner, claims: Sequence[UniqueKey], releases: Sequence[UniqueKey]) -> Sequence[UniqueValue]:
        """Note that a command is about to set and give up values, and return the rows that belong to others: these are
        not claimed, and the other values are. If there are such rows, nothing is given up yet. When this returns, the
        rows are durable. Safe to call again.

        Inside a transaction of the caller, the rows are durable when it commits. Raises `ConfigurationError` if that
        transaction does not span the database of the owner's streams, which could outlive the claim."""

    def claim_all(self, claims: Sequence[Claim]) -> Sequence[Sequence[UniqueValue]]:
        """Do what `claim` does for many commands at once, and return for each the rows that belong to others. A value
        that one of them cannot have does not affect the others. No value is claimed twice in one call, and all claims
        have different owners' ids. A call that raises may have claimed some of the values."""

    def is_certain(self, shard: str) -> bool:
        """Return False if a rollback may undo the caller's writes to the database ``shard``, but not its changes of
        these rows: a transaction of the caller is open there, and the rows are in another database."""

    def take_over(self, row: UniqueValue, owner: Owner) -> bool:
        """Give a row to another owner, who claims it. Return False if the row has changed."""

    def keep(self, row: UniqueValue, version: int) -> bool:
        """Note that the owner holds the value at this version: at most later releases are under way. Return False if
        the row has changed."""

    def free(self, row: UniqueValue) -> bool:
        """Delete a row. Return False if the row has changed."""

    def confirm(self, confirmed: Sequence[Confirmed]) -> Sequence[Confirmed]:
        """Note stored streams, in the order of their versions for each aggregate: claimed values are held from then on,
        and released ones are free. A stream that is older than the known version settles nothing. Safe to call
        again. Return the streams with claimed values whose rows are missing or belong to others, though none of these
        streams gave them up: a failover may have lost the claims."""

    def adopt(self, aggregate_root_id: str, version: int, keys: Sequence[UniqueKey]) -> Sequence[UniqueValue]:
        """Make settled rows of values that an aggregate holds at this version. Return all rows of these keys, also
        those that existed."""

    def unsettled(self, age: float, *, skip: int = 0, limit: int = 100) -> Sequence[UniqueValue]:
        """Return up to ``limit`` rows that are not settled, and are at least ``age`` seconds old: the oldest ones after
        the first ``skip``."""

    def rows(self) -> Iterator[UniqueValue]:
        """Yield all rows, by key. Rows that are made meanwhile may be left out."""


def unique_values_of(store: EventStore) -> UniqueValues:
    """Return the unique values of an event store: those of its first shard, whose number never changes.

    Raises `ConfigurationError` if that shard's driver has none, and `StoreUnavailable`.
    """
    shards = store.shards
    first = shards[0] if len(shards) == 1 else min(shards, key=lambda shard: shard.number)
    values: UniqueValues | None = getattr(first, "unique_values", None)
    if values is None:
        raise ConfigurationError(
            f"{type(first).__qualname__} has no attribute unique_values, which keeps the unique values of aggregates; "
            "give it one, or declare no unique fields"
        )
    return values


def without_rows(confirmed: Sequence[Confirmed], owners: Mapping[UniqueKey, str]) -> Sequence[Confirmed]:
    """Return the streams that claimed a value which ``owners`` says is not their aggregate's, and none gave up."""
    given_up = {(one.aggregate_root_id, key) for one in confirmed for key in one.releases}
    return [
        one
        for one in confirmed
        if any(
            owners.get(key) != one.aggregate_root_id and (one.aggregate_root_id, key) not in given_up
            for key in one.claims
        )
    ]


class MemoryUniqueValues:
    """Unique values in memory. ``clock`` returns seconds.

    For example::

        values = MemoryUniqueValues()
        key = UniqueKey("members.Member:nickname", b"digest of ada")
        assert not values.claim(Owner("member-1", 1, "command-1", "members.Join"), [key], [])
        (held,) = values.claim(Owner("member-2", 1, "command-2", "members.Join"), [key], [])
        assert held.aggregate_root_id == "member-1"
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._rows: dict[UniqueKey, UniqueValue] = {}
        """Their ages are the times of their last claims and releases."""
        self._tokens = count(1)

    def claim(self, owner: Owner, claims: Sequence[UniqueKey], releases: Sequence[UniqueKey]) -> Sequence[UniqueValue]:
        mark = {owner.command_id: owner.command_type}
        with self._lock:
            others = []
            for key in claims:
                row = self._rows.get(key)
                if row is None:
                    self._put(UniqueValue(key, owner.aggregate_root_id, mark, (), 0, self._clock(), (0, 0)))
                elif row.aggregate_root_id == owner.aggregate_root_id:
                    self._put(row._replace(claims={**row.claims, **mark}, age=self._clock()))
                else:
                    others.append(self._shown(row))
            for key in releases if not others else ():
                row = self._rows.get(key)
                if row is not None and row.aggregate_root_id == owner.aggregate_root_id:
                    self._put(row._replace(releases=sorted({*row.releases, owner.version}), age=self._clock()))
            return others

    def claim_all(self, claims: Sequence[Claim]) -> Sequence[Sequence[UniqueValue]]:
        return [self.claim(owner, *change) for owner, change in claims]

    def is_certain(self, shard: str) -> bool:
        return True

    def take_over(self, row: UniqueValue, owner: Owner) -> bool:
        mark = {owner.command_id: owner.command_type}
        return self._replace(row, UniqueValue(row.key, owner.aggregate_root_id, mark, (), 0, self._clock(), (0, 0)))

    def keep(self, row: UniqueValue, version: int) -> bool:
        releases = [one for one in row.releases if one > version]
        return self._replace(row, row._replace(claims={}, releases=releases, version=version, age=self._clock()))

    def free(self, row: UniqueValue) -> bool:
        return self._replace(row, None)

    def confirm(self, confirmed: Sequence[Confirmed]) -> Sequence[Confirmed]:
        with self._lock:
            for one in confirmed:
                for key in one.claims:
                    self._confirm_claim(key, one)
                for key in one.releases:
                    self._confirm_release(key, one)
            return without_rows(confirmed, {key: row.aggregate_root_id for key, row in self._rows.items()})

    def _confirm_claim(self, key: UniqueKey, one: Confirmed) -> None:
        row = self._rows.get(key)
        is_owner = row is not None and row.aggregate_root_id == one.aggregate_root_id
        if row is not None and is_owner and one.command_id in row.claims and one.version >= row.version:
            claims = {id: type_name for id, type_name in row.claims.items() if id != one.command_id}
            self._put(row._replace(claims=claims, version=one.version))

    def _confirm_release(self, key: UniqueKey, one: Confirmed) -> None:
        row = self._rows.get(key)
        if row is None or row.aggregate_root_id != one.aggregate_root_id:
            return
        if one.version > row.version and not row.claims:
            del self._rows[key]
        elif one.version in row.releases:
            releases = [version for version in row.releases if version != one.version]
            self._put(row._replace(releases=releases, version=max(row.version, one.version)))

    def adopt(self, aggregate_root_id: str, version: int, keys: Sequence[UniqueKey]) -> Sequence[UniqueValue]:
        with self._lock:
            for key in keys:
                if key not in self._rows:
                    self._put(UniqueValue(key, aggregate_root_id, {}, (), version, self._clock(), (0, 0)))
            return [self._shown(self._rows[key]) for key in keys]

    def unsettled(self, age: float, *, skip: int = 0, limit: int = 100) -> Sequence[UniqueValue]:
        with self._lock:
            rows = map(self._shown, sorted(self._rows.values(), key=lambda row: row.age))
            found = (row for row in rows if not row.is_settled and row.age >= age)
            return list(islice(found, skip, skip + limit))

    def rows(self) -> Iterator[UniqueValue]:
        with self._lock:
            found = [self._shown(self._rows[key]) for key in sorted(self._rows)]
        yield from found

    def _put(self, row: UniqueValue) -> None:
        self._rows[row.key] = row._replace(token=(0, next(self._tokens)))

    def _replace(self, row: UniqueValue, new: UniqueValue | None) -> bool:
        with self._lock:
            known = self._rows.get(row.key)
            if known is None or known.token != row.token:
                return False
            if new is None:
                del self._rows[row.key]
            else:
                self._put(new)
            return True

    def _shown(self, row: UniqueValue) -> UniqueValue:
        return row._replace(age=self._clock() - row.age)
