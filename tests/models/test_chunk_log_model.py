"""The broker's store against a list of the data put into it, over crashes, clean stops and deletions."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from enode_django.equeue.broker import index
from enode_django.equeue.broker.batches import ALIGNMENT, NewBatch
from enode_django.equeue.broker.checkpoint import PendingCheckpoint
from enode_django.equeue.broker.retention import Retention
from enode_django.equeue.records import decode_records, encode_records
from tests.equeue.storing import Heard, chunks, delete_due, offset_at, opened, read_batches
from tests.memory import MEMORY
from tests.models.profiles import as_test
from tests.models.torn_disks import TEARS, spoil

TOPICS = st.sampled_from(["orders", "orders", "events"])
QUEUES = [("orders", 0), ("orders", 1), ("events", 0), ("events", 1)]
MOST_PARTS = 3
LENGTHS = st.sampled_from([0, 1, 5, 20, 60, 3_500, 3_500])
PARTS = st.lists(
    st.tuples(st.integers(0, 1), st.lists(LENGTHS, min_size=1, max_size=4)), min_size=1, max_size=MOST_PARTS
)
"""Queues and the lengths of the records for them."""
PRODUCER = b"p" * 16
Key = tuple[str, int]


@pytest.fixture(autouse=True, scope="module")
def _short_segments() -> Iterator[None]:
    """Index files of three entries, so that a few messages fill several."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(index, "SEGMENT_ENTRIES", 3)
        yield


class Part(NamedTuple):
    key: Key
    first: int
    records: list[bytes]
    size: int
    time: float

    @property
    def end(self) -> int:
        return self.first + len(self.records)


@dataclass
class Item:
    """The bytes that one call appended to the log. ``whole``: the item counts if the log is intact up to here."""

    start: int
    end: int
    whole: int
    control: bytes = b""
    sequence: int = 0
    parts: list[Part] = field(default_factory=list)


class Known(NamedTuple):
    """A checkpoint: where the log ended, and the state that was given."""

    position: int
    state: bytes


