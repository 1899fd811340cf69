"""Reporting the progress of long work."""

from __future__ import annotations

from typing import Protocol


class Report(Protocol):
    def __call__(self, stage: str, /, **figures: object) -> None:
        """Report a stage and its figures. May raise to end the work."""


def silent(stage: str, /, **figures: object) -> None:
    """Ignore a report."""
