"""What the driver turns in processes under test while they run: the clock's offset and the delay of the disk.

The numbers lie in a small file that driver and processes map into memory, so that looking costs no system call.
"""

from __future__ import annotations

import mmap
import struct
from pathlib import Path

_LAYOUT = struct.Struct("=dd")
VARIABLE = "CHAOS_DIALS"
"""The environment variable with the file's path."""


class Dials:
    """Maps the file, and makes it (all zero) if it is missing."""

    def __init__(self, path: Path) -> None:
        if not path.exists():
            path.write_bytes(_LAYOUT.pack(0.0, 0.0))
        with path.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), _LAYOUT.size)

    @property
    def clock_offset(self) -> float:
        """Seconds that the clock of the process is ahead of the machine's; negative: behind."""
        offset: float = _LAYOUT.unpack_from(self._map)[0]
        return offset

    @clock_offset.setter
    def clock_offset(self, seconds: float) -> None:
        _LAYOUT.pack_into(self._map, 0, seconds, self.disk_delay)

    @property
    def disk_delay(self) -> float:
        """Seconds that each write to a file and each flush takes longer."""
        delay: float = _LAYOUT.unpack_from(self._map)[1]
        return delay

    @disk_delay.setter
    def disk_delay(self, seconds: float) -> None:
        _LAYOUT.pack_into(self._map, 0, self.clock_offset, seconds)

    def close(self) -> None:
        self._map.close()
