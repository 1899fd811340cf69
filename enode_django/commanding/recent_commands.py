"""The commands that a mailbox handled last: a bounded memory that catches repeats before they cost a failed write."""

from __future__ import annotations

from msgspec import Struct

from enode_django.bus.results import CommandResult
from enode_django.eventstore.base import CommandKey

_MOST_BYTES = 16 * 1024 * 1024
"""The most bytes of messages that one `RecentCommands` keeps."""


class Remembered(Struct):
    """A recent command. ``result`` is set for an outcome that is not stored: a repeat gets the same answer. ``body`` is
    the command's message, if there was room for it."""

    aggregate_root_id: str
    result: CommandResult | None
    body: bytes | None = None


class _Generation:
    """The commands by their ids. Commands that have the id of an earlier one of another aggregate, which is rare, are
    in ``more``."""

    __slots__ = ("first", "more", "room")

    def __init__(self) -> None:
        self.first: dict[str, Remembered] = {}
        self.more: dict[CommandKey, Remembered] = {}
        self.room = _MOST_BYTES // 2

    def find(self, command_id: str, aggregate_root_id: str) -> Remembered | None:
        first = self.first.get(command_id)
        if first is not None and first.aggregate_root_id == aggregate_root_id:
            return first
        return self.more.get((command_id, aggregate_root_id))

    def forget(self, command_id: str, aggregate_root_id: str) -> None:
        first = self.first.get(command_id)
        if first is not None and first.aggregate_root_id == aggregate_root_id:
            del self.first[command_id]
        self.more.pop((command_id, aggregate_root_id), None)


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
        if not (command_id in young.first or command_id in old.first or young.more or old.more):
            return None  # the fast path: nearly every command is new
        return young.find(command_id, aggregate_root_id) or old.find(command_id, aggregate_root_id)

    def remember(
        self, command_id: str, aggregate_root_id: str, result: CommandResult | None, body: bytes | None = None
    ) -> None:
        young = self._young
        if body is not None:
            if (size := len(body)) <= young.room:
                young.room -= size
            else:
                body = None
        known = Remembered(aggregate_root_id, result, body)
        first = young.first.setdefault(command_id, known)
        if first is not known:
            if first.aggregate_root_id == aggregate_root_id:
                young.first[command_id] = known
            else:
                young.more[command_id, aggregate_root_id] = known
        if len(young.first) + len(young.more) >= self._half:
            self._old, self._young = young, _Generation()

    def forget(self, command_id: str, aggregate_root_id: str) -> None:
        for generation in (self._young, self._old):
            generation.forget(command_id, aggregate_root_id)

    def forget_message(self, command_id: str, aggregate_root_id: str) -> None:
        """Forget the command's message, but remember the command."""
        for generation in (self._young, self._old):
            known = generation.find(command_id, aggregate_root_id)
            if known is not None:
                known.body = None

    def withdraw(self, command_id: str, aggregate_root_id: str, result: CommandResult) -> None:
        """Forget a command if it has this very result. A newer result, that of a copy, stays."""
        known = self.find(command_id, aggregate_root_id)
        if known is not None and known.result is result:
            self.forget(command_id, aggregate_root_id)
