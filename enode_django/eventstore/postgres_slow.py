"""Appending when something may be refused: how far does each aggregate's part of the batch get?

One transaction inserts what the unique constraints let through. If the rows stored (now, or earlier by a lost call of
ours) are a prefix of each aggregate's records, it commits. If not, it rolls back and the rest goes again without
anything from each aggregate's first refused record on: a later version of a state that was refused must not be stored.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress

from django.db.backends.base.base import BaseDatabaseWrapper

from enode_django.eventstore import sqlstates, statements
from enode_django.eventstore.base import Appended, CommandKey, Outcome, StreamRecord
from enode_django.eventstore.buckets import ShardOwnership
from enode_django.eventstore.limits import unstorable
from enode_django.eventstore.rows import execute, find
from enode_django.eventstore.shard_map import owning

_STORED = Appended(Outcome.STORED)
_DEPENDENT = Appended(Outcome.DEPENDENT)
_CONFLICT = Appended(Outcome.CONFLICT)
_UNEXPLAINED = Appended(
    Outcome.INVALID,
    error=f"the database refuses this row of {statements.TABLE}, but neither its command nor its version is stored;"
    " look for a constraint, rule or trigger that is not the app's own",
)
_UNEXPLAINED_RETRIES = 3


class _Refused(Exception):
    """Rolls back what was inserted."""


class SlowAppend:
    """One call. Positions are places in the caller's sequence; ``_cuts`` holds each aggregate's first refused one."""

    def __init__(self, connection: BaseDatabaseWrapper, records: Sequence[StreamRecord], claim: ShardOwnership) -> None:
        self._connection = connection
        self._records = records
        self._claim = claim
        self._cuts: dict[str, tuple[int, Appended]] = {}
        self._retries = _UNEXPLAINED_RETRIES

    def run(self) -> Sequence[Appended]:
        for position, record in enumerate(self._records):
            if error := unstorable(record):
                self._cut(position, Appended(Outcome.INVALID, error=error))
        # Every writer takes its locks in this order, so that two of them rarely wait for each other.
        order = sorted(range(len(self._records)), key=lambda position: self._records[position].aggregate_root_id)
        self._store_or_halve(order)
        return [self._result(position) for position in range(len(self._records))]

    def _store_or_halve(self, positions: Sequence[int]) -> None:
        """Halving costs a logarithm of transactions, and what is not guilty, or not too much, is stored."""
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
            with suppress(_Refused), owning(self._connection, self._claim):
                fits = self._insert(pending)
                if not fits:
                    raise _Refused

    def _insert(self, pending: Sequence[int]) -> bool:
        """Insert the records. Return True if the rows now stored are a prefix per aggregate; if not, the cuts say what
        to leave out next time."""
        columns = tuple(map(list, zip(*(self._records[position] for position in pending), strict=True)))
        inserted = set(execute(self._connection, statements.INSERT, columns))
        stored: dict[CommandKey, int] = {}
        missing = []
        for position in pending:
            record = self._records[position]
            key = (record.aggregate_root_id, record.version, record.command_id)
            if key in inserted:
                # Of equal records in one batch the first is the one that was inserted.
                inserted.remove(key)
                stored[record.command_key] = position
            else:
                missing.append(position)
        return self._explain(missing, stored) and not any(self._is_cut(position) for position in stored.values())

    def _explain(self, missing: Sequence[int], inserted: Mapping[CommandKey, int]) -> bool:
        """Cut at what was refused for good; False if a row vanished in between, so that the same is worth a retry."""
        if not missing:
            return True
        keys = {self._records[position].command_key for position in missing}
        repeated = find(self._connection, keys, statements.FIND_AS_STORED)
        taken = self._taken_versions(missing)
        for position in missing:
            record = self._records[position]
            stored = repeated.get(record.command_key)
            if inserted.get(record.command_key, -1) > position:
                # The same command once more, further on in this batch: it went in because this one did not.
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
        records = [self._records[position] for position in positions]
        wanted = [(record.aggregate_root_id, record.version) for record in records if record.version is not None]
        if not wanted:
            return set()
        return set(execute(self._connection, statements.FIND_VERSIONS, tuple(map(list, zip(*wanted, strict=True)))))

    def _uncut(self, positions: Iterable[int]) -> list[int]:
        return [position for position in positions if not self._is_cut(position)]

    def _is_cut(self, position: int) -> bool:
        cut = self._cuts.get(self._records[position].aggregate_root_id)
        return cut is not None and position >= cut[0]

    def _cut(self, position: int, appended: Appended) -> None:
        """Callers cut only what is not cut yet, so a cut moves forward in the batch only."""
        root_id = self._records[position].aggregate_root_id
        if not self._is_cut(position):
            self._cuts[root_id] = (position, appended)

    def _result(self, position: int) -> Appended:
        cut = self._cuts.get(self._records[position].aggregate_root_id)
        if cut is None or position < cut[0]:
            return _STORED
        return cut[1] if position == cut[0] else _DEPENDENT
