"""The space on the broker's disk. A part of it is reserved so that consumers can go on."""

from __future__ import annotations

import logging
import os
import threading
from contextlib import suppress
from pathlib import Path

from enode_django.equeue.broker.retention import Retention
from enode_django.equeue.files import FULL, PRIVATE

logger = logging.getLogger(__name__)

MOST_RESERVED = 64 << 20


def default_reserve(chunk_size: int) -> int:
    """Return the bytes that a broker reserves for control records and checkpoints by default."""
    return min(chunk_size // 4, MOST_RESERVED)


def urgent(retention: Retention) -> Retention:
    """Return the retention for when space is short: what every group has consumed is due at once; other limits stay."""
    return retention._replace(max_bytes=0, all_limits=False, delete_unconsumed=False)


class DiskSpace:
    """The space on the file system of a directory. Any thread may call it.

    A file of ``reserve`` bytes only holds space. When a control record or a checkpoint finds the disk full, the file is
    deleted, and they get its space; sends are then refused until the file is back. Below ``low`` free bytes, space is
    short: consumed messages are to be deleted before their time.
    """

    def __init__(self, directory: Path, *, reserve: int, low: int) -> None:
        self._directory = directory
        self._path = directory / "reserve"
        self._reserve = reserve
        self._low = low
        self._is_held = False
        self.is_full = False
        """True if there was no space for a message file: do not try again before `look`."""
        self._lock = threading.Lock()

    @property
    def step(self) -> int:
        """Bytes of the reserve that a file of control records takes at once."""
        return self._reserve // 8

    @property
    def uses_reserve(self) -> bool:
        """True if the reserve is missing: all space that is left is for consumers."""
        return self._reserve > 0 and not self._is_held

    @property
    def refuses_sends(self) -> bool:
        """True if what is sent is refused, unless it fits into the newest file."""
        return self.is_full or self.uses_reserve

    @property
    def free(self) -> int:
        """Bytes that are free on the disk for this user. Blocks on the disk."""
        status = os.statvfs(self._directory)
        return status.f_bavail * status.f_frsize

    def found_full(self) -> None:
        """Note that a message file found no space: to try again may take long. Without a reserve every send tries."""
        self.is_full = self._reserve > 0

    def look(self) -> bool:
        """Take the reserve if it is missing and there is room, and let sends try again if enough is free. Return True
        if space is short. Blocks on the disk."""
        self._take()
        if self.free >= self._low:
            self.is_full = False
        return self.refuses_sends or self.free < self._low

    def give_up(self, length: int = 0) -> None:
        """Free the reserve for ``length`` bytes, unless it is smaller. Safe to call twice. On return no thread tries to
        take the reserve: such an attempt may have filled the disk."""
        with self._lock:
            if length > self._reserve:
                return
            was_held, self._is_held = self._is_held, False
            with suppress(OSError):  # it may not exist; an earlier run may have left one of another size
                os.unlink(self._path)
        if was_held:
            logger.error("the disk is full: the broker uses its reserve, and refuses sends until there is room again")

    def _allocated(self) -> int:
        """Return the bytes that the file of an earlier run occupies."""
        try:
            return os.stat(self._path).st_blocks * 512
        except FileNotFoundError:
            return 0

    def _take(self) -> None:
        with self._lock:
            if self._is_held or not self._reserve or self.free + self._allocated() < self._reserve:
                return
            descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, PRIVATE)
            try:
                os.posix_fallocate(descriptor, 0, self._reserve)
                os.ftruncate(descriptor, self._reserve)
            except OSError as error:
                with suppress(OSError):
                    os.unlink(self._path)
                if error.errno not in FULL:
                    raise
            else:
                self._is_held = True
            finally:
                os.close(descriptor)
