"""Check a broker's directory, or a backup of one, while no broker works there. Nothing in it is changed."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal, NamedTuple

import msgpack

from enode_django.equeue.broker.batches import ALIGNMENT, CONTROL_TOPIC, Header
from enode_django.equeue.broker.checkpoint import Checkpoint, before, load_checkpoint
from enode_django.equeue.broker.chunk import Chunk
from enode_django.equeue.broker.held_memory import HeldMemory
from enode_django.equeue.broker.index import Entry, entries_of
from enode_django.equeue.broker.index_files import index_path
from enode_django.equeue.broker.log import LogReader, chunks_in
from enode_django.equeue.broker.recovery import entry_of
from enode_django.equeue.broker.scan import Damaged, Found, scan
from enode_django.equeue.broker.segments import words_in
from enode_django.equeue.coordination import Coordinator
from enode_django.equeue.files import lock_file
from enode_django.exceptions import DirectoryInUse, QueueError

DAMAGE: Final = "damage"
NOTE: Final = "note"


class Finding(NamedTuple):
    """``kind``: "damage" if a broker would lose or skip something, "note" if it repairs this by itself."""

    kind: Literal["damage", "note"]
    place: str
    text: str


@dataclass(slots=True)
class Checked:
    """The result: ``files`` and ``bytes`` of messages, and what is in them. ``records`` are control records."""

    files: int = 0
    bytes: int = 0
    batches: int = 0
    messages: int = 0
    records: int = 0
    findings: list[Finding] = field(default_factory=list)

    @property
    def is_sound(self) -> bool:
        return not any(finding.kind == DAMAGE for finding in self.findings)


def check_directory(directory: Path) -> Checked:
    """Read the whole directory; takes as long as the disk needs for that. Raises `DirectoryInUse` while a broker works
    there, and `QueueError` if it is not a broker's directory."""
    if not (directory / "messages").is_dir():
        raise QueueError(f"{str(directory)!r} is not a directory of a broker: it has no messages; name another one")
    with _unused(directory):
        return _Check(directory).run()


