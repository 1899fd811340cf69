"""The broker's messages and its other state, in one directory.

::

    lock                                         held by the one broker that works here
    messages/<20-digit start position>.chunk     the log: batches of messages and control records as they came
    queues/<topic>/<queue>/<first offset>.index  the positions of a queue's batches in the log
    checkpoint                                   the state at one position of the log
    checkpoint.before                            the one before, used if that cannot be read
    reserve                                      space for control records when the disk is full
    .gitignore                                   for a directory that the broker makes in a checkout
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from enode_django.equeue.broker.batches import (
    ALIGNMENT,
    NO_PRODUCER,
    NewBatch,
    Stamp,
    StoredBatch,
    lay_out,
    lay_out_control,
)
from enode_django.equeue.broker.checkpoint import Checkpoint, PendingCheckpoint, found_checkpoint
from enode_django.equeue.broker.clock import FAR_AHEAD, SteadyClock
from enode_django.equeue.broker.deletion import Deletion
from enode_django.equeue.broker.held_memory import HeldMemory
from enode_django.equeue.broker.index_files import IndexFile
from enode_django.equeue.broker.log import MessageLog
from enode_django.equeue.broker.queues import Queues
from enode_django.equeue.broker.reading import BatchReader
from enode_django.equeue.broker.recovery import Recovered, Recovery, Replay, Sent, entry_of, find_entries, renew_unsafe
from enode_django.equeue.broker.ring import RING_BATCHES, RING_BYTES, Ring
from enode_django.equeue.broker.space import DiskSpace
from enode_django.equeue.clocks import boot_time
from enode_django.equeue.files import DirectoryLock, make_ignored_directory, shut_out_others, translated, usable
from enode_django.equeue.histograms import Histogram

logger = logging.getLogger(__name__)


class Opened(NamedTuple):
    """The work that opening had to do. ``scanned_batches`` and ``scanned_bytes``: how much was read again since the
    checkpoint. ``torn``: something unfinished was cut from the end (at `position`). ``rebuilt``: the indexes were made
    again from all messages."""

    scanned_batches: int
    scanned_bytes: int
    torn: bool
    rebuilt: bool


class MessageStore:
    """The messages and control records of a broker. All calls come from one thread, except `flush` and
    `PendingCheckpoint.write`, which block on the disk and may be called by others. `open`, `checkpoint` and `close`
    block on the disk as well; no other method waits for more than an index.

    Life: the constructor takes the directory, `open` must follow and hands out what was stored, `close` ends it. After
    `open`, write a checkpoint soon (otherwise the same is read again next time), then whenever `since_checkpoint` is
    large or some seconds have passed. Call `flush` and `drop_idle` from time to time. `append` and
    `append_control` write to one log in the order of the calls, so a prefix of them survives a crash; a send survives
    with all its batches, or with none.

    A queue begins with its first message; before that its bounds are (0, 0). The store does not know which topics and
    queues exist. The name of a topic has at most 200 bytes as a URL quotes it.
    """

    def __init__(
        self,
        directory: Path,
        *,
        chunk_size: int = 256 << 20,
        ring_batches: int = RING_BATCHES,
        ring_bytes: int = RING_BYTES,
        low_watermark: int | None = None,
        high_watermark: int | None = None,
        preload: int = 3,
        shows_safe: bool = False,
        clock: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = boot_time,
        reserve: int = 0,
        low_space: int = 0,
        accept_loss: bool = False,
    ) -> None:
        """``clock`` gives the time of batches, checked against ``monotonic`` (`SteadyClock`). Watermarks are in bytes;
        None: a share of the machine's memory. ``shows_safe``: `read` returns only what is safe on the disk. ``reserve``
        and ``low_space``: see `DiskSpace`. ``accept_loss``: open even if topics, groups and offsets are lost.

        Raises `DirectoryInUse`, and `ConfigurationError` if the path is not a directory or this process may not use it.
        """
        self.directory = directory
        self.shows_safe = shows_safe
        self.has_lost = False
        """Set by `open` if the log ends before the checkpoint's position: the disk lost what it reported as safe."""
        self.on_append: Callable[[], object] = lambda: None
        """Called after each append, so when `unflushed_bytes` is not 0; it must not block."""
        with usable(directory):
            make_ignored_directory(directory)
            shut_out_others(directory)
            self._lock = DirectoryLock(directory)
        self._memory = HeldMemory(low_watermark, high_watermark, monotonic=monotonic)
        self.space = DiskSpace(directory, reserve=reserve, low=low_space)
        self._log = MessageLog(directory / "messages", chunk_size, self._memory, self.space)
        self.queues = Queues(directory / "queues", lambda *of: find_entries(self._log, *of))
        self.ring = Ring(ring_batches, ring_bytes)
        self.reader = BatchReader(self._log, self.queues, self.ring, shows_safe=shows_safe)
        self._preload = preload
        self.now = SteadyClock(clock, monotonic)
        self.deletion = Deletion(self._log, self.queues, self.now)
        self._time = 0
        self._accept_loss = accept_loss
        self._checkpointed = 0
        self._is_first = True

    @property
    def is_in_place(self) -> bool:
        """See `DirectoryLock`. Any thread may ask."""
        return self._lock.is_in_place

    def open(self, *, restore: Callable[[bytes], object], replay: Replay, sent: Callable[[Sent], object]) -> Opened:
        """Restore everything. Blocks for a time in proportion to the amount written since the last checkpoint.

        First ``restore`` gets the state of that checkpoint; without one it is not called. Then, in the order of the
        log, ``replay`` gets each control record behind the checkpoint with its position, and ``sent`` each send behind
        it that named its producer (older ones, too, if the indexes are rebuilt). Damaged data is skipped and reported
        by the `reader`. Afterwards all remaining data is safe on the disk; offsets in the restored state may exceed
        `bounds` if the disk lost something. Raises `StorageFailed` if no checkpoint can be used and records before the
        log's start are lost, unless ``accept_loss``.
        """
        known = found_checkpoint(self.directory / "checkpoint", self._log.start, accept_loss=self._accept_loss)
        checkpoint = known or Checkpoint(0, 0, (), b"")
        self.has_lost = self._log.end < checkpoint.position
        rebuilt = known is None or self.has_lost
        (self.queues.load_ends if rebuilt else self.queues.load)(checkpoint.queues, self._log.start)
        self.queues.delete_unknown()
        if known is not None:
            restore(known.state)
        start = self._log.start if rebuilt else checkpoint.position
        recovered = Recovery(
            self._log, self.queues, replay=replay, replay_from=checkpoint.position, sent=sent, report=self.reader.report
        ).run(start)
        torn = any(self._log.read(recovered.end, ALIGNMENT))
        self._go_on(checkpoint, recovered)
        self._is_first = known is None
        if known is not None and rebuilt:
            # The disk lost what that checkpoint covers. It must not be used again once new data follows.
            self.checkpoint(known.state)
        with translated("the reserve"):
            self.space.look()
        for chunk in self._log.chunks[-self._preload :] if self._preload else ():
            chunk.preload()
        return Opened(recovered.batches, recovered.end - start, torn, rebuilt and recovered.batches > 0)

    def _go_on(self, checkpoint: Checkpoint, recovered: Recovered) -> None:
        """Let new data follow what was recovered, which is safe on the disk then."""
        self._log.cut(recovered.end)
        renew_unsafe(self._log, max(checkpoint.position, recovered.flushed), self.reader.damaged)
        self._log.skip_to(checkpoint.position)
        self.queues.load_newest()
        self.queues.delete_empty_directories()
        self._time = self._believed(max(checkpoint.time, recovered.time), self.now())
        self._checkpointed = checkpoint.position

    @property
    def position(self) -> int:
        """The position of the log's end."""
        return self._log.end

    @property
    def flushed(self) -> int:
        """The position up to which everything is safe on the disk."""
        return self._log.flushed

    @property
    def unflushed_bytes(self) -> int:
        return self._log.end - self._log.flushed

    @property
    def since_checkpoint(self) -> int:
        """The bytes that a start would read again after a crash now."""
        return self._log.end - self._checkpointed

    @property
    def held_bytes(self) -> int:
        """The bytes of message files that the broker lets the kernel keep in memory."""
        return self._memory.held

    @property
    def sync_seconds(self) -> Histogram:
        """The durations of flushes."""
        return self._log.sync_seconds

    @property
    def size(self) -> int:
        """The size of all messages and control records that are left, in bytes."""
        return self._log.end - self._log.start

    def append(
        self, topic: str, batches: Sequence[NewBatch], *, producer: bytes = NO_PRODUCER, sequence: int = 0
    ) -> Mapping[int, int]:
        """Store a send as a whole; returns, per queue, the offset of its first message. Safe after the next `flush`.

        ``producer`` has 16 bytes; the next `open` passes its sends to ``sent``. Stores nothing if it raises:
        `MalformedRecords` for a body that is not whole, `QueueFull` if there is no room, or `StorageFailed`.
        """
        layout = lay_out(
            topic, batches, lambda queue: self.queues.of(topic, queue).end, self._stamp(), producer, sequence
        )
        if not batches:
            return {}
        self._log.append(layout.buffers(), layout.length)
        firsts: dict[int, int] = {}
        for header, body in zip(layout.headers, layout.bodies, strict=True):
            self.queues.of(topic, header.queue).add(entry_of(header))
            firsts.setdefault(header.queue, header.first_offset)
            self.ring.add(header.position, StoredBatch(header.first_offset, body))
        self.on_append()
        return firsts

    def append_control(self, record: bytes) -> None:
        """Store a record that `open` passes to ``replay``, unless a later checkpoint is written before."""
        layout = lay_out_control(record, self._stamp())
        self._log.append(layout.buffers(), layout.length, is_control=True)
        self.on_append()

    def bounds(self, topic: str, queue: int) -> tuple[int, int]:
        """Return the offsets of the oldest message left and of the next one to come; they are equal if none is left."""
        index = self.queues.get(topic, queue)
        return (index.first(self._log.start), index.end) if index is not None else (0, 0)

    def offset_at(self, topic: str, queue: int, at: float) -> int:
        """Return the first offset of the first batch that was stored at a time (seconds since 1970) or later, else the
        end. Times of batches are in whole milliseconds, so a batch of the same millisecond counts. Raises
        `NotInMemory`."""
        index = self.queues.get(topic, queue)
        if index is None:
            return 0
        entry = next(index.at_time(int(at * 1000 // 1)), None)
        return max(entry.first_offset, index.first(self._log.start)) if entry is not None else index.end

    def empty(self, topic: str, only: int | None = None) -> list[IndexFile]:
        """See `Queues.empty`. The messages stay in their files until those are due, but are not read."""
        self.deletion.forget_surveys()
        return self.queues.empty(topic, only)

    def flush(self) -> int:
        """Block until everything appended before the call is safe; returns up to where that is. Any thread may call it,
        also several at once. Raises `StorageFailed`; the store then refuses every later append."""
        return self._log.flush()

    def begin_checkpoint(self, state: Iterable[bytes]) -> PendingCheckpoint:
        """Return a checkpoint of the current state, without waiting. ``state`` is what the caller knows at `position`,
        in pieces. The thread that writes iterates over the pieces, a second time if the disk is full.

        Any thread may write the checkpoint; then it is passed to `finish_checkpoint` here. One at a time.
        """
        writes, queues = self.queues.save()
        path = self.directory / "checkpoint"
        return PendingCheckpoint(path, self._log.end, self._time, queues, state, writes, self._log, self.space)

    def finish_checkpoint(self, pending: PendingCheckpoint) -> None:
        """Take note that a checkpoint was written. Without this nothing breaks, but more is read and written again."""
        for write in pending.writes:
            write.finish()
        self.deletion.counted = pending.position if self._is_first else self._checkpointed
        self._checkpointed, self._is_first = pending.position, False

    def checkpoint(self, state: bytes) -> None:
        """Write a checkpoint; blocks on the disk. Raises `QueueFull` and `StorageFailed`; then the last one counts."""
        pending = self.begin_checkpoint([state])
        pending.write()
        self.finish_checkpoint(pending)

    def drop_idle(self) -> None:
        """Above the low watermark, drop files from memory that were not read for `IDLE_SECONDS` seconds."""
        self._log.drop_idle()

    def close(self, state: bytes) -> None:
        """Flush, write a checkpoint and release the directory: the next `open` reads nothing again.

        No other thread may be in `flush` or write a checkpoint.
        """
        try:
            self._log.close()
            self.checkpoint(state)
        finally:
            self.abandon()

    def abandon(self) -> None:
        """Release the directory without writing anything: the next `open` finds what a crash would leave."""
        self._log.release()
        self._lock.release()

    def _stamp(self) -> Stamp:
        now = self.now()
        self._time = max(self._believed(self._time, now), int(now * 1000))
        return Stamp(self._log.end, self._log.flushed, self._time)

    def _believed(self, newest: int, now: float) -> int:
        """Return the time of the newest batch in milliseconds; 0 if it comes from a wrong clock, which is logged."""
        ahead = newest / 1000 - now
        if ahead <= FAR_AHEAD:
            return newest
        self.deletion.wrong_times_seen = now
        logger.error(
            "the newest messages are %.1f hours in the future: the machine's clock was wrong then, or is wrong now. "
            "That time is not believed, new messages get the clock's",
            ahead / 3600,
        )
        return 0
