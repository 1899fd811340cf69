"""The commands that a mailbox handled last: a bounded memory that catches repeats before they cost a failed write."""

from __future__ import annotations

from typing import NamedTuple

from enode_django.bus.results import CommandResult
from enode_django.eventstore.base import CommandKey

_MOST_BYTES = 16 * 1024 * 1024
"""The most bytes of messages that one `RecentCommands` keeps."""


class Remembered(NamedTuple):
    """A recent command. ``result`` is set for an outcome that is not stored: a repeat gets the same answer. ``body`` is
    the command's message, if there was room for it."""

    aggregate_root_id: str
    result: CommandResult | None
    body: bytes | None = None


class _Generation:
    """The first aggregate of each command id, with the command's message. Later aggregates with the same command id,
    which are rare, are in ``more``. Results are kept apart, because few commands have one."""

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
    """Remembers at least the last ``limit`` / 2 commands, and at most ``limit``. The store's index stays the authority.

    A command is named by both its ids: one command id may be used for several aggregates.
    """

    def __init__(self, limit: int) -> None:
        self._half = max(1, limit // 2)
        self._young = _Generation()
        self._old = _Generation()

    def find(self, command_id: str, aggregate_root_id: str) -> Remembered | None:
        young, old = self._young, self._old
        if not (command_id in young.roots or command_id in old.roots or young.more or old.more):
            return None  # the fast path: nearly every command is new
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
        """Forget the command's message, but remember the command."""
        for generation in (self._young, self._old):
            if generation.roots.get(command_id) == aggregate_root_id:
                generation.bodies.pop(command_id, None)

    def withdraw(self, command_id: str, aggregate_root_id: str, result: CommandResult) -> None:
        """Forget a command if it has this very result. A newer result, that of a copy, stays."""
        known = self.find(command_id, aggregate_root_id)
        if known is not None and known.result is result:
            self.forget(command_id, aggregate_root_id)