class ChunkLogMachine(RuleBasedStateMachine):
    @initialize(
        chunk_size=st.sampled_from([256, 1024, 20_000, 100_000]),
        ring=st.sampled_from([0, 3, 1000]),
        high=st.sampled_from([0, 600, None]),
    )
    def begin(self, chunk_size: int, ring: int, high: int | None) -> None:
        self.now = 1_000.0
        clocks = {"clock": lambda: self.now, "monotonic": lambda: self.now}
        self.options = {"chunk_size": chunk_size, "ring_batches": ring, "low_watermark": 0, "high_watermark": high}
        self.options |= clocks
        self.home = TemporaryDirectory(dir=MEMORY)
        self.directory = Path(self.home.name)
        self.items: list[Item] = []
        self.ends: dict[Key, int] = {}
        self.end = self.flushed = self.checkpointed = self.kept = self.sends = self.states = 0
        self.on_disk: Known | None = None
        self.before: Known | None = None
        self.is_first, self.lacks_indexes = True, False
        self.pending: tuple[PendingCheckpoint, Known] | None = None
        self.store, _ = opened(self.directory, **self.options)

    def teardown(self) -> None:
        if hasattr(self, "store"):
            self.store.abandon()
            self.home.cleanup()

    @rule(seconds=st.sampled_from([1.0, 10.0]))
    def wait(self, seconds: float) -> None:
        self.now += seconds

    # -- writing --------------------------------------------------------------------------------------------------

    @rule(topic=TOPICS, parts=PARTS)
    def send(self, topic: str, parts: list[tuple[int, list[int]]]) -> None:
        self.sends += 1
        content = [(queue, [b"%d" % self.sends * length for length in lengths]) for queue, lengths in parts]
        bodies = [(queue, records, encode_records(records)) for queue, records in content]
        item = Item(self.end, 0, 0, sequence=self.sends)
        for queue, records, body in bodies:
            first = self.ends.get((topic, queue), 0)
            item.parts.append(Part((topic, queue), first, records, len(body), self.now))
            self.ends[topic, queue] = item.parts[-1].end
        batches = [NewBatch(queue, len(records), body) for queue, records, body in bodies]
        answer = self.store.append(topic, batches, producer=PRODUCER, sequence=self.sends)
        assert answer == self._answer(item)
        self._put(item, len(topic.encode()) + item.parts[-1].size)

    @rule(topic=TOPICS, parts=PARTS)
    def send_again(self, topic: str, parts: list[tuple[int, list[int]]]) -> None:
        self.send(topic, parts)

    @staticmethod
    def _answer(item: Item) -> dict[int, int]:
        firsts: dict[int, int] = {}
        for part in item.parts:
            firsts.setdefault(part.key[1], part.first)
        return firsts

    @rule(record=st.binary(min_size=1, max_size=30))
    def control(self, record: bytes) -> None:
        self.store.append_control(record)
        self._put(Item(self.end, 0, 0, control=record), len("/control") + 4 + len(record))

    def _put(self, item: Item, last: int) -> None:
        """``last``: bytes of the last batch behind its header's fixed part, which is a multiple of the alignment."""
        item.end = self.end = self.store.position
        item.whole = item.end - -last % ALIGNMENT
        self.items.append(item)

    # -- making it safe -------------------------------------------------------------------------------------------

    @rule()
    def flush(self) -> None:
        assert self.store.flush() == self.end
        self.flushed = self.end

    def _state(self) -> bytes:
        self.states += 1
        return b"state %d" % self.states

    @precondition(lambda self: self.pending is None)
    @rule()
    def checkpoint(self) -> None:
        known = Known(self.end, self._state())
        self.store.checkpoint(known.state)
        self.flushed = self.end
        self._keep(known)
        self._finish(known)

    def _keep(self, known: Known) -> None:
        """The checkpoint is on the disk. The one before stays there."""
        self.on_disk, self.before = known, self.on_disk or self.before
        self.lacks_indexes = False

    def _finish(self, known: Known) -> None:
        """The store has heard of it. What it may delete is counted by the one before, too, unless there is none."""
        self.kept = known.position if self.is_first else self.checkpointed
        self.checkpointed, self.is_first = known.position, False

    @precondition(lambda self: self.pending is None)
    @rule()
    def begin_checkpoint(self) -> None:
        known = Known(self.end, self._state())
        self.pending = self.store.begin_checkpoint([known.state]), known

    @precondition(lambda self: self.pending is not None)
    @rule(indexes=st.integers(0, 3))
    def write_part_of_checkpoint(self, indexes: int) -> None:
        pending, _ = self.pending
        self.flush()
        for write in pending.writes[:indexes]:
            write.write()

    @precondition(lambda self: self.pending is not None)
    @rule(finish=st.booleans())
    def write_checkpoint(self, finish: bool) -> None:
        (pending, known), self.pending = self.pending, None
        pending.write()
        self.flushed = self.end
        self._keep(known)
        if finish:
            self.store.finish_checkpoint(pending)
            self._finish(known)

    # -- ends -----------------------------------------------------------------------------------------------------

    @rule(tear=TEARS, place=st.integers(0, 1_000), lost=st.sampled_from(["", "", "indexes", "checkpoint"]))
    def crash(self, tear: tuple[str, bytes], place: int, lost: str) -> None:
        """Flushed bytes stay. The disk leaves any part of the others, or something else."""
        self.store.abandon()
        torn = self.flushed + place * (self.end - self.flushed) // 1_000
        changed = spoil(self.directory, torn, tear)
        if lost == "checkpoint" and not self.before and not (self.items and self.items[0].start == 0):
            lost = ""  # only a checkpoint has the end of a queue whose messages were all deleted
        if lost == "checkpoint":
            (self.directory / "checkpoint").unlink(missing_ok=True)
            self.on_disk = None
        elif lost == "indexes":
            for path in self.directory.glob("queues/*/*/*.index"):
                path.unlink()
        left = sum((item.end if tear[0] == "cut" else item.whole) <= changed for item in self.items)
        self._lose_from(left)
        self._open()
        self.lacks_indexes |= lost == "indexes"
        if self.lacks_indexes:
            self._make_indexes_anew()

    def _make_indexes_anew(self) -> None:
        """Read each queue, which makes its index. Before that, the first offset that the store returns may be too low.
        Before a checkpoint the new index is in memory only."""
        for key in QUEUES:
            parts, first = self._parts(key), self.store.bounds(*key)[0]
            assert first <= (parts[0].first if parts else self.ends.get(key, 0))
            read_batches(self.store, *key, first, 1, 1)

    def _lose_from(self, left: int) -> None:
        for item in reversed(self.items[left:]):
            for part in reversed(item.parts):
                self.ends[part.key] = part.first
        del self.items[left:]

    @rule()
    def stop(self) -> None:
        state = self._state()
        self.store.close(state)
        self._keep(Known(self.end, state))
        self._open()

    def _open(self) -> None:
        """Open the store. It must return everything since the checkpoint, and nothing else."""
        self.store, heard = opened(self.directory, **self.options)
        known = self.on_disk or self.before or Known(0, b"")
        since = [item for item in self.items if item.start >= known.position]
        assert heard.states == ([known.state] if known.state else [])
        assert heard.controls == [item.control for item in since if item.control]
        sends = [item for item in since if item.parts]
        assert [(sent.sequence, sent.offsets) for sent in heard.sends] == [
            (item.sequence, self._answer(item)) for item in sends
        ]
        self.end = self.items[-1].end if self.items else known.position
        self._check_opened(heard, sum(len(item.parts) or 1 for item in since), known.position)
        self.checkpointed, self.flushed, self.pending = known.position, self.end, None
        self.kept, self.is_first = 0, self.on_disk is None and self.before is None

    def _check_opened(self, heard: Heard, batches: int, position: int) -> None:
        assert heard.opened is not None
        assert batches <= heard.opened.scanned_batches < batches + MOST_PARTS, "some parts of a torn send, too"
        assert heard.opened.scanned_bytes == self.end - position
        assert self.store.flushed == self.store.position == self.end

    # -- deleting -------------------------------------------------------------------------------------------------

    @rule(max_bytes=st.sampled_from([0, 300, 2_000]), behind=st.lists(st.integers(0, 2), min_size=4, max_size=4))
    def delete(self, max_bytes: int, behind: list[int]) -> None:
        """The consumers' lag is a number of messages, or (2) they do not consume the queue at all."""
        consumed = {
            key: None if lag == 2 else max(0, self.ends.get(key, 0) - lag)
            for key, lag in zip(QUEUES, behind, strict=True)
        }
        starts = [int(path.stem) for path in chunks(self.directory)]
        expected = 0
        while self._may_delete(starts[expected:], max_bytes, consumed):
            expected += 1
        deleted = delete_due(self.store, Retention(max_bytes=max_bytes), lambda topic, queue: consumed[topic, queue])
        assert deleted == expected
        if deleted:
            self.flushed = self.end  # commits are flushed before the files that they made superfluous are deleted
            self.items = [item for item in self.items if item.start >= starts[deleted]]

    @rule()
    def close_newest_file(self) -> None:
        """As when its first batch is old."""
        if not self.store.deletion.knows_newest:
            self.store.deletion.look_at_newest()
        self.store.deletion.roll_older(-1.0)

    def _may_delete(self, starts: list[int], max_bytes: int, consumed: dict[Key, int | None]) -> bool:
        if len(starts) < 2 or starts[1] > min(self.kept, self.flushed) or self.end - starts[0] <= max_bytes:
            return False
        parts = [part for item in self.items if starts[0] <= item.start < starts[1] for part in item.parts]
        return all((consumed[part.key] or 0) >= part.end for part in parts)

    # -- reading --------------------------------------------------------------------------------------------------

    def _parts(self, key: Key) -> list[Part]:
        return [part for item in self.items for part in item.parts if part.key == key]

    @rule(
        key=st.sampled_from(QUEUES),
        offset=st.integers(0, 40),
        limit=st.integers(1, 5),
        max_bytes=st.sampled_from([1, 100, 100_000, 100_000]),
    )
    def read(self, key: Key, offset: int, limit: int, max_bytes: int) -> None:
        offset %= self.ends.get(key, 0) + 1
        found = read_batches(self.store, *key, offset, limit, max_bytes)
        wanted = [part for part in self._parts(key) if part.end > offset]
        assert [self._shown(batch) for batch in found] == [self._of(part) for part in wanted[: len(found)]]
        assert len(found) == self._how_many(wanted, offset, limit, max_bytes)

    @staticmethod
    def _shown(batch: Any) -> tuple[Any, ...]:
        return batch.first_offset, decode_records(batch.body)

    @staticmethod
    def _of(part: Part) -> tuple[Any, ...]:
        return part.first, part.records

    @staticmethod
    def _how_many(parts: list[Part], offset: int, limit: int, max_bytes: int) -> int:
        """Return the number of parts that reach the limit or the bytes: at least one, and none after it that exceeds
        the bytes."""
        size = 0
        for place, part in enumerate(parts):
            size += part.size
            if place and size > max_bytes:
                return place
            if part.end - offset >= limit or size >= max_bytes:
                return place + 1
        return len(parts)

    @rule(key=st.sampled_from(QUEUES), ago=st.integers(-1, 30))
    def seek_time(self, key: Key, ago: int) -> None:
        at = self.now - ago
        since = [part.first for part in self._parts(key) if part.time >= at]
        assert offset_at(self.store, *key, at) == (since[0] if since else self.ends.get(key, 0))

    @rule()
    def let_idle_files_go(self) -> None:
        self.store.drop_idle()

    # -- invariants -----------------------------------------------------------------------------------------------

    @invariant()
    def all_of_it_is_there(self) -> None:
        assert not self.store.reader.damaged
        assert self.store.position == self.end
        assert self.store.flushed == self.flushed
        assert self.store.since_checkpoint == self.end - self.checkpointed
        for key in QUEUES:
            parts = self._parts(key)
            end = self.ends.get(key, 0)
            assert self.store.bounds(*key) == (parts[0].first if parts else end, end)

    @invariant()
    def everything_can_be_read(self) -> None:
        for key in QUEUES:
            found = [self._shown(batch) for batch in read_batches(self.store, *key, 0, 1 << 40, 1 << 40)]
            assert found == [self._of(part) for part in self._parts(key)]


TestChunkLog = as_test(ChunkLogMachine, runs=80)
