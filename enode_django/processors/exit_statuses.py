"""The exit status of a worker when one of its threads dies, and what follows from it. Pure."""

from __future__ import annotations

from typing import Protocol

from enode_django.concurrency.threads import THREAD_DIED

HANDLER_DIED = 71
"""The exit status of a worker one of whose threads died in the middle of what it handles."""


class InFlightMarker(Protocol):
    """The marker of what a thread is handling, as a number at index 0; 0 stands for nothing."""

    def __getitem__(self, index: int, /) -> int: ...


def handler_died() -> int:
    return HANDLER_DIED


def status_of_death(note: InFlightMarker) -> int:
    """Return the exit status of a worker whose command mailbox has died, by its marker."""
    return HANDLER_DIED if note[0] else THREAD_DIED


def is_nobodys_fault(status: int | None) -> bool:
    """Return True if the thread that died was handling nothing. What other threads were handling is not to blame."""
    return status == THREAD_DIED
