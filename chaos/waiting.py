from __future__ import annotations

import time
from collections.abc import Callable

from chaos.errors import ChaosError

POLL = 0.05


def wait_until(condition: Callable[[], object], what: str | Callable[[], str], seconds: float) -> None:
    """Block until the condition holds. Raises `ChaosError` after ``seconds``, with the text ``what``, or that returned
    by a callable ``what``."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            text = what() if callable(what) else what
            raise ChaosError(f"waited {seconds:g} s in vain: {text}")
        time.sleep(POLL)
