"""The senders' journal: every command they sent, and every answer they got."""

from __future__ import annotations

import threading
from collections.abc import Iterable

from enode_django import Command, CommandResult


class Journal:
    """Safe for threads. ``sent`` are commands that a queue has acknowledged, ``answers`` all that came back, in order.

    ``unanswered`` are those whose sender gave up; a test has no use for any.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.sent: dict[str, Command] = {}
        self.awaited: set[str] = set()
        self.answers: dict[str, list[CommandResult]] = {}
        self.unanswered: list[str] = []
        self.repeats = 0

    def note_sent(self, commands: Iterable[Command]) -> None:
        with self._lock:
            for command in commands:
                self.repeats += command.id in self.sent
                self.sent[command.id] = command

    def note_answer(self, command: Command, answer: CommandResult) -> None:
        with self._lock:
            self.sent[command.id] = command
            self.awaited.add(command.id)
            self.answers.setdefault(command.id, []).append(answer)

    def note_unanswered(self, command: Command) -> None:
        with self._lock:
            self.unanswered.append(command.id)
