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
from enode_django.equeue.records import Buffer

_MOST_BUFFERS = 512
_BLOCK = 1 << 20
_PAGE = 4096
UNREADABLE_PAGE = b"\xff" * _PAGE
"""Is no batch, and no hole either: a crash of the machine leaves zeros."""
_NO_WAIT: int | None = getattr(os, "RWF_NOWAIT", None)
"""Linux: read what is in memory, or nothing."""


class Chunk:
    """The bytes of the log from ``start`` on. Positions are those of the log, not of the file.

    Space is reserved before it is written, by `os.posix_fallocate`, and written by `os.pwritev`, both of which refuse
    when the disk is full. Nothing is mapped. All methods raise `OSError` as it comes.
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
        """A new file with its space reserved, or no file at all."""
        chunk = cls(directory / cls.name(start), start, 0, memory)
        try:
            chunk._descriptor = os.open(chunk.path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, PRIVATE)
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
        """Write the bytes from ``start`` on again where they are, and make them safe."""
        self._copy(start, self.fileno(), self.start)

    def _copy(self, start: int, target: int, target_start: int) -> None:
        """``target`` is the descriptor of a file that begins at position ``target_start``."""
        for position in range(start, self.end, _BLOCK):
            length = min(_BLOCK, self.end - position)
            write_all(target, self.read_anyway(position, length), position - target_start)
        os.fdatasync(target)

    @property
    def is_held(self) -> bool:
        return self._held > 0

    def fileno(self) -> int:
        if self._descriptor is None:
            self._descriptor = os.open(self.path, os.O_RDWR | os.O_CLOEXEC)
        return self._descriptor

    def has_room(self, position: int, length: int) -> bool:
        """Return True if ``length`` bytes at a position of the log are behind the chunk's last one, in space it has."""
        return position == self.end and position + length <= self.start + self._reserved

    def reserve(self, capacity: int) -> None:
        """Have space for ``capacity`` bytes in all, or as much as before."""
        if self._reserved < capacity:
            try:
                os.posix_fallocate(self.fileno(), 0, capacity)
            except OSError:
                with suppress(OSError):  # some file systems keep what they had found by then
                    os.ftruncate(self.fileno(), self._reserved)
                raise
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
        """Return up to ``length`` bytes: fewer at the chunk's end. Blocks on the disk."""
        self.touch()
        return os.pread(self.fileno(), self._left(position, length), position - self.start)

    def read_held(self, position: int, length: int) -> bytearray | None:
        """Return what `read` would, or None if that might have to wait for the disk."""
        if _NO_WAIT is None:
            return None
        self.touch()
        data = bytearray(self._left(position, length))
        try:
            read = os.preadv(self.fileno(), [data], position - self.start, _NO_WAIT)
        except OSError:  # not in memory, or a file system that cannot tell; whoever reads it from the disk learns more
            return None
        return data if read == len(data) else None

    def read_anyway(self, position: int, length: int) -> bytes:
        """Return what `read` would, with `UNREADABLE_PAGE` for pages that the disk cannot read. Blocks on the disk."""
        try:
            return self.read(position, length)
        except OSError as error:
            if error.errno not in UNREADABLE:
                raise
        return b"".join(self._read_piece(*piece) for piece in self._pieces(position, self._left(position, length)))

    def _read_piece(self, position: int, length: int) -> bytes:
        try:
            return self.read(position, length)
        except OSError as error:
            if error.errno not in UNREADABLE:
                raise
        return UNREADABLE_PAGE[:length]

    def _pieces(self, position: int, length: int) -> list[tuple[int, int]]:
        """Return the position and length of each piece of what is to be read, divided where the file's pages are."""
        first, last = position - self.start, position - self.start + length
        cuts = [first, *range((first // _PAGE + 1) * _PAGE, last, _PAGE), last]
        return [(self.start + begin, end - begin) for begin, end in pairwise(cuts)]

    def _left(self, position: int, length: int) -> int:
        return max(min(length, self.end - position), 0)

    def touch(self) -> None:
        """Note that it is read, and let it be held unless memory is short."""
        self._touched = self._memory.monotonic()
        grown = self.end - self.start - self._held
        if grown > 0 and self._memory.hold(grown):
            self._held += grown

    def preload(self) -> None:
        """Let the kernel read ahead what may be held."""
        self.touch()
        if self.is_held:
            os.posix_fadvise(self.fileno(), 0, 0, os.POSIX_FADV_WILLNEED)

    def data_from(self, position: int) -> list[tuple[int, int]]:
        """Return the ranges, from ``position`` on, that hold anything but space that was never written.

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
        os.ftruncate(self.fileno(), position - self.start)
        self.end = position
        self._reserved = position - self.start

    def is_idle(self) -> bool:
        return self._memory.monotonic() - self._touched >= IDLE_SECONDS and self._descriptor is not None

    def drop(self) -> None:
        """Let go of the file, in the kernel's memory as well; what is in it must be safe on the disk."""
        if self._descriptor is not None:
            os.posix_fadvise(self._descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        self.release()

    def release(self) -> None:
        """Close the file; reading opens it again. Safe to call twice."""
        self._memory.let_go(self._held)
        self._held = 0
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def delete(self) -> None:
        self.release()
        self.path.unlink(missing_ok=True)
