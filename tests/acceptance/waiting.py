from __future__ import annotations

import time
from collections.abc import Callable

POLL = 0.05
PATIENCE = 120.0
"""Seconds for whatever takes one or two on an idle machine."""


def wait_until(condition: Callable[[], object], what: str, seconds: float = PATIENCE) -> None:
    """Blocks until the condition holds; fails the test, saying what it waited for, when it does not in time."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(f"waited {seconds:g} s in vain: {what}")
        time.sleep(POLL)


def last_for(seconds: float) -> None:
    """Let a fault last."""
    time.sleep(seconds)
