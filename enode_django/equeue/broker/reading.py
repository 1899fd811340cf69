"""Reading batches: what is in memory at once, what only the disk has in any thread."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple, TypeAlias

from enode_django.equeue.broker.batches import StoredBatch, batch_length, decode_header
from enode_django.equeue.broker.files import UNREADABLE
from enode_django.equeue.broker.index import Effort, Entry, NotInMemory
from enode_django.equeue.broker.log import MessageLog
from enode_django.equeue.broker.queues import Queues
from enode_django.equeue.broker.read_counts import ReadCounts
from enode_django.equeue.broker.recovery import entry_of
from enode_django.equeue.broker.ring import Ring
from enode_django.equeue.broker.segments import SegmentLoad
from enode_django.equeue.records import Buffer, is_whole
from enode_django.exceptions import StorageFailed

logger = logging.getLogger(__name__)

Loaded: TypeAlias = bytes | OSError
"""The bytes of a batch, or why they cannot be read."""


class Damage(NamedTuple):
    """``position`` in the log, ``place`` in the file."""

    file: str
    place: int
    position: int
    reason: str


class Place(NamedTuple):
    """Where the bytes of a batch are. ``keep``: the kernel may keep them in memory."""

    entry: Entry
    path: Path
    offset: int
    length: int
    keep: bool

    def load(self) -> Loaded:
        try:
            descriptor = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                data = os.pread(descriptor, self.length, self.offset)
                if not self.keep:
                    os.posix_fadvise(descriptor, self.offset, self.length, os.POSIX_FADV_DONTNEED)
            finally:
                os.close(descriptor)
        except OSError as error:
            return error
        return data


class ColdRead(NamedTuple):
    """Batches of one queue that only the disk has; or the ``segment`` of its index that tells where they are."""

    topic: str
    queue: int
    places: Sequence[Place]
    segment: SegmentLoad | None = None

    @property
    def size(self) -> int:
        """Of the bodies, in bytes."""
        return sum(place.entry.length for place in self.places)

    def load(self) -> list[Loaded]:
        """Block until they are read. Any thread may call it, whatever the store does meanwhile."""
        return [place.load() for place in self.places]


class BatchReader:
    """Called by one thread. ``damaged`` is what was found damaged, by position in the log; each is logged once.
    ``shows_safe``: only what is safe on the disk is read."""

    def __init__(self, log: MessageLog, queues: Queues, ring: Ring, *, shows_safe: bool = False) -> None:
        self.damaged: dict[int, Damage] = {}
        self.counts = ReadCounts()
        self._log = log
        self._queues = queues
        self._ring = ring
        self._shows_safe = shows_safe

    def read(self, topic: str, queue: int, offset: int, limit: int, max_bytes: int) -> list[StoredBatch]:
        """Whole batches in order, beginning with the one that holds ``offset`` or the next one that is left.

        They reach ``limit`` messages from ``offset`` on, or ``max_bytes``, as soon as they can, and one batch is there
        whatever its size; what is damaged is left out. Nothing for a queue without messages there. Blocks on the disk.
        Raises `StorageFailed` if the system cannot read for now.
        """
        found: list[StoredBatch] = []
        size = 0
        for entry in self._entries(topic, queue, offset, Effort.LOG):
            batch = self._held(topic, queue, entry) or self._from_disk(topic, queue, entry)
            if batch is not None:
                size += entry.length
                if found and size > max_bytes:
                    break
                found.append(batch)
                if entry.end - offset >= limit or size >= max_bytes:
                    break
        return found

    def read_held(
        self, topic: str, queue: int, offset: int, limit: int, max_bytes: int
    ) -> list[StoredBatch] | ColdRead:
        """Return what `read` would, as far as it is in memory; does not block on the message files.

        If not even the first batch is, return what has to be read from the disk, to be given to `finish`; or a segment
        of the index, to be given to the `IndexLoader`. Nothing while that is being made anew.
        """
        found: list[StoredBatch] = []
        cold: list[Place] = []
        try:
            self._collect(found, cold, topic, queue, offset, limit, max_bytes)
        except NotInMemory as missing:
            if not (found or cold or self._queues.is_being_made(missing.load)):
                return ColdRead(topic, queue, (), missing.load)
        return ColdRead(topic, queue, cold) if cold else found

    def _collect(
        self,
        found: list[StoredBatch],
        cold: list[Place],
        topic: str,
        queue: int,
        offset: int,
        limit: int,
        max_bytes: int,
    ) -> None:
        """Add batches that are in memory, or the places of those that are not. Raises `NotInMemory` where the index is
        not."""
        size = 0
        for entry in self._entries(topic, queue, offset, Effort.MEMORY):
            if (found or cold) and size + entry.length > max_bytes:
                break
            batch = None if cold else self._held(topic, queue, entry)
            if batch is not None:
                found.append(batch)
            elif entry.position not in self.damaged:
                if found:
                    break
                cold += self._places(topic, entry)
            else:
                continue
            size += entry.length
            if entry.end - offset >= limit or size >= max_bytes:
                break

    def finish(self, read: ColdRead, loaded: Sequence[Loaded]) -> list[StoredBatch]:
        """Return the batches that were read, without the damaged ones and those deleted meanwhile; maybe none is left.
        Raises `StorageFailed` as `read` does."""
        batches = (
            self._checked(read.topic, read.queue, place.entry, data)
            for place, data in zip(read.places, loaded, strict=True)
            if place.entry.position >= self._log.start
        )
        return [batch for batch in batches if batch is not None]

    def report(self, position: int, reason: str) -> None:
        """Take note of a damaged batch, once."""
        if position in self.damaged:
            return
        chunk = self._log.chunk_at(position)
        file, start = (str(chunk.path), chunk.start) if chunk is not None else (str(self._log.directory), 0)
        self.damaged[position] = Damage(file, position - start, position, reason)
        logger.error("damaged batch in %s at byte %d: %s; it is passed over", file, position - start, reason)

    def _entries(self, topic: str, queue: int, offset: int, effort: Effort) -> Iterator[Entry]:
        index = self._queues.get(topic, queue)
        if index is None or offset >= index.end:
            return
        for entry in index.at_offset(max(offset, index.first(self._log.start)), effort):
            if self._shows_safe and entry.position >= self._log.flushed:
                return
            yield entry

    def _held(self, topic: str, queue: int, entry: Entry) -> StoredBatch | None:
        """The batch, from the ring or the kernel's memory."""
        batch = self._ring.get(entry.position)
        if batch is not None:
            self.counts.ring += 1
            return batch
        chunk = self._log.chunk_at(entry.position)
        if chunk is None or entry.position in self.damaged:
            return None
        data = chunk.read_held(entry.position, batch_length(topic, entry.length))
        batch = self._whole(topic, queue, entry, data) if data is not None else None
        if batch is not None:
            self.counts.memory += 1
        return batch

    def _from_disk(self, topic: str, queue: int, entry: Entry) -> StoredBatch | None:
        if entry.position in self.damaged:
            return None
        batches = [self._checked(topic, queue, entry, place.load()) for place in self._places(topic, entry)]
        return batches[0] if batches else None

    def _places(self, topic: str, entry: Entry) -> list[Place]:
        """Where the batch is; nowhere, which is damage, if its file is missing."""
        chunk = self._log.chunk_at(entry.position)
        if chunk is None:
            self.report(entry.position, "no file has it")
            return []
        length = batch_length(topic, entry.length)
        return [Place(entry, chunk.path, entry.position - chunk.start, length, chunk.is_held)]

    def _checked(self, topic: str, queue: int, entry: Entry, data: Loaded) -> StoredBatch | None:
        if isinstance(data, FileNotFoundError) or (isinstance(data, OSError) and data.errno in UNREADABLE):
            self.report(entry.position, f"it cannot be read ({data.strerror})")
            return None
        if isinstance(data, OSError):
            raise StorageFailed(f"messages cannot be read: {data}; look after the broker and its disk") from data
        batch = self._whole(topic, queue, entry, data)
        if batch is None:
            self.report(entry.position, "its bytes are not what the index says, or do not match their CRC")
        else:
            self.counts.file += 1
        return batch

    @staticmethod
    def _whole(topic: str, queue: int, entry: Entry, data: Buffer) -> StoredBatch | None:
        header = decode_header(data, entry.position)
        if header is None or header.topic != topic or header.queue != queue or entry_of(header) != entry:
            return None
        first = header.body_position - header.position
        body = memoryview(data)[first : first + header.body_length]
        if len(body) != header.body_length or not is_whole(body):
            return None
        return StoredBatch(header.first_offset, header.messages, header.time / 1000, body)
