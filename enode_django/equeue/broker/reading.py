"""Read batches: in memory at once, from the disk in any thread."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from typing import NamedTuple, TypeAlias

from enode_django.equeue.broker.batches import StoredBatch, batch_length, decode_header
from enode_django.equeue.broker.index import Entry, NotInMemory
from enode_django.equeue.broker.log import MessageLog
from enode_django.equeue.broker.queues import Queues
from enode_django.equeue.broker.recovery import entry_of
from enode_django.equeue.broker.ring import Ring
from enode_django.equeue.broker.segments import SegmentLoad
from enode_django.equeue.files import UNREADABLE
from enode_django.equeue.records import Buffer, is_whole
from enode_django.exceptions import StorageFailed

logger = logging.getLogger(__name__)

Loaded: TypeAlias = StoredBatch | OSError | None
"""A batch, or the error with which it could not be read, or None if its bytes are damaged."""

BATCH_COST = 4096
"""Bytes. Reading another batch takes as long as reading this many more bytes of a large one."""


@dataclass(slots=True)
class ReadCounts:
    """Batches read since the start: from the ring, from a file in the kernel's memory, from the disk."""

    ring: int = 0
    memory: int = 0
    file: int = 0


class Allowance:
    """Bytes that the loop may still read from files in memory before other requests have their turn."""

    def __init__(self, size: int) -> None:
        self._left = size

    def take(self, length: int) -> bool:
        """Count a batch of ``length`` bytes. Return False if there is no room for it, and for every later one."""
        self._left -= BATCH_COST + length
        return self._left >= 0


class Place(NamedTuple):
    """The place of a batch's bytes. ``keep``: the kernel may keep them in memory."""

    entry: Entry
    path: Path
    offset: int
    length: int
    keep: bool

    def read(self, descriptor: int) -> bytes:
        data = os.pread(descriptor, self.length, self.offset)
        if not self.keep:
            os.posix_fadvise(descriptor, self.offset, self.length, os.POSIX_FADV_DONTNEED)
        return data


class ColdRead(NamedTuple):
    """Batches of one queue: those ``found`` in memory, and those at ``places``, which a thread has to read and which
    follow them. Or the ``segment`` of the index that must be loaded first."""

    topic: str
    queue: int
    places: Sequence[Place]
    segment: SegmentLoad | None = None
    found: Sequence[StoredBatch] = ()

    @property
    def size(self) -> int:
        """The size of the bodies, in bytes."""
        return sum(len(batch.body) for batch in self.found) + sum(place.entry.length for place in self.places)

    def load(self) -> list[Loaded]:
        """Block until the batches are read. Any thread may call it while the store works."""
        return [
            loaded
            for path, places in groupby(self.places, attrgetter("path"))
            for loaded in self._of_file(path, [*places])
        ]

    def _of_file(self, path: Path, places: Sequence[Place]) -> list[Loaded]:
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            return [error] * len(places)
        try:
            return [self._loaded(place, descriptor) for place in places]
        finally:
            os.close(descriptor)

    def _loaded(self, place: Place, descriptor: int) -> Loaded:
        try:
            data = place.read(descriptor)
        except OSError as error:
            return error
        return _whole(self.topic, self.queue, place.entry, data)


