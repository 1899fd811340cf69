"""The commands a mailbox handled last: a bounded memory that catches repeats before they cost a failed write."""

from __future__ import annotations

from typing import NamedTuple

from enode_django.commanding.results import CommandResult


class Remembered(NamedTuple):
    """``result`` is set for an outcome that is not stored: a repeat gets the same answer."""

    aggregate_root_id: str
    result: CommandResult | None


class _Generation:
    """Apart from one another, because few commands have a result to remember and all have a root."""

    __slots__ = ("results", "roots")

    def __init__(self) -> None:
        self.roots: dict[str, str] = {}
        self.results: dict[str, CommandResult] = {}


class RecentCommands:
    """Remembers at least the last ``limit`` / 2 commands and at most ``limit``. The store's index stays the judge."""

    def __init__(self, limit: int) -> None:
        self._half = max(1, limit // 2)
        self._young = _Generation()
        self._old = _Generation()

    def find(self, command_id: str, aggregate_root_id: str) -> Remembered | None:
        for generation in (self._young, self._old):
            root = generation.roots.get(command_id)
            if root is not None:
                return Remembered(root, generation.results.get(command_id)) if root == aggregate_root_id else None
        return None

    def remember(self, command_id: str, aggregate_root_id: str, result: CommandResult | None) -> None:
        young = self._young
        young.roots[command_id] = aggregate_root_id
        if result is not None:
            young.results[command_id] = result
        else:
            young.results.pop(command_id, None)
        if len(young.roots) >= self._half:
            self._old, self._young = young, _Generation()

    def forget(self, command_id: str) -> None:
        for generation in (self._young, self._old):
            generation.roots.pop(command_id, None)
            generation.results.pop(command_id, None)
