"""The log: bytes at positions 0, 1, 2 … across all message files, appended at the end and deleted from the start."""

from __future__ import annotations

import errno
import os
import threading
import time
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from pathlib import Path

from enode_django.equeue.broker.chunk import Chunk
from enode_django.equeue.broker.held_memory import HeldMemory
from enode_django.equeue.broker.space import DiskSpace
from enode_django.equeue.files import FULL, make_directory, sync_directory, translated
from enode_django.equeue.histograms import SECONDS, Histogram
from enode_django.exceptions import StorageFailed

_FAILED = "what was written before could not be made safe; look after the disk and start the broker again"


class LogReader:
    """Reads the log in ``chunks``, oldest first. Called by one thread."""

    def __init__(self, chunks: list[Chunk]) -> None:
        self.chunks = chunks
        self.end = chunks[-1].end if chunks else 0

    @property
    def start(self) -> int:
        """The position of the first byte that is left."""
        return self.chunks[0].start if self.chunks else self.end

    def read(self, position: int, length: int) -> bytes:
        """Return up to ``length`` bytes of one file: fewer at its end, none if no file has ``position``. Bytes that the
        disk cannot read are replaced by others, which checksums detect. Blocks on the disk."""
        chunk = self.chunk_at(position)
        return chunk.read_anyway(position, length) if chunk is not None else b""

    def chunk_at(self, position: int) -> Chunk | None:
        place = bisect_right(self.chunks, position, key=lambda chunk: chunk.start) - 1
        return self.chunks[place] if place >= 0 and position < self.chunks[place].end else None

    def release(self) -> None:
        """Close all files."""
        for chunk in self.chunks:
            chunk.release()


