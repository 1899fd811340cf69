"""Work that may have to stop: whoever runs it says so, and code that loops or waits deep inside of it asks.

The code in between need not know that it is part of such work. In a thread that does no such work nothing stops.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Protocol, TypeVar

__all__ = ["check", "checked", "pause"]

Item = TypeVar("Item")


class Stoppable(Protocol):
    def check_once(self) -> None:
        """Raise what ends the work, if it has to stop and nothing in it was told so. Afterwards do nothing, so that the
        work can clear away what it leaves."""

    def pause(self, seconds: float) -> None:
        """Wait; end early, and do as `check_once` does, when the work has to stop."""


_work: ContextVar[Stoppable | None] = ContextVar("enode_stoppable_work", default=None)


@contextmanager
def stoppable(work: Stoppable) -> Iterator[None]:
    """Let `check` and `pause` in this thread ask ``work`` until the block ends."""
    token = _work.set(work)
    try:
        yield
    finally:
        _work.reset(token)


def is_stoppable() -> bool:
    """Return True if this thread does work that may have to stop."""
    return _work.get() is not None


def check() -> None:
    """Raise what ends the work of this thread, once, if it has to stop."""
    work = _work.get()
    if work is not None:
        work.check_once()


def pause(seconds: float) -> None:
    """Sleep. Raises as `check`, as soon as the work has to stop."""
    work = _work.get()
    if work is None:
        time.sleep(seconds)
    else:
        work.pause(seconds)


def checked(items: Iterable[Item]) -> Iterator[Item]:
    """Yield the items, with a `check` before each."""
    for item in items:
        check()
        yield item
