"""The commands a mailbox handled last: a bounded memory that catches repeats before they cost a failed write."""

from __future__ import annotations

from typing import NamedTuple

from enode_django.bus.results import CommandResult
from enode_django.eventstore.base import CommandKey

_MOST_BYTES = 16 * 1024 * 1024
"""The most bytes of messages that one `RecentCommands` keeps."""


class Remembered(NamedTuple):
    """``result`` is set for an outcome that is not stored: a repeat gets the same answer. ``body`` is the command's
    message, as long as there is room for it."""

    aggregate_root_id: str
    result: CommandResult | None
    body: bytes | None = None


class _Generation:
    """The first aggregate of each command id, with its message; those that came after it, with the same id, are in
    ``more``: hardly ever there are any. Results are apart, because few commands have one to remember."""

    __slots__ = ("bodies", "more", "results", "room", "roots")

    def __init__(self) -> None:
        self.roots: dict[str, str] = {}
        self.bodies: dict[str, bytes] = {}
        self.room = _MOST_BYTES // 2
        self.more: set[CommandKey] = set()
        self.results: dict[CommandKey, CommandResult] = {}

    def forget(self, key: CommandKey) -> None:
        if self.roots.get(key[0]) == key[1]:
            del self.roots[key[0]]
            self.bodies.pop(key[0], None)
        self.more.discard(key)
        self.results.pop(key, None)


class RecentCommands:
    """Remembers at least the last ``limit`` / 2 commands and at most ``limit``. The store's index stays the judge.

    A command is known by both its ids: the same command id may be used for several aggregates.
    """

    def __init__(self, limit: int) -> None:
        self._half = max(1, limit // 2)
        self._young = _Generation()
        self._old = _Generation()

    def find(self, command_id: str, aggregate_root_id: str) -> Remembered | None:
        young, old = self._young, self._old
        if not (command_id in young.roots or command_id in old.roots or young.more or old.more):
            return None  # nearly every command is new
        for generation in (young, old):
            root, more = generation.roots.get(command_id), generation.more
            if root == aggregate_root_id:
                body = generation.bodies.get(command_id)
                return Remembered(root, generation.results.get((command_id, root)), body)
            if more and (command_id, aggregate_root_id) in more:
                return Remembered(aggregate_root_id, generation.results.get((command_id, aggregate_root_id)))
        return None

    def remember(
        self, command_id: str, aggregate_root_id: str, result: CommandResult | None, body: bytes | None = None
    ) -> None:
        young = self._young
        if young.roots.setdefault(command_id, aggregate_root_id) != aggregate_root_id:
            young.more.add((command_id, aggregate_root_id))
        elif body is not None and (size := len(body)) <= young.room:
            young.bodies[command_id] = body
            young.room -= size
        if result is not None:
            young.results[command_id, aggregate_root_id] = result
        elif young.results:
            young.results.pop((command_id, aggregate_root_id), None)
        if len(young.roots) + len(young.more) >= self._half:
            self._old, self._young = young, _Generation()

    def forget(self, command_id: str, aggregate_root_id: str) -> None:
        for generation in (self._young, self._old):
            generation.forget((command_id, aggregate_root_id))

    def forget_message(self, command_id: str, aggregate_root_id: str) -> None:
        """Forget what the command said, and remember the command."""
        for generation in (self._young, self._old):
            if generation.roots.get(command_id) == aggregate_root_id:
                generation.bodies.pop(command_id, None)

    def withdraw(self, command_id: str, aggregate_root_id: str, result: CommandResult) -> None:
        """Forget a command with this very result. If a copy of it has another one by now, that is to be told."""
        known = self.find(command_id, aggregate_root_id)
        if known is not None and known.result is result:
            self.forget(command_id, aggregate_root_id)
