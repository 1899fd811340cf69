"""Reporting the progress of long work."""

from __future__ import annotations

from typing import Protocol


class Report(Protocol):
    def __call__(self, stage: str, /, **figures: object) -> None:
        """Report a stage and its figures. May raise to end the work."""


def silent(stage: str, /, **figures: object) -> None:
    """Ignore a report."""


def figures_of(tasks: int, done: int, seconds: float, streams: int | None = None) -> dict[str, int | None]:
    """Return the figures of work in tasks after these seconds. ``left`` are the estimated seconds for the rest (None:
    unknown). ``streams`` is the number of streams that were handled, if they are counted."""
    figures = {"tasks": tasks, "done": done, "left": round(seconds * (tasks - done) / done) if done else None}
    if streams is None:
        return figures
    return {**figures, "streams": streams, "a_second": round(streams / seconds) if seconds else 0}
