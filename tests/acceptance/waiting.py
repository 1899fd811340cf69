from __future__ import annotations

import time
from collections.abc import Callable

POLL, SELDOM = 0.05, 0.25
"""Seconds between two looks, first and later: many a look opens a session with the database."""
PATIENCE = 120.0
"""Seconds for whatever takes one or two on an idle machine."""


def wait_until(condition: Callable[[], object], what: str, seconds: float = PATIENCE) -> None:
    """Block until the condition holds. Fail the test, with a text that says ``what``, if it does not hold in time."""
    began = time.monotonic()
    while not condition():
        waited = time.monotonic() - began
        if waited > seconds:
            raise AssertionError(f"waited {seconds:g} s in vain: {what}")
        time.sleep(min(POLL + waited / 20, SELDOM))


def last_for(seconds: float) -> None:
    """Let a fault last."""
    time.sleep(seconds)
