"""Start-up after a crash: read again what was written since the checkpoint, find where the log has to be cut, and make
the rest safe."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from typing import NamedTuple, TypeAlias

from enode_django.equeue.broker.batches import CONTROL_TOPIC, NO_PRODUCER, Header
from enode_django.equeue.broker.index import Entry
from enode_django.equeue.broker.log import MessageLog
from enode_django.equeue.broker.queues import Queues
from enode_django.equeue.broker.scan import Damaged, Found, Scanned, scan
from enode_django.equeue.records import unseal
from enode_django.exceptions import StorageFailed


class Sent(NamedTuple):
    """A send that was stored. ``offsets``: its answer. ``time``: in seconds since 1970."""

    topic: str
    producer: bytes
    sequence: int
    offsets: Mapping[int, int]
    time: float


class Recovered(NamedTuple):
    """``end``: where the log has to be cut. ``time``: that of the newest batch, in milliseconds since 1970; 0 without
    batches. ``flushed``: the position up to which the log was safe according to its batches; 0 without batches."""

    batches: int
    end: int
    time: int
    flushed: int


Replay: TypeAlias = Callable[[bytes, int], object]
"""Takes a control record and its position."""

Report: TypeAlias = Callable[[int, str], object]
"""Takes the position of a damaged batch and what is wrong with it."""


class Recovery:
    """Reads the log from a position on, in its order. It indexes the messages, passes control records at or behind
    ``replay_from`` to ``replay``, and passes each send whose producer may ask for its answer again to ``sent``."""

    def __init__(
        self,
        log: MessageLog,
        queues: Queues,
        *,
        replay: Replay,
        replay_from: int,
        sent: Callable[[Sent], object],
        report: Report,
    ) -> None:
        self._log = log
        self._queues = queues
        self._replay = replay
        self._replay_from = replay_from
        self._sent = sent
        self._report = report
        self._parts: list[Scanned] = []

    def run(self, position: int) -> Recovered:
        """Read the log from ``position`` on. The parts of a send are held back until its last one is seen, or another
        send begins behind them."""
        batches, end, time, flushed = 0, position, 0, 0
        for item in scan(self._log, position, self._replay_from):
            if isinstance(item, Damaged):
                self._report(item.position, "its bytes do not match their CRC, or cannot be read")
                self._parts.append(item)
                continue
            if not item.header.part:
                self._settle()
            self._parts.append(item)
            batches += 1
            flushed = max(flushed, item.header.flushed)
            if item.header.part == item.header.parts - 1:
                self._settle()
                end, time = item.end, item.header.time
        if self._parts:
            end = self._parts[0].position
        return Recovered(batches, end, time, flushed)

    def _settle(self) -> None:
        parts, self._parts = self._parts, []
        headers = []
        for item in parts:
            if isinstance(item, Found) and item.header.topic == CONTROL_TOPIC:
                if item.position >= self._replay_from:
                    self._replay(unseal(item.body), item.position)
            elif item.header is not None and item.header.topic != CONTROL_TOPIC:
                self._index(item.header, whole=isinstance(item, Found))
                headers.append(item.header)
        if headers and headers[-1].producer != NO_PRODUCER:
            self._sent(_answer(headers))

    def _index(self, header: Header, *, whole: bool) -> None:
        index = self._queues.of(header.topic, header.queue)
        if header.first_offset < index.end:
            self._report(header.position, f"offset {header.first_offset} of its queue is taken")
        elif whole:
            index.add(entry_of(header))
        else:
            index.end = header.first_offset + header.messages


def entry_of(header: Header) -> Entry:
    return Entry(header.first_offset, header.position, header.time, header.messages, header.body_length)


def renew_unsafe(log: MessageLog, safe: int, damaged: Collection[int]) -> None:
    """Write everything behind ``safe`` again, to new files: it reads as if it were on the disk, and may be in the
    kernel's memory only. When a sync fails, the kernel marks the pages as clean, so the next sync reports success, and
    a crash of the machine loses them. ``safe`` is the end of the last sync that is known to have worked.

    ``damaged`` are the positions that were skipped when the log was read. Called before the first append. Raises
    `StorageFailed`, also if what was read before is missing afterwards.
    """
    chunk = next((chunk for chunk in log.chunks if chunk.end > safe), None)
    if chunk is None:
        return
    start = max(safe, chunk.start)
    if any(position >= start for position in damaged):
        start = chunk.start  # the pages of the file tell damage from a hole: they must not move within it
    log.renew(start)
    end = start
    for item in scan(log, start, safe):
        if isinstance(item, Found) or item.position in damaged:
            end = item.end
    if end < log.end:
        raise StorageFailed(f"messages at position {end} of the log are not read as before; look after the disk")


def find_entries(
    log: MessageLog, topic: str, queue: int, first: int, last: int, is_over: Callable[[], bool]
) -> Iterator[Entry]:
    """Yield the entries of one queue between two positions of the log (both included), read from the log itself. Blocks
    on the disk; any thread may iterate. Ends early when ``is_over`` returns True."""
    reader = log.reader(first, last)
    try:
        for item in scan(reader, max(first, reader.start), last):
            if item.position > last or is_over():
                return
            if isinstance(item, Found) and (item.header.topic, item.header.queue) == (topic, queue):
                yield entry_of(item.header)
    finally:
        reader.release()


def _answer(headers: list[Header]) -> Sent:
    offsets: dict[int, int] = {}
    newest = headers[-1]
    for header in headers:
        # Damage at the bounds of two sends has put the parts of both together.
        if (header.producer, header.sequence) == (newest.producer, newest.sequence):
            offsets.setdefault(header.queue, header.first_offset)
    return Sent(newest.topic, newest.producer, newest.sequence, offsets, newest.time / 1000)
