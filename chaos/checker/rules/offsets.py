from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from chaos.checker.facts import Appended, Committed, Consumption, Facts, LogRecord, OffsetSet


def offsets_forward(facts: Facts) -> Iterator[str]:
    """Offsets of a queue have no gap, a send is stored once and completely, and committed offsets never decrease."""
    log = _Log(facts.log_is_whole)
    for record in facts.log:
        yield from log.next(record)
    committed: dict[Consumption, int] = {}
    moved = {record.consumption for record in facts.log if isinstance(record, OffsetSet)}
    for sample in facts.samples:
        before = committed.get(sample.consumption, 0)
        if sample.committed < before and sample.consumption not in moved:
            yield _back(f"sample at {sample.at:.3f}", sample.consumption, sample.committed, before)
        committed[sample.consumption] = sample.committed


def _back(place: str, consumption: Consumption, offset: int, before: int) -> str:
    group, topic, queue = consumption
    return f"{place}: {group} committed {offset} of queue {queue} of {topic}, after {before}"


@dataclass
class _Log:
    """The state of the log so far. ``is_whole`` is True if it begins with the first message ever sent."""

    is_whole: bool
    ends: dict[tuple[str, int], int] = field(default_factory=dict)
    committed: dict[Consumption, int] = field(default_factory=dict)
    sends: dict[tuple[str, bytes], set[int]] = field(default_factory=dict)
    due_part: tuple[str, bytes, int, int] | None = None

    def next(self, record: LogRecord) -> Iterator[str]:
        if isinstance(record, Appended):
            yield from self._appended(record)
            yield from self._sent(record)
        elif isinstance(record, Committed):
            yield from self._committed(record)
        elif isinstance(record, OffsetSet):
            self.committed.pop(record.consumption, None)

    def _appended(self, batch: Appended) -> Iterator[str]:
        queue = (batch.topic, batch.queue)
        end = self.ends.get(queue, 0 if self.is_whole else batch.first_offset)
        if batch.first_offset != end:
            what = "are lost" if batch.first_offset > end else "are given twice"
            between = f"offsets between {end} and {batch.first_offset}"
            yield f"{batch.place}: queue {batch.queue} of {batch.topic}: {between} {what}"
        self.ends[queue] = batch.first_offset + batch.count

    def _sent(self, batch: Appended) -> Iterator[str]:
        """Check that the parts of a send are consecutive, and that its first one is new."""
        if not batch.producer:
            return
        if batch.part == 0:
            known = self.sends.setdefault((batch.topic, batch.producer), set())
            if batch.sequence in known:
                yield f"{batch.place}: send {batch.sequence} of producer {batch.producer.hex()} is stored twice"
            known.add(batch.sequence)
        elif self.due_part != (batch.topic, batch.producer, batch.sequence, batch.part):
            yield f"{batch.place}: part {batch.part} of a send does not follow the part before"
        self.due_part = (batch.topic, batch.producer, batch.sequence, batch.part + 1)

    def _committed(self, commit: Committed) -> Iterator[str]:
        before = self.committed.get(commit.consumption, 0)
        if commit.offset < before:
            yield _back(commit.place, commit.consumption, commit.offset, before)
        self.committed[commit.consumption] = commit.offset
        _, topic, queue = commit.consumption
        end = self.ends.get((topic, queue), 0 if self.is_whole else commit.offset)
        if commit.offset > end:
            yield f"{commit.place}: {commit.offset} of queue {queue} of {topic} is committed, which ends at {end}"
