"""What a queue's log holds, whichever transport has written it."""

from __future__ import annotations

from dataclasses import dataclass, field
from sys import intern
from typing import NamedTuple

from chaos.checker.decoding import Undecodable, read_published
from chaos.checker.facts import LogRecord, Published, Sample, digest_of
from chaos.checker.reading.problems import Problems


class Topics(NamedTuple):
    """``garbage``: the topics that the run itself has sent messages to which are none."""

    commands: str = "commands"
    events: str = "events"
    garbage: frozenset[str] = frozenset()


@dataclass
class QueueLog:
    """``is_whole``: nothing was deleted from its start. ``samples``: what its administration shows at the end.

    ``garbage`` counts messages of the events topic that are none, where the run has sent such.
    """

    published: list[Published] = field(default_factory=list)
    trimmed: set[int] = field(default_factory=set)
    log: list[LogRecord] = field(default_factory=list)
    is_whole: bool = True
    samples: list[Sample] = field(default_factory=list)
    garbage: int = 0


class MessageReader:
    """Decodes the messages of the topic that is looked into, that of events."""

    def __init__(self, found: QueueLog, topics: Topics, problems: Problems) -> None:
        self._found = found
        self._topics = topics
        self._problems = problems

    def reads(self, topic: str) -> bool:
        return topic == self._topics.events

    def read(self, topic: str, queue: int, offset: int, body: bytes) -> None:
        """Take a message of a topic that it `reads`."""
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
