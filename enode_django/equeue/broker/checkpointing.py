"""Bringing a checkpoint to the disk, in any thread."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from enode_django.equeue.broker.checkpoint import Checkpoint, write_checkpoint
from enode_django.equeue.broker.files import FULL, translated
from enode_django.equeue.broker.log import MessageLog
from enode_django.equeue.broker.queues import SegmentWrite
from enode_django.equeue.broker.space import DiskSpace


class PendingCheckpoint(NamedTuple):
    """What was true at ``checkpoint.position``; holds copies, so that the store may go on meanwhile."""

    path: Path
    checkpoint: Checkpoint
    writes: Sequence[SegmentWrite]
    log: MessageLog
    space: DiskSpace

    def write(self) -> None:
        """Block until it is safe. The messages come first, then the indexes, then the file that counts them, so the
        checkpoint before counts until everything is there. Raises `QueueFull` and `StorageFailed`."""
        self.log.flush()
        with translated("a checkpoint"):
            try:
                self._write()
            except OSError as error:
                if error.errno not in FULL:
                    raise
                self.space.give_up()
                self._write()

    def _write(self) -> None:
        for write in self.writes:
            write.write()
        write_checkpoint(self.path, self.checkpoint)