class BatchReader:
    """Reads batches. Called by one thread. ``damaged`` has the positions of the damaged batches found; each is
    logged once. ``shows_safe``: only what is safe on the disk is read."""

    def __init__(self, log: MessageLog, queues: Queues, ring: Ring, *, shows_safe: bool = False) -> None:
        self.damaged: set[int] = set()
        self.counts = ReadCounts()
        self._log = log
        self._queues = queues
        self._ring = ring
        self._shows_safe = shows_safe

    def read_held(
        self, topic: str, queue: int, offset: int, limit: int, max_bytes: int, allowance: Allowance | None = None
    ) -> list[StoredBatch] | ColdRead:
        """Return whole batches in order, beginning with the one that holds ``offset``, or with the next remaining one,
        as far as they are in memory; does not block on the message files.

        Reading stops when they reach ``limit`` messages from ``offset`` on, or ``max_bytes``; the first batch is
        returned even if it is larger. Damaged batches are left out. If not even the first batch is in memory, or files
        have more than ``allowance`` permits, return the `ColdRead` that a thread has to make, to be passed to `finish`;
        or one with a segment of the index, to be passed to the `IndexLoader`, which may be rebuilding it already.
        """
        found: list[StoredBatch] = []
        cold: list[Place] = []
        size = 0
        try:
            for entry in self._entries(topic, queue, offset):
                if (found or cold) and size + entry.length > max_bytes:
                    break
                if entry.position in self.damaged:
                    continue
                batch = self._in_ring(entry) if not cold else None
                may_look = not (batch or cold) and (allowance is None or allowance.take(entry.length))
                if may_look:
                    batch = self._in_memory(topic, queue, entry)
                if batch is not None:
                    found.append(batch)
                elif found and may_look:
                    break  # only the disk has it; the batches found do not wait for that
                else:
                    cold += self._places(topic, entry)
                size += entry.length
                if entry.end - offset >= limit or size >= max_bytes:
                    break
        except NotInMemory as missing:
            if not (found or cold):
                return ColdRead(topic, queue, (), missing.load)
        return ColdRead(topic, queue, cold, found=found) if cold else found

    def finish(self, read: ColdRead, loaded: Sequence[Loaded]) -> list[StoredBatch]:
        """Return the batches of a read, without the damaged ones and those deleted meanwhile; there may be none left.
        Raises `StorageFailed` if the system cannot read for now."""
        batches = (
            self._checked(place.entry, each)
            for place, each in zip(read.places, loaded, strict=True)
            if place.entry.position >= self._log.start
        )
        return [*read.found, *(batch for batch in batches if batch is not None)]

    def report(self, position: int, reason: str) -> None:
        """Record and log a damaged batch, once."""
        if position in self.damaged:
            return
        self.damaged.add(position)
        chunk = self._log.chunk_at(position)
        file, start = (str(chunk.path), chunk.start) if chunk is not None else (str(self._log.directory), 0)
        logger.error("damaged batch in %s at byte %d: %s; it is passed over", file, position - start, reason)

    def _entries(self, topic: str, queue: int, offset: int) -> Iterator[Entry]:
        index = self._queues.get(topic, queue)
        if index is None or offset >= index.end:
            return
        for entry in index.at_offset(max(offset, index.first(self._log.start))):
            if self._shows_safe and entry.position >= self._log.flushed:
                return
            yield entry

    def _in_ring(self, entry: Entry) -> StoredBatch | None:
        batch = self._ring.get(entry.position)
        if batch is not None:
            self.counts.ring += 1
        return batch

    def _in_memory(self, topic: str, queue: int, entry: Entry) -> StoredBatch | None:
        """Return the batch from the kernel's memory; None if it is not there."""
        chunk = self._log.chunk_at(entry.position)
        if chunk is None:
            return None
        data = chunk.read_held(entry.position, batch_length(topic, entry.length))
        batch = _whole(topic, queue, entry, data) if data is not None else None
        if batch is not None:
            self.counts.memory += 1
        return batch

    def _places(self, topic: str, entry: Entry) -> list[Place]:
        """Return the place of the batch. If its file is missing, report damage and return an empty list."""
        chunk = self._log.chunk_at(entry.position)
        if chunk is None:
            self.report(entry.position, "no file has it")
            return []
        chunk.touch()
        length = batch_length(topic, entry.length)
        return [Place(entry, chunk.path, entry.position - chunk.start, length, chunk.is_held)]

    def _checked(self, entry: Entry, loaded: Loaded) -> StoredBatch | None:
        if isinstance(loaded, FileNotFoundError) or (isinstance(loaded, OSError) and loaded.errno in UNREADABLE):
            self.report(entry.position, f"it cannot be read ({loaded.strerror})")
            return None
        if isinstance(loaded, OSError):
            raise StorageFailed(f"messages cannot be read: {loaded}; look after the broker and its disk") from loaded
        if loaded is None:
            self.report(entry.position, "its bytes are not what the index says, or do not match their CRC")
        else:
            self.counts.file += 1
        return loaded


def _whole(topic: str, queue: int, entry: Entry, data: Buffer) -> StoredBatch | None:
    """Return the batch of an entry from its bytes; None if they are damaged."""
    header = decode_header(data, entry.position)
    if header is None or header.topic != topic or header.queue != queue or entry_of(header) != entry:
        return None
    first = header.body_position - header.position
    body = memoryview(data)[first : first + header.body_length]
    if len(body) != header.body_length or not is_whole(body):
        return None
    return StoredBatch(header.first_offset, body)
