"""A disk whose sync fails once. The kernel then counts the pages as clean, and the next sync does not write them."""

from __future__ import annotations

import errno
import os
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

PAGE = 4096


class ForgetfulDisk:
    """Simulates the disk of the message files of a directory. Written bytes are visible at once, as from the kernel's
    cache. After `crash`, files have only the pages that a sync has written, and zeros in place of the others; their
    sizes survive without a sync. A new file is gone unless its directory was synced."""

    def __init__(self, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._directory = directory
        self._safe: dict[int, dict[int, bytes]] = defaultdict(dict)
        self._dirty: dict[int, set[int]] = defaultdict(set)
        self.fails = False
        """True if the next sync fails."""
        self.is_full = False
        """True if the disk has no room for new files."""
        self._names: set[str] = set()
        self._pwrite, self._pwritev, self._fdatasync, self._fsync = os.pwrite, os.pwritev, os.fdatasync, os.fsync
        monkeypatch.setattr(os, "pwrite", self._on_pwrite)
        monkeypatch.setattr(os, "pwritev", self._on_pwritev)
        monkeypatch.setattr(os, "fdatasync", self._on_fdatasync)
        monkeypatch.setattr(os, "fsync", self._on_fsync)

    def crash(self) -> None:
        """Change the files as a crash of the machine does."""
        for path in self._directory.glob("messages/*"):
            if path.name not in self._names:
                path.unlink()
                continue
            safe, size = self._safe[path.stat().st_ino], path.stat().st_size
            pages = [safe.get(page, b"").ljust(PAGE, b"\0") for page in range(-(-size // PAGE))]
            path.write_bytes(b"".join(pages)[:size])
        self._dirty.clear()

    def _on_pwrite(self, descriptor: int, data: Any, offset: int) -> int:
        return self._written(descriptor, offset, lambda: self._pwrite(descriptor, data, offset))

    def _on_pwritev(self, descriptor: int, buffers: Sequence[Any], offset: int) -> int:
        return self._written(descriptor, offset, lambda: self._pwritev(descriptor, buffers, offset))

    def _written(self, descriptor: int, offset: int, write: Callable[[], int]) -> int:
        if self.is_full and not self._safe.get(os.fstat(descriptor).st_ino):
            raise OSError(errno.ENOSPC, "no space left on device")
        written = write()
        self._dirty[os.fstat(descriptor).st_ino].update(range(offset // PAGE, (offset + written - 1) // PAGE + 1))
        return written

    def _on_fdatasync(self, descriptor: int) -> None:
        inode = os.fstat(descriptor).st_ino
        dirty, self._dirty[inode] = self._dirty[inode], set()
        if self.fails:
            self.fails = False
            raise OSError(errno.EIO, "input/output error")
        self._fdatasync(descriptor)
        self._safe[inode].update({page: os.pread(descriptor, PAGE, page * PAGE) for page in dirty})

    def _on_fsync(self, descriptor: int) -> None:
        self._fsync(descriptor)
        if os.path.samestat(os.fstat(descriptor), os.stat(self._directory / "messages")):
            self._names = set(os.listdir(descriptor))
