"""Report the progress of long work."""

from __future__ import annotations

from typing import Protocol


class Report(Protocol):
    def __call__(self, stage: str, /, **figures: object) -> None:
        """It may raise, to end the work."""


def silent(stage: str, /, **figures: object) -> None:
    """Report to nobody."""
