"""A disk with sectors that it can no longer read."""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

SECTOR = 512


class UnreadableDisk:
    """Simulates the disk of all files: a read that touches a lost sector fails with EIO, as in the kernel."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._lost: set[tuple[int, int]] = set()
        self._pread, self._preadv = os.pread, os.preadv
        monkeypatch.setattr(os, "pread", self._on_pread)
        monkeypatch.setattr(os, "preadv", self._on_preadv)

    def lose(self, path: Path, place: int) -> None:
        """Lose the sector with the byte at ``place``."""
        self._lost.add((path.stat().st_ino, place // SECTOR))

    def _on_pread(self, descriptor: int, length: int, offset: int) -> bytes:
        self._check(descriptor, length, offset)
        return self._pread(descriptor, length, offset)

    def _on_preadv(self, descriptor: int, buffers: Sequence[Any], offset: int, flags: int = 0) -> int:
        self._check(descriptor, sum(map(len, buffers)), offset)
        return self._preadv(descriptor, buffers, offset, flags)

    def _check(self, descriptor: int, length: int, offset: int) -> None:
        inode = os.fstat(descriptor).st_ino
        if any((inode, sector) in self._lost for sector in range(offset // SECTOR, -(-(offset + length) // SECTOR))):
            raise OSError(errno.EIO, "Input/output error")
