"""One file of the log."""

from __future__ import annotations

import errno
import mmap
import os
from collections.abc import Sequence
from pathlib import Path

from enode_django.equeue.broker.files import write_all
from enode_django.equeue.broker.mapping import IDLE_SECONDS, MappedMemory
from enode_django.equeue.records import Buffer

_MOST_BUFFERS = 512
_BLOCK = 1 << 20


class Chunk:
    """The bytes of the log from ``start`` on. Positions are those of the log, not of the file.

    Space is reserved before it is written, by `os.posix_fallocate`, and written by `os.pwritev`, both of which refuse
    when the disk is full; a write through a map would end the process. Maps are for reading only. All methods raise
    `OSError` as it comes.
    """

    def __init__(self, path: Path, start: int, written: int, memory: MappedMemory) -> None:
        self.path = path
        self.start = start
        self.end = start + written
        self._reserved = written
        self._memory = memory
        self._descriptor: int | None = None
        self._map: mmap.mmap | None = None
        self._touched = memory.monotonic()

    @classmethod
    def name(cls, start: int) -> str:
        return f"{start:020}.chunk"

    @classmethod
    def create(cls, directory: Path, start: int, capacity: int, memory: MappedMemory) -> Chunk:
        """A new file with its space reserved, or no file at all."""
        chunk = cls(directory / cls.name(start), start, 0, memory)
        try:
            chunk._descriptor = os.open(chunk.path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
            chunk.reserve(capacity)
        except OSError:
            chunk.delete()
            raise
        return chunk

    def renewed(self, start: int) -> Chunk:
        """The bytes from ``start`` on in a new file that begins there and is safe, but for its name. The one of this
        chunk is left as it is, unless the new one has its name."""
        path = self.path.with_name(self.name(start))
        aside = path.with_name(path.name + ".new")
        try:
            descriptor = os.open(aside, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
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
        """Write the bytes from ``start`` on again where they are, and make them safe."""
        self._copy(start, self.fileno(), self.start)

    def _copy(self, start: int, target: int, target_start: int) -> None:
        """``target`` is the descriptor of a file that begins at position ``target_start``."""
        for position in range(start, self.end, _BLOCK):
            length = min(_BLOCK, self.end - position)
            write_all(target, os.pread(self.fileno(), length, position - self.start), position - target_start)
        os.fdatasync(target)

    @property
    def is_mapped(self) -> bool:
        return self._map is not None

    def fileno(self) -> int:
        if self._descriptor is None:
            self._descriptor = os.open(self.path, os.O_RDWR | os.O_CLOEXEC)
        return self._descriptor

    def reserve(self, capacity: int) -> None:
        if self._reserved < capacity:
            os.posix_fallocate(self.fileno(), 0, capacity)
            self._reserved = capacity

    def append(self, buffers: Sequence[Buffer], length: int) -> None:
        """All of it, or nothing: what a failed write has left is taken away, lest it is read there later."""
        try:
            self._write(buffers, length)
        except OSError:
            self.truncate(self.end)
            raise
        self.end += length

    def _write(self, buffers: Sequence[Buffer], length: int) -> None:
        if len(buffers) > _MOST_BUFFERS:
            buffers = [b"".join(buffers)]
        offset = self.end - self.start
        written = os.pwritev(self.fileno(), buffers, offset)
        if written < length:
            write_all(self.fileno(), memoryview(b"".join(buffers))[written:], offset + written)

    def read(self, position: int, length: int) -> bytes:
        """Up to ``length`` bytes: fewer at the chunk's end."""
        first = position - self.start
        last = min(first + length, self.end - self.start)
        self._touched = self._memory.monotonic()
        if self._map is None or len(self._map) < last:
            self.map()
        if self._map is not None:
            return self._map[first:last]
        return os.pread(self.fileno(), max(last - first, 0), first)

    def map(self) -> None:
        """Map what is reserved, unless memory is short; safe to call again."""
        if self._map is not None:
            self._unmap()
        # Never further than the file goes: touching a page behind its end would end the process.
        length = min(self._reserved, os.fstat(self.fileno()).st_size)
        if length >= self.end - self.start:
            self._map = self._memory.map(self.fileno(), length)

    def preload(self) -> None:
        """Let the kernel read ahead what is mapped."""
        if self._map is None:
            self.map()
        if self._map is not None:
            self._map.madvise(mmap.MADV_WILLNEED)

    def data_from(self, position: int) -> list[tuple[int, int]]:
        """From where to where there is anything but space that was never written, from ``position`` on.

        On a file system that cannot tell, everything is. Ask once: reading makes the kernel read ahead, and what it has
        read of such space counts as written.
        """
        found = []
        while position < self.end:
            try:
                first = os.lseek(self.fileno(), position - self.start, os.SEEK_DATA)
                last = os.lseek(self.fileno(), first, os.SEEK_HOLE)
            except OSError as error:
                if error.errno != errno.ENXIO:  # which means nothing but unwritten space up to the end
                    found.append((position, self.end))
                break
            found.append((self.start + first, min(self.start + last, self.end)))
            position = self.start + last
        return found

    def truncate(self, position: int) -> None:
        """Give back the space from ``position`` on; what stood there is gone."""
        if self._map is not None:
            self._unmap()
        os.ftruncate(self.fileno(), position - self.start)
        self.end = position
        self._reserved = position - self.start

    def is_idle(self) -> bool:
        return self._memory.monotonic() - self._touched >= IDLE_SECONDS

    def release(self) -> None:
        """Unmap and close; reading opens it again. Safe to call twice."""
        if self._map is not None:
            self._unmap()
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def delete(self) -> None:
        self.release()
        self.path.unlink(missing_ok=True)

    def _unmap(self) -> None:
        assert self._map is not None
        self._memory.unmap(self._map)
        self._map = None
