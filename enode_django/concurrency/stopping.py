"""Stoppable work. Its runner registers it, and code that loops or waits deep inside asks it if it has to stop.

The code in between is not involved. In a thread without stoppable work, nothing stops.
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
        """Raise the error that ends the work if it has to stop and none was raised before. Later calls do nothing, so
        that the work can clean up."""

    def pause(self, seconds: float) -> None:
        """Wait. When the work has to stop, end early and do as `check_once`."""


_work: ContextVar[Stoppable | None] = ContextVar("enode_stoppable_work", default=None)


@contextmanager
def stoppable(work: Stoppable) -> Iterator[None]:
    """Make `check` and `pause` in this thread use ``work`` until the block ends."""
    token = _work.set(work)
    try:
        yield
    finally:
        _work.reset(token)


def is_stoppable() -> bool:
    """Return True if this thread does stoppable work."""
    return _work.get() is not None


def check() -> None:
    """Raise, once, the error that ends the work of this thread, if it has to stop.

    For example::

        for account in ["ada", "bob"]:
            check()  # raises when the job has to stop
            print(account)
    """
    work = _work.get()
    if work is not None:
        work.check_once()


def pause(seconds: float) -> None:
    """Sleep. Raises like `check` as soon as the work has to stop.

    For example::

        while not transport.topics():
            transport.create_topic("orders", 4)
            pause(0.01)
    """
    work = _work.get()
    if work is None:
        time.sleep(seconds)
    else:
        work.pause(seconds)


def checked(items: Iterable[Item]) -> Iterator[Item]:
    """Yield the items, with a `check` before each.

    For example::

        for account in checked(["ada", "bob"]):
            print(account)
    """
    for item in items:
        check()
        yield item
