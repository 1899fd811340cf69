"""A file with the state of the store at one position of the log, from which a start resumes."""

from __future__ import annotations

import logging
import os
import zlib
from collections.abc import Iterable, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import msgpack

from enode_django.equeue.broker.interpreter import let_others_run
from enode_django.equeue.broker.log import MessageLog
from enode_django.equeue.broker.packing import joined, pieces
from enode_django.equeue.broker.queues import SavedQueue, SegmentWrite
from enode_django.equeue.broker.space import DiskSpace
from enode_django.equeue.files import FULL, replaced_file, translated
from enode_django.equeue.records import CHECK_BYTES, check_of, is_whole, unseal
from enode_django.exceptions import StorageFailed

logger = logging.getLogger(__name__)

_FORMAT = 2
"""The state comes after the list, so that it can be written piece by piece."""


class Checkpoint(NamedTuple):
    """``position``: the log's end at the time of the checkpoint. ``time``: of the newest batch, in milliseconds since
    1970. ``state``: bytes that only the caller interprets."""

    position: int
    time: int
    queues: Sequence[SavedQueue]
    state: bytes


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


def write_checkpoint(path: Path, position: int, time: int, queues: Sequence[Any], state: Iterable[bytes]) -> int:
    """Block until the checkpoint is safe on the disk; returns its size in bytes. The previous one is kept beside it.

    Called in a thread of its own: it lets other threads run between the pieces.
    """
    head = pieces([_FORMAT, position, time, queues], depth=4)
    check = 0
    with replaced_file(path, keep=before(path)) as file:
        file.write(bytes(CHECK_BYTES))
        for part in joined(chain(head, state)):
            check = zlib.crc32(part, check)
            file.write(part)
            let_others_run()
        size = file.tell()
        file.seek(0)
        file.write(check_of(check))
    return size


def found_checkpoint(path: Path, log_start: int, *, accept_loss: bool) -> Checkpoint | None:
    """Return the checkpoint to resume from, None if there is none. If records between it and the start of the log are
    missing, raises `StorageFailed`, or logs that with ``accept_loss``."""
    known = read_checkpoint(path)
    if (known.position if known is not None else 0) < log_start:
        lost = (
            f"topics, groups and offsets are lost: the messages in {str(path.parent)!r} begin at {log_start}, and no "
            "checkpoint from there on can be used"
        )
        if not accept_loss:
            raise StorageFailed(f"{lost}; put a copy of the checkpoint back, or start with --accept-loss")
        logger.error("%s; the broker goes on without them, as it was told to", lost)
    return known


def read_checkpoint(path: Path) -> Checkpoint | None:
    """Return the newest checkpoint, or the one before, or None. An unusable newest one is logged and renamed."""
    known = load_checkpoint(path)
    if known is not None:
        return known
    known = load_checkpoint(before(path))
    if path.exists():  # the next write must not keep it as the one before
        os.replace(path, path.with_name(path.name + ".unusable"))
    if known is not None:
        logger.error("the checkpoint before is used, and what follows it is read from the messages")
    return known


def before(path: Path) -> Path:
    """Return the path of the checkpoint before the one at ``path``."""
    return path.with_name(path.name + ".before")


def load_checkpoint(path: Path) -> Checkpoint | None:
    """Return the checkpoint in a file, or None. That a file cannot be used is logged. Changes nothing."""
    try:
        content = path.read_bytes()
        if not is_whole(content):
            raise ValueError("its CRC is wrong")
        return _unpacked(unseal(content))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError, msgpack.UnpackException) as error:
        logger.error("checkpoint %s cannot be used: %s", path, error)
        return None


def _unpacked(content: bytes) -> Checkpoint:
    unpacker = msgpack.Unpacker(use_list=False, max_buffer_size=0)
    unpacker.feed(content)
    version, *fields = unpacker.unpack()
    if version != _FORMAT:
        raise ValueError(f"it has format {version!r}, not {_FORMAT!r}")
    position, time, queues = fields
    return Checkpoint(position, time, queues, content[unpacker.tell() :])
