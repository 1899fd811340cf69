"""The broker's log: messages, and control records of owners and committed offsets."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from sys import intern
from typing import Any

from chaos.checker.decoding import Undecodable, read_control, read_records
from chaos.checker.facts import Acquired, Appended, Committed, LogRecord, OffsetSet
from chaos.checker.reading.chunks import Batch, chunk_paths, read_batches
from chaos.checker.reading.problems import Problems
from chaos.checker.reading.queue import MessageReader, QueueLog, Topics

CONTROL_TOPIC = "/control"


def read_broker_log(directory: Path, topics: Topics, problems: Problems) -> QueueLog:
    """Read the log in a broker's ``directory``. The last send counts only if all its parts are present."""
    paths = chunk_paths(directory)
    found = QueueLog(is_whole=bool(paths) and int(paths[0].stem) == 0)
    if not paths:
        problems.add(str(directory), "the broker has no log there")
    reader = _LogReader(found, MessageReader(found, topics, problems), topics.events, problems)
    parts: list[Batch] = []
    for batch in read_batches(directory, problems):
        if not batch.part and parts:
            problems.add(batch.place, f"the send before has {len(parts)} of {parts[0].parts} parts")
            parts = []
        parts.append(batch)
        if batch.part == batch.parts - 1:
            for part in parts:
                reader.read(part)
            parts = []
    return found


class _LogReader:
    def __init__(self, found: QueueLog, messages: MessageReader, event_topic: str, problems: Problems) -> None:
        self._found = found
        self._messages = messages
        self._event_topic = event_topic
        self._problems = problems
        self._seen: set[int] = set()

    def read(self, batch: Batch) -> None:
        try:
            if batch.topic == CONTROL_TOPIC:
                self._found.log.extend(_control(batch.place, *read_control(batch.body)))
            else:
                self._messages_of(batch)
        except (Undecodable, LookupError, TypeError, ValueError) as error:
            self._problems.add(batch.place, f"{error!r}")

    def _messages_of(self, batch: Batch) -> None:
        topic = intern(batch.topic)
        place = (batch.place, topic, batch.queue, batch.first_offset, batch.count)
        self._found.log.append(Appended(*place, intern_bytes(batch.producer), batch.sequence, batch.part, batch.parts))
        if topic == self._event_topic and batch.queue not in self._seen:
            self._seen.add(batch.queue)
            if batch.first_offset and not self._found.is_whole:
                self._found.trimmed.add(batch.queue)
        if self._messages.reads(topic):
            for place_in_batch, body in enumerate(read_records(batch.body)):
                self._messages.read(topic, batch.queue, batch.first_offset + place_in_batch, body)


_known_bytes: dict[bytes, bytes] = {}


def intern_bytes(value: bytes) -> bytes:
    """Return one object for equal values: each batch names one of a few producers."""
    return _known_bytes.setdefault(value, value)


def _control(place: str, name: str, arguments: Sequence[Any], named: object) -> Iterator[LogRecord]:
    """Yield the facts about owners and offsets in a control record; most have none."""
    if name == "acquire":
        group, topic, queue, owner, _lease, _start, _bounds, epoch = arguments
        yield Acquired(place, (intern(group), intern(topic), queue), owner, epoch)
    elif name == "commit":
        group, topic, commits = arguments
        for queue, (epoch, offset, *_receipts) in commits.items():
            yield Committed(place, (intern(group), intern(topic), queue), epoch, offset)
    elif name == "set_offset":
        group, topic, queue, _offset = arguments
        yield OffsetSet(place, (intern(group), intern(topic), queue))
