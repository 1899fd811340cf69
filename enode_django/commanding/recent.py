"""The commands a mailbox handled last: a bounded memory that catches repeats before they cost a failed write."""

from __future__ import annotations

from typing import NamedTuple

from enode_django.commanding.results import CommandResult


class Remembered(NamedTuple):
    """``result`` is set for an outcome that is not stored: a repeat gets the same answer."""

    aggregate_root_id: str
    result: CommandResult | None


class RecentCommands:
    """Remembers at least the last ``limit`` / 2 commands and at most ``limit``. The store's index stays the judge."""

    def __init__(self, limit: int) -> None:
        self._half = max(1, limit // 2)
        self._young: dict[str, Remembered] = {}
        self._old: dict[str, Remembered] = {}

    def find(self, command_id: str, aggregate_root_id: str) -> Remembered | None:
        remembered = self._young.get(command_id) or self._old.get(command_id)
        return remembered if remembered is not None and remembered[0] == aggregate_root_id else None

    def remember(self, command_id: str, aggregate_root_id: str, result: CommandResult | None) -> None:
        young = self._young
        young[command_id] = Remembered(aggregate_root_id, result)
        if len(young) >= self._half:
            self._old, self._young = young, {}

    def forget(self, command_id: str) -> None:
        self._young.pop(command_id, None)
        self._old.pop(command_id, None)
