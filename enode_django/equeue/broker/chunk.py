"""One file of the log."""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from contextlib import suppress
from itertools import pairwise
from pathlib import Path

from enode_django.equeue.broker.held_memory import IDLE_SECONDS, HeldMemory
from enode_django.equeue.files import PRIVATE, UNREADABLE, write_all

_MOST_BUFFERS = 512
BLOCK = 1 << 20
PAGE = 4096
UNREADABLE_PAGE = b"\xff" * PAGE
"""Replaces a page that the disk cannot read. It is neither a batch nor a hole: a crash of the machine leaves zeros."""
_NO_WAIT: int | None = getattr(os, "RWF_NOWAIT", None)
"""A flag of Linux: read only what is in memory."""


class Chunk:
    """A file of the log, with the bytes from ``start`` on. Positions are those of the log, not of the file.

    Space is reserved by `os.posix_fallocate` before it is written by `os.pwritev`; both fail if the disk is full.
    Nothing is mapped. The methods raise `OSError` unchanged.
    """

    def __init__(self, path: Path, start: int, written: int, memory: HeldMemory) -> None:
        self.path = path
        self.start = start
        self.end = start + written
        self._reserved = written
        self._memory = memory
        self._descriptor: int | None = None
        self._held = 0
        self._touched = memory.monotonic()

    @classmethod
    def name(cls, start: int) -> str:
        return f"{start:020}.chunk"

    @classmethod
    def create(cls, directory: Path, start: int, capacity: int, memory: HeldMemory) -> Chunk:
        """Return a new file with its space reserved. If that fails, no file is left."""
        chunk = cls(directory / cls.name(start), start, 0, memory)
        try:
            chunk._descriptor = os.open(chunk.path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, PRIVATE)
            chunk.reserve(capacity)
        except OSError:
            chunk.delete()
            raise
        return chunk

    def renewed(self, start: int) -> Chunk:
        """Return a new file with the bytes from ``start`` on. Its contents are safe on the disk, its name is not yet.
        The file of this chunk is not changed, unless both have the same name."""
        path = self.path.with_name(self.name(start))
        aside = path.with_name(path.name + ".new")
        try:
            descriptor = os.open(aside, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, PRIVATE)
            try:
                self._copy(start, descriptor, start)
            finally:
                os.close(descriptor)
            os.replace(aside, path)
        except OSError:
            aside.unlink(missing_ok=True)
            raise
        return Chunk(path, start, self.end - start, self._memory)

    def rewrite(self, start: int) -> None:
        """Write the bytes from ``start`` on again in place, and make them safe."""
        self._copy(start, self.fileno(), self.start)

    def _copy(self, start: int, target: int, target_start: int) -> None:
        """Write the bytes from ``start`` on to a file that begins at ``target_start``, and make them safe."""
        for position in range(start, self.end, BLOCK):
            length = min(BLOCK, self.end - position)
            write_all(target, self.read_anyway(position, length), position - target_start)
        os.fdatasync(target)

    @property
    def is_held(self) -> bool:
        return self._held > 0

    @property
    def is_linked(self) -> bool:
        """Return True if the file has another name, in a backup. Blocks on the disk."""
        return os.stat(self.path).st_nlink > 1

    def fileno(self) -> int:
        if self._descriptor is None:
            self._descriptor = os.open(self.path, os.O_RDWR | os.O_CLOEXEC)
        return self._descriptor

    def has_room(self, position: int, length: int) -> bool:
        """Return True if ``position`` is the chunk's end, and the space reserved from there on has ``length`` bytes."""
        return position == self.end and position + length <= self.start + self._reserved

    def reserve(self, capacity: int) -> None:
        """Reserve ``capacity`` bytes in all. If that fails, the reserved space is as before."""
        if self._reserved < capacity:
            try:
                os.posix_fallocate(self.fileno(), 0, capacity)
            except OSError:
                with suppress(OSError):  # some file systems keep the part that they could reserve
                    os.ftruncate(self.fileno(), self._reserved)
                raise
            self._reserved = capacity

    def append(self, buffers: Sequence[bytes], length: int) -> None:
        """Append all of it, or nothing: after a failed write the file is truncated, so a part of it is never read."""
        try:
            self._write(buffers, length)
        except OSError:
            self.truncate(self.end)
            raise
        self.end += length

    def _write(self, buffers: Sequence[bytes], length: int) -> None:
        if len(buffers) > _MOST_BUFFERS:
            buffers = [b"".join(buffers)]
        offset = self.end - self.start
        written = os.pwritev(self.fileno(), buffers, offset)
        if written < length:
            write_all(self.fileno(), memoryview(b"".join(buffers))[written:], offset + written)

    def read(self, position: int, length: int) -> bytes:
        """Return up to ``length`` bytes: fewer at the chunk's end. Blocks on the disk."""
        self.touch()
        return os.pread(self.fileno(), self._left(position, length), position - self.start)

    def read_held(self, position: int, length: int) -> bytearray | None:
        """Return what `read` would, or None if that might block on the disk."""
        if _NO_WAIT is None:
            return None
        self.touch()
        data = bytearray(self._left(position, length))
        try:
            read = os.preadv(self.fileno(), [data], position - self.start, _NO_WAIT)
        except OSError:  # not in memory, or not supported by the file system; `read` raises other errors again
            return None
        return data if read == len(data) else None

    def read_anyway(self, position: int, length: int) -> bytes:
        """Return what `read` would, with `UNREADABLE_PAGE` for pages that the disk cannot read. Blocks on the disk."""
        data = self.read_if_readable(position, length)
        if data is not None:
            return data
        pieces = self._pieces(position, self._left(position, length))
        found = ((self.read_if_readable(at, size), size) for at, size in pieces)
        return b"".join(UNREADABLE_PAGE[:size] if data is None else data for data, size in found)

    def read_if_readable(self, position: int, length: int) -> bytes | None:
        """Return what `read` would, or None if the disk cannot read it. Blocks on the disk."""
        try:
            return self.read(position, length)
        except OSError as error:
            if error.errno not in UNREADABLE:
                raise
            return None

    def _pieces(self, position: int, length: int) -> list[tuple[int, int]]:
        """Return the position and length of each piece of a range that is split at the file's pages."""
        first, last = position - self.start, position - self.start + length
        cuts = [first, *range((first // PAGE + 1) * PAGE, last, PAGE), last]
        return [(self.start + begin, end - begin) for begin, end in pairwise(cuts)]

    def _left(self, position: int, length: int) -> int:
        return max(min(length, self.end - position), 0)

    def touch(self) -> None:
        """Note that the chunk is read, and hold it in memory unless memory is short."""
        self._touched = self._memory.monotonic()
        grown = self.end - self.start - self._held
        if grown > 0 and self._memory.hold(grown):
            self._held += grown

    def preload(self) -> None:
        """Let the kernel read the file ahead if it may be held in memory."""
        self.touch()
        if self.is_held:
            os.posix_fadvise(self.fileno(), 0, 0, os.POSIX_FADV_WILLNEED)

    def data_from(self, position: int) -> list[tuple[int, int]]:
        """Return the start and end of each range from ``position`` on that was written.

        If the file system cannot tell, everything was. Call it once: reading makes the kernel read ahead, and unwritten
        space that was read counts as written.
        """
        found = []
        while position < self.end:
            try:
                first = os.lseek(self.fileno(), position - self.start, os.SEEK_DATA)
                last = os.lseek(self.fileno(), first, os.SEEK_HOLE)
            except OSError as error:
                if error.errno != errno.ENXIO:  # ENXIO: there is only unwritten space up to the end
                    found.append((position, self.end))
                break
            found.append((self.start + first, min(self.start + last, self.end)))
            position = self.start + last
        return found

    def truncate(self, position: int) -> None:
        """Give back the space from ``position`` on; the bytes there are lost."""
        os.ftruncate(self.fileno(), position - self.start)
        self.end = position
        self._reserved = position - self.start

    def is_idle(self) -> bool:
        return self._memory.monotonic() - self._touched >= IDLE_SECONDS and self._descriptor is not None

    def drop(self) -> None:
        """Close the file, and drop it from the kernel's memory. Its bytes must be safe on the disk."""
        if self._descriptor is not None:
            os.posix_fadvise(self._descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        self.release()

    def release(self) -> None:
        """Close the file; the next use opens it again. Safe to call twice."""
        self._memory.let_go(self._held)
        self._held = 0
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def delete(self) -> None:
        self.release()
        self.path.unlink(missing_ok=True)
