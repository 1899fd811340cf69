"""What a queue's log holds, whichever transport has written it."""

from __future__ import annotations

from dataclasses import dataclass, field
from sys import intern

from chaos.checker.decoding import Undecodable, read_command_key, read_dead_letter, read_published
from chaos.checker.facts import CommandKey, LogRecord, Published, Sample, digest_of
from chaos.checker.reading.problems import Problems

DEAD_LETTERS = "dead."
"""What the topics of dead letters begin with."""


@dataclass
class QueueLog:
    """``is_whole``: nothing was deleted from its start. ``samples``: what its administration shows at the end."""

    published: list[Published] = field(default_factory=list)
    trimmed: set[int] = field(default_factory=set)
    dead: set[CommandKey] = field(default_factory=set)
    log: list[LogRecord] = field(default_factory=list)
    is_whole: bool = True
    samples: list[Sample] = field(default_factory=list)


class MessageReader:
    """Decodes the messages of the topics that are looked into, those of events and those of dead letters."""

    def __init__(self, found: QueueLog, command_topic: str, event_topic: str, problems: Problems) -> None:
        self._found = found
        self._command_topic = command_topic
        self._event_topic = event_topic
        self._problems = problems

    def reads(self, topic: str) -> bool:
        return topic == self._event_topic or topic.startswith(DEAD_LETTERS)

    def read(self, topic: str, queue: int, offset: int, body: bytes) -> None:
        """Take a message of a topic that it `reads`."""
        try:
            if topic == self._event_topic:
                self._published(queue, offset, body)
            else:
                self._dead(body)
        except Undecodable as error:
            self._problems.add(f"{topic} queue {queue} offset {offset}", error)

    def _published(self, queue: int, offset: int, body: bytes) -> None:
        stream = read_published(body)
        id, command_id = intern(stream.aggregate_root_id), intern(stream.command_id)
        self._found.published.append(Published(queue, offset, id, stream.version, command_id, digest_of(*stream)))

    def _dead(self, body: bytes) -> None:
        letter = read_dead_letter(body)
        if letter is not None and letter.topic == self._command_topic:
            self._found.dead.add(read_command_key(letter.body))
