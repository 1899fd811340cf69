"""The exit status of a worker when one of its threads dies, and what follows from it. Pure."""

from __future__ import annotations

from enode_django.concurrency.in_flight import NOTHING_IN_FLIGHT, InFlightMarker
from enode_django.concurrency.threads import THREAD_DIED

HANDLER_DIED = 71
"""The exit status of a worker if one of its threads died while it was handling something."""


def handler_died() -> int:
    return HANDLER_DIED


def status_of_death(note: InFlightMarker) -> int:
    """Return the exit status of a worker whose command mailbox has died, by its marker."""
    return THREAD_DIED if note[0] == NOTHING_IN_FLIGHT else HANDLER_DIED


def is_nobodys_fault(status: int | None) -> bool:
    """Return True if the thread that died was handling nothing. The work of other threads is not to blame."""
    return status == THREAD_DIED
