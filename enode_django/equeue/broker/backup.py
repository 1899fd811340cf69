"""A copy of a broker's directory, made while the broker works: ``backups/<name>`` within it.

Files that are never written again are linked, not copied: all message files but the newest, and the full index files.
Links take no time and no space, and keep the data when the broker deletes its own files. A hard link needs the same
file system, and a service can often write only to its own directory; therefore the copies lie there. Files that the
broker still writes to are copied as far as the checkpoint covers them.
"""

from __future__ import annotations

import os
import shutil
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from enode_django.equeue.broker.checkpoint import Checkpoint, before, load_checkpoint, write_checkpoint
from enode_django.equeue.broker.chunk import BLOCK, Chunk
from enode_django.equeue.broker.index import ENTRY_SIZE, SEGMENT_ENTRIES
from enode_django.equeue.broker.index_files import index_path
from enode_django.equeue.broker.timelines import copied
from enode_django.equeue.files import make_directory, open_private, sync_directory, translated
from enode_django.exceptions import QueueError

BACKUPS = "backups"
_ATTEMPTS = 10


class BackedUp(NamedTuple):
    """A finished backup. ``position``: where the log ends in it. The other fields count bytes of its message files."""

    path: Path
    position: int
    linked_bytes: int
    copied_bytes: int


def back_up(directory: Path, name: str, *, at_least: int = 0) -> BackedUp:
    """Copy everything that the newest checkpoint of a directory covers. It must cover the log at least up to position
    ``at_least``. Blocks on the disk; a broker may work there meanwhile.

    The copy gets its name when all of it is safe on the disk. Raises `QueueError` if a backup of that name exists, if
    there is no such checkpoint, or if the broker deletes messages faster than they are copied; `QueueFull`; and
    `StorageFailed`. An error leaves nothing of the copy.
    """
    target = directory / BACKUPS / name
    if target.exists():
        raise QueueError(f"there is a backup {str(target)!r} already; choose another name, or delete it")
    aside = target.with_name(f"{name}.new")
    with translated("a backup"):
        make_directory(target.parent)
        if aside.exists():  # a crash has cut it short
            shutil.rmtree(aside)
        try:
            made = _fill_in_time(directory, aside, at_least)
            os.rename(aside, target)
        except BaseException:
            shutil.rmtree(aside, ignore_errors=True)
            raise
        sync_directory(target.parent)
    return made._replace(path=target)


def _fill_in_time(source: Path, target: Path, at_least: int) -> BackedUp:
    """Fill the copy. Repeat with the next checkpoint if the broker deleted even the newest file of this one."""
    for _ in range(_ATTEMPTS):
        with suppress(FileNotFoundError):
            return _fill(source, target, _newest(source / "checkpoint", at_least))
        shutil.rmtree(target)
    raise QueueError("the broker deletes its messages sooner than they are copied; try again when it has less to do")


def _newest(path: Path, at_least: int) -> Checkpoint:
    """Return the newest checkpoint. While a new one replaces it, only `before` has it; then try its own path again."""
    for place in (path, before(path), path):
        checkpoint = load_checkpoint(place)
        if checkpoint is not None and checkpoint.position >= at_least:
            return checkpoint
    raise QueueError(f"{str(path)!r} is not a checkpoint that can be used; see the broker's log, and try again")


def _fill(source: Path, target: Path, checkpoint: Checkpoint) -> BackedUp:
    make_directory(target / "messages")
    linked, copied_bytes = _take_messages(source / "messages", target / "messages", checkpoint.position)
    for topic, queue, _, segments in checkpoint.queues:
        for start, count, *_ in segments:
            paths = [index_path(each / "queues", topic, queue, start) for each in (source, target)]
            _take_index(paths[0], paths[1], count)
    position, time, queues, state = checkpoint
    write_checkpoint(target / "checkpoint", position, time, queues, [copied(state)])
    for path, _, _ in os.walk(target, topdown=False):
        sync_directory(Path(path))
    return BackedUp(target, checkpoint.position, linked, copied_bytes)


def _take_messages(source: Path, target: Path, position: int) -> tuple[int, int]:
    """Copy the newest file and link the others; returns the bytes linked and copied. Goes from the newest to the
    oldest, since the broker deletes the oldest first: so the copy has no gap. Raises `FileNotFoundError` if even the
    newest file is gone."""
    found = (int(path.stem) for path in source.glob("[0-9]*.chunk"))
    starts = sorted((start for start in found if start < position), reverse=True)
    if not starts:
        return 0, 0
    newest = Chunk.name(starts[0])
    copied_bytes = _copy(source / newest, target / newest, position - starts[0])
    linked = 0
    for start in starts[1:]:
        try:
            os.link(source / Chunk.name(start), target / Chunk.name(start))
        except FileNotFoundError:
            break
        linked += os.stat(target / Chunk.name(start)).st_size
    return linked, copied_bytes


def _take_index(source: Path, target: Path, count: int) -> None:
    """Link a full index file, copy any other. A missing file is rebuilt from the messages when it is read."""
    make_directory(target.parent)
    with suppress(FileNotFoundError):
        if count == SEGMENT_ENTRIES:
            os.link(source, target)
        else:
            _copy(source, target, count * ENTRY_SIZE)


def _copy(source: Path, target: Path, length: int) -> int:
    """Copy the first ``length`` bytes, or fewer if there are fewer, and make them safe; returns how many."""
    left = length
    with open(source, "rb") as reading, open(target, "wb", opener=open_private) as writing:
        while left and (data := reading.read(min(BLOCK, left))):
            writing.write(data)
            left -= len(data)
        writing.flush()
        os.fsync(writing.fileno())
    return length - left
