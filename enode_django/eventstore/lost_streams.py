"""Streams that were decided on lost ones.

A failover to a standby that lacked the last streams, or a restore, begins a generation of the store. A process that
lives through it may have aggregates in memory with streams that are lost. Their next version would be stored without
the one before it: the unique index proves that a version is new, not that it follows. So from then on the process
compares each aggregate with the store once, when it appends to it.
"""

from __future__ import annotations

from collections.abc import Sequence

from django.db.backends.base.base import BaseDatabaseWrapper

from enode_django.eventstore import statements
from enode_django.eventstore.base import StreamRecord
from enode_django.eventstore.rows import execute

MOST_COMPARED = 100_000
"""The number of aggregates that are remembered as compared. Beyond it, all are forgotten, and compared once more."""


class LostStreams:
    """Finds the aggregates whose newest stored stream is not the one that a record follows. Without a failover it asks
    the database once, at the first read of the process. Used by any thread."""

    def __init__(self) -> None:
        self._began: int | None = None
        """The newest generation that was recorded before this process read any stream."""
        self._compared_in = 0
        self._compared: set[str] = set()

    def note_reading(self, connection: BaseDatabaseWrapper) -> None:
        """Call this before streams are read."""
        if self._began is None:
            ((self._began,),) = execute(connection, statements.NEWEST_GENERATION, ())

    def behind(self, connection: BaseDatabaseWrapper, records: Sequence[StreamRecord], generation: int) -> set[str]:
        """Return the aggregates of these records whose versions do not follow the stored ones in this ``generation``,
        which is the current one. Blocks on the database only after a failover."""
        if self._began is None:  # nothing was read, and nothing written before this
            self._began = generation
        if generation <= self._began:
            return set()
        if generation != self._compared_in:
            self._compared_in, self._compared = generation, set()
        first: dict[str, int] = {}
        for record in records:
            if record.version is not None:
                first.setdefault(record.aggregate_root_id, record.version)
        wanted = {id: version for id, version in first.items() if version > 1 and id not in self._compared}
        if not wanted:
            return set()
        heads = dict(execute(connection, statements.HEADS, (list(wanted),)))
        behind = {id for id, version in wanted.items() if heads.get(id, 0) < version - 1}
        if len(self._compared) > MOST_COMPARED:
            self._compared = set()
        self._compared |= wanted.keys() - behind
        return behind
