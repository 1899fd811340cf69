from __future__ import annotations

from chaos.checker.facts import Violation
from chaos.checker.rules import UNREADABLE


class Problems(list[Violation]):
    """The places that could not be read."""

    def add(self, place: str, error: object) -> None:
        self.append(Violation(UNREADABLE, f"{place}: {error}"))