class MessageLog(LogReader):
    """The log of a broker that works. Called by one thread; others may call `flush`, `remove` and `reader` at any time
    between opening and closing.

    ``end`` is where the next append goes; everything below ``flushed`` is safe on the disk. One append never spans two
    files; one that is larger than a file gets a file of its own size.
    """

    def __init__(self, directory: Path, chunk_size: int, memory: HeldMemory, space: DiskSpace) -> None:
        make_directory(directory)
        for unfinished in directory.glob("*.new"):
            unfinished.unlink()
        super().__init__(chunks_in(directory, memory))
        self.directory = directory
        self._names = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        """The directory, always open: a flush must not fail because clients have used up the descriptors."""
        self.flushed = 0
        self._chunk_size = chunk_size
        self._memory = memory
        self._space = space
        self._failed = False
        self._lock = threading.Lock()
        self._flushing = threading.Lock()
        self.sync_seconds = Histogram(SECONDS)
        """The durations of flushes that had something to make safe."""

    def append(self, buffers: Sequence[bytes], length: int, *, is_control: bool = False) -> int:
        """Write without waiting for the disk; returns the position. ``length`` is that of all buffers together.

        While the disk is full, only control records are accepted, which may use the reserve. Raises `QueueFull` and
        `StorageFailed`; nothing is appended then.
        """
        if self._failed:
            raise StorageFailed(_FAILED)
        with translated("messages"):
            if is_control:
                self._append_control(buffers, length)
            else:
                self._chunk_for_send(length).append(buffers, length)
        position, self.end = self.end, self.end + length
        return position

    def reader(self, first: int, last: int) -> LogReader:
        """Return a separate reader of the files between two positions, for the thread that calls."""
        with self._lock:
            found = [chunk for chunk in self.chunks if chunk.end > first and chunk.start <= last]
        apart = HeldMemory(0, 0)
        return LogReader([Chunk(chunk.path, chunk.start, chunk.end - chunk.start, apart) for chunk in found])

    def flush(self) -> int:
        """Block until everything appended before the call is safe; returns up to where that is. Any thread may call it.

        Raises `StorageFailed`; every later append and flush does so, too: the kernel does not write the same pages
        again.
        """
        with self._flushing:
            if self._failed:
                raise StorageFailed(_FAILED)
            with self._lock:
                position, unsafe = self.end, [chunk for chunk in self.chunks if chunk.end > self.flushed]
            begun = time.monotonic()
            try:
                for chunk in unsafe:
                    os.fdatasync(chunk.fileno())
                if any(chunk.start >= self.flushed for chunk in unsafe):  # a file that is new since the last flush
                    os.fsync(self._names)
            except OSError as error:
                self._failed = True
                raise StorageFailed(
                    f"messages could not be made safe: {error}; the broker has to start again"
                ) from error
            if unsafe:
                self.sync_seconds.add(time.monotonic() - begun)
            self.flushed = max(self.flushed, position)
            return self.flushed

    def cut(self, position: int) -> None:
        """Delete everything from ``position`` on, also on a full disk. A file that a backup has as well stays as it is.

        Called while opening, before the first append. The rest is safe on return.
        """
        position = max(position, self.start)
        with translated("cutting the log"):
            behind = [chunk for chunk in self.chunks if chunk.start > position]
            self.chunks = self.chunks[: len(self.chunks) - len(behind)]
            if self.chunks and self.chunks[-1].end > position:
                self._end_newest(position)
                sync_directory(self.directory)  # before the files that hide the rest of a longer one are gone
            for chunk in reversed(behind):
                chunk.delete()
            sync_directory(self.directory)
        self.end = self.chunks[-1].end if self.chunks else 0
        self.flush()

    def _end_newest(self, position: int) -> None:
        """Let the newest file end at a position: truncate it, or begin the next one if a backup has the same file."""
        newest = self.chunks[-1]
        if not newest.is_linked:
            newest.truncate(position)
            return
        newest.end = position
        following = newest.renewed(position)  # empty; takes its place if the name is the same
        if position == newest.start:
            self.chunks.remove(newest)
            newest.release()
        self.chunks.append(following)

    def renew(self, position: int) -> None:
        """Write everything from ``position`` on again, into new files, or in place if the disk is full. A send begins
        at ``position``. Safe on return. Called while opening, before the first append."""
        with translated("writing messages anew"):
            for chunk in [chunk for chunk in self.chunks if chunk.end > position]:
                self._renew(chunk, max(position, chunk.start))
            sync_directory(self.directory)

    def _renew(self, chunk: Chunk, start: int) -> None:
        if chunk.is_linked:  # a backup has the same file, which must not be truncated
            start = chunk.start
        try:
            renewed = chunk.renewed(start)
        except OSError as error:
            if error.errno not in FULL:
                raise
            chunk.rewrite(start)  # in place: better than no start
            return
        self.chunks.insert(self.chunks.index(chunk) + 1, renewed)
        if start > chunk.start:
            chunk.truncate(start)
        else:
            self.chunks.remove(chunk)
            chunk.release()

    def skip_to(self, position: int) -> None:
        """Continue at a position behind the end, in a new file: no position is used twice."""
        self.end = max(self.end, position)

    def detach_first(self) -> Chunk:
        """Take the oldest file out of the log; `remove` follows. It must be safe (`flushed`) and not the newest."""
        with self._lock:
            chunk = self.chunks.pop(0)
        chunk.release()
        return chunk

    def remove(self, paths: Iterable[Path]) -> None:
        """Delete detached files, in this order. Blocks until that is safe; any thread may call it."""
        with translated("deleting messages"):
            for path in paths:
                path.unlink(missing_ok=True)
            sync_directory(self.directory)

    def drop_idle(self) -> None:
        """Drop idle files from memory while more than the low watermark is held."""
        for chunk in self.chunks:
            if not self._memory.above_low:
                return
            if chunk.end <= self.flushed and chunk.is_idle():
                chunk.drop()

    def release(self) -> None:
        super().release()
        os.close(self._names)

    def close(self) -> None:
        """Flush, and give back the space reserved behind the end. Afterwards the log can only be read."""
        with self._flushing, translated("closing the log"):
            if self.chunks and not self._failed:
                self.chunks[-1].truncate(self.chunks[-1].end)
        self.flush()

    def roll(self) -> None:
        """Begin a new file, so that the newest one can be deleted. Raises `QueueFull`."""
        if self.chunks and self.chunks[-1].end > self.chunks[-1].start:
            with translated("a new file of messages"):
                self._new_chunk(0)

    def _chunk_for_send(self, length: int) -> Chunk:
        newest = self.chunks[-1] if self.chunks else None
        if self._space.uses_reserve or (self._space.is_full and not (newest and newest.has_room(self.end, length))):
            raise OSError(errno.ENOSPC, "what is left of the disk is kept for those who consume")
        try:
            return self._chunk_for(length, self._chunk_size)
        except OSError as error:
            self._note(error, length)
            raise

    def _append_control(self, buffers: Sequence[bytes], length: int) -> None:
        """Append a record. Some file systems only find on writing that the disk is full; then use the reserve."""
        try:
            self._chunk_for_control(length).append(buffers, length)
        except OSError as error:
            if error.errno not in FULL:
                raise
            self._space.give_up(length)
            self._chunk_for_control(length).append(buffers, length)

    def _chunk_for_control(self, length: int) -> Chunk:
        """Return a chunk for control records: a small one without space for a whole file, at last from the reserve."""
        step = self._space.step
        for capacity in (step,) if self._space.is_full else (self._chunk_size, step):
            try:
                return self._chunk_for(length, capacity)
            except OSError as error:
                if error.errno not in FULL:
                    raise
                self._note(error, length)
        self._space.give_up(length)
        return self._chunk_for(length, self._space.step)

    def _note(self, error: OSError, length: int) -> None:
        """Note that the disk is full. A length above that of any file says nothing about others, and is ignored."""
        if error.errno in FULL and length <= self._chunk_size:
            self._space.found_full()

    def _chunk_for(self, length: int, capacity: int) -> Chunk:
        """Return the newest file if it may take ``length`` more bytes, else a new one. Reserve that space in it, or
        ``capacity`` if that is more and the file may have it."""
        newest = self.chunks[-1] if self.chunks else None
        if newest is not None and newest.end == self.end:
            used = newest.end - newest.start
            if not used or used + length <= self._chunk_size:  # an empty file takes any length
                if not newest.has_room(self.end, length):
                    newest.reserve(max(min(used + capacity, self._chunk_size), used + length))
                return newest
        return self._new_chunk(max(capacity, length))

    def _new_chunk(self, capacity: int) -> Chunk:
        newest = self.chunks[-1] if self.chunks else None
        chunk = Chunk.create(self.directory, self.end, capacity, self._memory)
        with self._lock:  # before `truncate`: the one before ends where a file of the directory begins
            self.chunks.append(chunk)
        if newest is not None:
            newest.truncate(newest.end)
        return chunk


def chunks_in(directory: Path, memory: HeldMemory, kind: type[Chunk] = Chunk) -> list[Chunk]:
    """Return the files of a directory, oldest first. A file ends where the next one starts, even if it is longer: its
    reserved space is given back after the next one is made."""
    paths = sorted(directory.glob("[0-9]*.chunk"))
    starts = [int(path.stem) for path in paths]
    chunks = []
    for place, (path, start) in enumerate(zip(paths, starts, strict=True)):
        size = path.stat().st_size
        if place + 1 < len(starts):
            size = min(size, starts[place + 1] - start)
        chunks.append(kind(path, start, size, memory))
    return chunks
