"""The contents of a queue's log, for any transport."""

from __future__ import annotations

from dataclasses import dataclass, field
from sys import intern
from typing import NamedTuple

from chaos.checker.decoding import Undecodable, read_published
from chaos.checker.facts import LogRecord, Published, Sample, digest_of
from chaos.checker.reading.problems import Problems


class Topics(NamedTuple):
    """The topics of a run. ``garbage`` are those to which the run itself has sent invalid messages."""

    commands: str = "commands"
    events: str = "events"
    garbage: frozenset[str] = frozenset()


@dataclass
class QueueLog:
    """The log of a queue. ``is_whole`` is True if nothing was deleted from its start. ``samples`` are those of the
    administration at the end. ``garbage`` is the number of invalid messages in the event topic that the run has sent.
    """

    published: list[Published] = field(default_factory=list)
    trimmed: set[int] = field(default_factory=set)
    log: list[LogRecord] = field(default_factory=list)
    is_whole: bool = True
    samples: list[Sample] = field(default_factory=list)
    garbage: int = 0


class MessageReader:
    """Decodes the messages of the event topic."""

    def __init__(self, found: QueueLog, topics: Topics, problems: Problems) -> None:
        self._found = found
        self._topics = topics
        self._problems = problems

    def reads(self, topic: str) -> bool:
        return topic == self._topics.events

    def read(self, topic: str, queue: int, offset: int, body: bytes) -> None:
        """Read a message of a topic for which `reads` is True."""
        try:
            self._published(queue, offset, body)
        except Undecodable as error:
            if topic in self._topics.garbage:
                self._found.garbage += 1
            else:
                self._problems.add(f"{topic} queue {queue} offset {offset}", error)

    def _published(self, queue: int, offset: int, body: bytes) -> None:
        stream = read_published(body)
        id, command_id = intern(stream.aggregate_root_id), intern(stream.command_id)
        self._found.published.append(Published(queue, offset, id, stream.version, command_id, digest_of(*stream)))
