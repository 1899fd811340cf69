"""The values that the driver changes in running processes under test: the clock's offset and the delay of the disk.

They are in a small file that driver and processes map into memory, so that reading them costs no system call.
"""

from __future__ import annotations

import mmap
import struct
from pathlib import Path

_LAYOUT = struct.Struct("=dd")
VARIABLE = "CHAOS_DIALS"
"""The environment variable with the path of the file."""


class Dials:
    """The dials in a file, which is mapped into memory, and created with zeros if it is missing."""

    def __init__(self, path: Path) -> None:
        if not path.exists():
            path.write_bytes(_LAYOUT.pack(0.0, 0.0))
        with path.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), _LAYOUT.size)

    @property
    def clock_offset(self) -> float:
        """The seconds by which the clock of the process is ahead of the machine's; negative if it is behind."""
        offset: float = _LAYOUT.unpack_from(self._map)[0]
        return offset

    @clock_offset.setter
    def clock_offset(self, seconds: float) -> None:
        _LAYOUT.pack_into(self._map, 0, seconds, self.disk_delay)

    @property
    def disk_delay(self) -> float:
        """The seconds by which each write to a file and each flush is delayed."""
        delay: float = _LAYOUT.unpack_from(self._map)[1]
        return delay

    @disk_delay.setter
    def disk_delay(self, seconds: float) -> None:
        _LAYOUT.pack_into(self._map, 0, self.clock_offset, seconds)

    def close(self) -> None:
        self._map.close()
