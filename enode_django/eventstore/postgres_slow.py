"""Append a batch if the database may refuse some of its records.

Usually another writer has changed a few of the aggregates. Their records are found first, and all others are copied in
one transaction. The rest, or the whole batch if it was refused for another reason, is stored with care.

One transaction inserts the rows that violate no unique constraint. If the rows stored, now or earlier by a lost call,
are a prefix of each aggregate's records, it commits. Otherwise it rolls back and is repeated without each aggregate's
first refused record and all its later ones: a version that follows a refused one must not be stored.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress

from django.db.backends.base.base import BaseDatabaseWrapper

from enode_django.eventstore import sqlstates, statements
from enode_django.eventstore.base import Appended, CommandKey, Outcome, StreamRecord
from enode_django.eventstore.buckets import ShardOwnership
from enode_django.eventstore.limits import unstorable
from enode_django.eventstore.postgres_copy import copied
from enode_django.eventstore.rows import execute, find
from enode_django.eventstore.shard_map import owning

_STORED = Appended(Outcome.STORED)
_DEPENDENT = Appended(Outcome.DEPENDENT)
_CONFLICT = Appended(Outcome.CONFLICT)
_UNEXPLAINED = Appended(
    Outcome.INVALID,
    error=f"the database refuses this row of {statements.TABLE}, but neither its command nor its version is stored;"
    " look for a constraint, rule or trigger that is not the app's own, or a sequence that was set back",
)
_UNEXPLAINED_RETRIES = 3


class _Refused(Exception):
    """Raised to roll the transaction back."""


class SlowAppend:
    """One append call. Positions are indices of ``records``; ``_cuts`` holds each aggregate's first refused position
    and its result."""

    def __init__(
        self, connection: BaseDatabaseWrapper, records: Sequence[StreamRecord], claim: ShardOwnership, server: str
    ) -> None:
        self._connection = connection
        self._records = records
        self._claim = claim
        self._server = server
        self._cuts: dict[str, tuple[int, Appended]] = {}
        self._retries = _UNEXPLAINED_RETRIES

    def run(self) -> Sequence[Appended]:
        for position, record in enumerate(self._records):
            if error := unstorable(record):
                self._cut(position, Appended(Outcome.INVALID, error=error))
        # All writers take their locks in this order, so deadlocks are rare.
        order = sorted(range(len(self._records)), key=lambda position: self._records[position].aggregate_root_id)
        self._store_or_halve(self._copy_undisputed(order))
        return [self._result(position) for position in range(len(self._records))]

    def _copy_undisputed(self, positions: Sequence[int]) -> Sequence[int]:
        """Copy the records of aggregates of which no version or command of this batch is stored. Return the positions
        of all other records: all, if none is stored, because then the batch was refused for another reason."""
        pending = self._uncut(positions)
        disputed = self._disputed(pending)
        others = [position for position in pending if self._records[position].aggregate_root_id not in disputed]
        if not disputed or (others and not copied(self._connection, self._take(others), self._claim, self._server)):
            return pending
        return [position for position in pending if self._records[position].aggregate_root_id in disputed]

    def _disputed(self, positions: Iterable[int]) -> set[str]:
        keys = [(one.aggregate_root_id, one.version, one.command_id) for one in self._take(positions)]
        columns = tuple(map(list, zip(*keys, strict=True))) or ([], [], [])
        return {root_id for (root_id,) in execute(self._connection, statements.FIND_DISPUTED, columns)}

    def _store_or_halve(self, positions: Sequence[int]) -> None:
        """Store the records. If the database refuses a value or the size of the batch, store each half separately, so
        that a logarithmic number of transactions finds each refused record."""
        try:
            self._store(positions)
        except sqlstates.DATABASE_ERRORS as error:
            is_guilty = sqlstates.is_data_error(error)
            pending = self._uncut(positions)
            if not is_guilty and not (sqlstates.may_be_too_much(error) and len(pending) > 1):
                raise
            if len(pending) == 1:
                self._cut(pending[0], Appended(Outcome.INVALID, error=sqlstates.message(error)))
                return
            middle = len(pending) // 2
            self._store_or_halve(pending[:middle])
            self._store_or_halve(pending[middle:])

    def _store(self, positions: Sequence[int]) -> None:
        fits = False
        while not fits and (pending := self._uncut(positions)):
            with suppress(_Refused), owning(self._connection, self._claim, self._server):
                fits = self._insert(pending)
                if not fits:
                    raise _Refused

    def _insert(self, pending: Sequence[int]) -> bool:
        """Insert the records. Return True if the rows now stored are a prefix per aggregate; otherwise the cuts say
        which records the next attempt leaves out."""
        columns = tuple(map(list, zip(*self._take(pending), strict=True)))
        inserted = set(execute(self._connection, statements.INSERT, columns))
        stored: dict[CommandKey, int] = {}
        missing = []
        for position in pending:
            record = self._records[position]
            key = (record.aggregate_root_id, record.version, record.command_id)
            if key in inserted:
                # Of equal records in one batch, the first one was inserted.
                inserted.remove(key)
                stored[record.command_key] = position
            else:
                missing.append(position)
        return self._explain(missing, stored) and not any(self._is_cut(position) for position in stored.values())

    def _explain(self, missing: Sequence[int], inserted: Mapping[CommandKey, int]) -> bool:
        """Cut at records that are refused permanently. Return False if no reason was found and a retry is left: the
        conflicting row may have vanished."""
        if not missing:
            return True
        keys = {self._records[position].command_key for position in missing}
        repeated = find(self._connection, keys, statements.FIND_AS_STORED)
        taken = self._taken_versions(missing)
        for position in missing:
            record = self._records[position]
            stored = repeated.get(record.command_key)
            if inserted.get(record.command_key, -1) > position:
                # A later copy of the command in this batch was inserted because this record was not.
                stored = None
            if stored == record or self._is_cut(position):
                continue
            if stored is not None:
                self._cut(position, Appended(Outcome.REPEATED, stored))
            elif (record.aggregate_root_id, record.version) in taken:
                self._cut(position, _CONFLICT)
            elif self._retries:
                self._retries -= 1
                return False
            else:
                self._cut(position, _UNEXPLAINED)
        return True

    def _taken_versions(self, positions: Iterable[int]) -> set[tuple[str, int]]:
        records = self._take(positions)
        wanted = [(record.aggregate_root_id, record.version) for record in records if record.version is not None]
        if not wanted:
            return set()
        return set(execute(self._connection, statements.FIND_VERSIONS, tuple(map(list, zip(*wanted, strict=True)))))

    def _take(self, positions: Iterable[int]) -> list[StreamRecord]:
        return [self._records[position] for position in positions]

    def _uncut(self, positions: Iterable[int]) -> list[int]:
        return [position for position in positions if not self._is_cut(position)]

    def _is_cut(self, position: int) -> bool:
        cut = self._cuts.get(self._records[position].aggregate_root_id)
        return cut is not None and position >= cut[0]

    def _cut(self, position: int, appended: Appended) -> None:
        """Cut an aggregate's records from ``position`` on, unless they are cut already."""
        root_id = self._records[position].aggregate_root_id
        if not self._is_cut(position):
            self._cuts[root_id] = (position, appended)

    def _result(self, position: int) -> Appended:
        cut = self._cuts.get(self._records[position].aggregate_root_id)
        if cut is None or position < cut[0]:
            return _STORED
        return cut[1] if position == cut[0] else _DEPENDENT