@contextmanager
def _unused(directory: Path) -> Iterator[None]:
    """Keep brokers from starting in the directory meanwhile. A backup has no lock file, and is not locked."""
    try:
        descriptor = os.open(directory / "lock", os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        yield
        return
    try:
        lock_file(descriptor, shared=True)
        yield
    except BlockingIOError as error:
        holder = os.pread(descriptor, 300, 0).decode(errors="replace")
        raise DirectoryInUse(f"{str(directory)!r} is used by {holder}; stop that broker, or check a backup") from error
    finally:
        os.close(descriptor)


class _ReadOnlyChunk(Chunk):
    def fileno(self) -> int:
        if self._descriptor is None:
            self._descriptor = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        return self._descriptor


class _Check:
    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._checked = Checked()
        self._log = LogReader(chunks_in(directory / "messages", HeldMemory(0, 0), _ReadOnlyChunk))
        self._ends: dict[tuple[str, int], int] = {}
        self._damaged: list[tuple[int, int]] = []

    def run(self) -> Checked:
        checkpoint = self._checkpoint()
        self._indexes = _Indexes(self._directory, checkpoint, self._log.start)
        self._checked.files, self._checked.bytes = len(self._log.chunks), self._log.end - self._log.start
        end = self._scan(checkpoint.position if checkpoint is not None else 0)
        self._log.release()
        if checkpoint is not None:
            self._compare(checkpoint, end)
            self._check_offsets(checkpoint)
        for place, text in self._indexes.findings(self._damaged):
            self._find(NOTE, place, text)
        return self._checked

    def _find(self, kind: Literal["damage", "note"], place: str, text: str) -> None:
        self._checked.findings.append(Finding(kind, place, text))

    # -- the checkpoint -------------------------------------------------------------------------------------------

    def _checkpoint(self) -> Checkpoint | None:
        newest = self._directory / "checkpoint"
        found = load_checkpoint(newest)
        if found is not None:
            return found
        if newest.exists():
            self._find(NOTE, "checkpoint", "it cannot be used")
        found = load_checkpoint(before(newest))
        if found is not None:
            self._find(NOTE, "checkpoint.before", "it is used, and what follows is read from the messages")
        elif self._log.start:
            self._find(DAMAGE, "checkpoint", "none can be used: topics, groups and offsets are lost")
        return found

    def _compare(self, checkpoint: Checkpoint, end: int) -> None:
        if end < checkpoint.position:
            lost = f"the messages end at {end}, and the checkpoint counts them up to {checkpoint.position}"
            self._find(DAMAGE, "messages", lost)
        if checkpoint.position < self._log.start:
            missing = f"the messages begin at {self._log.start}, behind position {checkpoint.position}"
            self._find(DAMAGE, "checkpoint", f"{missing}: topics, groups and offsets are lost")

    def _check_offsets(self, checkpoint: Checkpoint) -> None:
        """Compare the committed offsets with the ends of queues in the checkpoint. Later commits are not checked."""
        ends = {(topic, queue): end for topic, queue, end, _ in checkpoint.queues}
        try:
            coordinator = Coordinator.restore(msgpack.unpackb(checkpoint.state, strict_map_key=False)[2])
        except (ValueError, TypeError, IndexError, KeyError, msgpack.UnpackException) as error:
            self._find(DAMAGE, "checkpoint", f"what it knows of topics and groups cannot be read: {error}")
            return
        for name, topic in coordinator.topics.items():
            for group, record in topic.groups.items():
                for queue, claim in record.claims.items():
                    if claim.committed > ends.get((name, queue), 0):
                        text = f"group {group!r} has committed {claim.committed}, behind the end"
                        self._find(DAMAGE, f"{name}/{queue}", text)

    # -- the messages ---------------------------------------------------------------------------------------------

    def _scan(self, counted: int) -> int:
        """Return where the last whole batch ends. ``counted`` is the checkpoint's position: behind it the scan ends at
        a hole, where a start of the broker cuts the log."""
        end = self._log.start
        for item in scan(self._log, end, counted):
            if isinstance(item, Found):
                self._look(item.header)
            else:
                self._note_damage(item)
            end = item.end
        if any(self._log.read(end, ALIGNMENT)):
            self._find(NOTE, self._place(end), "what follows is not whole; a start cuts it")
        return end

    def _note_damage(self, item: Damaged) -> None:
        self._damaged.append((item.position, item.end))
        text = f"{item.end - item.position} bytes do not match their CRC, or cannot be read"
        self._find(DAMAGE, self._place(item.position), text)
        if item.header is not None and item.header.topic != CONTROL_TOPIC:
            self._reach(item.header)

    def _look(self, header: Header) -> None:
        if header.topic == CONTROL_TOPIC:
            self._checked.records += 1
            return
        self._checked.batches += 1
        self._checked.messages += header.messages
        self._reach(header)
        self._indexes.compare(header)

    def _reach(self, header: Header) -> None:
        end = self._ends.get((header.topic, header.queue), header.first_offset)
        if header.first_offset < end:
            text = f"offset {header.first_offset} of {header.topic}/{header.queue} is taken"
            self._find(DAMAGE, self._place(header.position), text)
        self._ends[header.topic, header.queue] = max(end, header.first_offset + header.messages)

    def _place(self, position: int) -> str:
        chunk = self._log.chunk_at(position) or self._log.chunks[-1]
        return f"messages/{chunk.path.name}, byte {position - chunk.start}"


class _Indexes:
    """Compares the indexes that a checkpoint covers with the log. All of them can be rebuilt, so a difference is not
    damage. Batches before the first entry of a queue are ignored: they belong to a topic that was deleted. Holds one
    file of each queue in memory."""

    def __init__(self, directory: Path, checkpoint: Checkpoint | None, log_start: int) -> None:
        self._queues = directory / "queues"
        self._until = checkpoint.position if checkpoint is not None else 0
        self._found: list[tuple[str, str]] = []
        self._unknown: dict[tuple[str, int], list[int]] = {}
        """Positions that an index names, but where the scan has found no whole batch."""
        queues = checkpoint.queues if checkpoint is not None else ()
        self._entries = {
            (topic, queue): self._read(topic, queue, segments, log_start) for topic, queue, _, segments in queues
        }
        self._firsts = {(topic, queue): segments[0][0] if segments else end for topic, queue, end, segments in queues}

    def compare(self, header: Header) -> None:
        key = header.topic, header.queue
        entries = self._entries.get(key)
        if header.position >= self._until or entries is None or header.first_offset < self._firsts[key]:
            return
        for entry in entries:
            if entry == entry_of(header):
                return
            if entry.position >= header.position:
                break
            self._unknown.setdefault(key, []).append(entry.position)
        self._drop(key, f"it does not have the batch at {header.position}")

    def findings(self, damaged: Sequence[tuple[int, int]]) -> list[tuple[str, str]]:
        """Return places and what is wrong there, but nothing for the ``damaged`` ranges (first and end position)."""
        for key, entries in list(self._entries.items()):
            self._unknown.setdefault(key, []).extend(entry.position for entry in entries)
            for position in self._unknown[key]:
                if key in self._entries and not any(first <= position < last for first, last in damaged):
                    self._drop(key, f"it names a batch at {position}, where there is none")
        return self._found

    def _drop(self, key: tuple[str, int], text: str) -> None:
        """Report a difference, and compare the queue no further: one difference is enough."""
        if self._entries.pop(key, None) is not None:
            self._found.append(("queues/{}/{}".format(*key), f"{text}; it is made anew when it is found damaged"))

    def _read(self, topic: str, queue: int, segments: Sequence[Sequence[int]], log_start: int) -> Iterator[Entry]:
        for start, count, last_position, _, check in segments:
            if last_position < log_start or not count:
                continue
            path = index_path(self._queues, topic, queue, start)
            words = words_in(path, count, check)
            if words is None:
                self._drop((topic, queue), f"{path.name} is missing, cannot be read, or does not match its CRC")
                return
            yield from (entry for entry in entries_of(words) if entry.position >= log_start)
