"""Write a checkpoint to the disk, in any thread."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from enode_django.equeue.broker.checkpoint import write_checkpoint
from enode_django.equeue.broker.log import MessageLog
from enode_django.equeue.broker.queues import SavedQueue, SegmentWrite
from enode_django.equeue.broker.space import DiskSpace
from enode_django.equeue.files import FULL, translated


class PendingCheckpoint(NamedTuple):
    """A checkpoint at ``position`` that any thread may write. It holds copies, so the store may change meanwhile."""

    path: Path
    position: int
    time: int
    queues: Sequence[SavedQueue]
    state: Iterable[bytes]
    writes: Sequence[SegmentWrite]
    log: MessageLog
    space: DiskSpace

    def write(self) -> int:
        """Block until the checkpoint is safe on the disk; returns the size of its file in bytes.

        The messages are written first, then the indexes, then the checkpoint file; until then the previous checkpoint
        is valid. If the disk is full, the reserve is given up and the write repeated. Raises `QueueFull` and
        `StorageFailed`.
        """
        self.log.flush()
        with translated("a checkpoint"):
            try:
                return self._write()
            except OSError as error:
                if error.errno not in FULL:
                    raise
                self.space.give_up()
                return self._write()

    def _write(self) -> int:
        for write in self.writes:
            write.write()
        return write_checkpoint(self.path, self.position, self.time, self.queues, self.state)
