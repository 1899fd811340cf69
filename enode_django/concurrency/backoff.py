"""Retries with growing pauses."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from math import inf
from typing import Protocol, TypeVar

from enode_django.concurrency.outages import Attempts
from enode_django.concurrency.stopping import pause
from enode_django.exceptions import EnodeError

Value = TypeVar("Value")


def delays(first: float = 0.05, longest: float = 2.0) -> Iterator[float]:
    """Yield the seconds to wait before each next try, doubled each time up to ``longest``, without end.

    >>> from itertools import islice
    >>> list(islice(delays(0.5, 2.0), 4))
    [0.5, 1.0, 2.0, 2.0]
    """
    delay = first
    while True:
        yield delay
        delay = min(delay * 2, longest)


class Persist(Protocol):
    """A function that makes a call, and may repeat it while it raises a retriable error."""

    def __call__(self, call: Callable[[], Value], /) -> Value: ...


def once(call: Callable[[], Value], /) -> Value:
    return call()


def until_it_works(call: Callable[[], Value], /) -> Value:
    """Repeat ``call`` while it raises a retriable `EnodeError`; raise every other error. Blocks."""
    return within(inf)(call)


def within(seconds: float) -> Persist:
    """Return a function that repeats a call like `until_it_works`, but raises the error of an attempt that began after
    this many seconds. It also raises the error that stops the surrounding work (see `stopping`)."""

    def call_again(call: Callable[[], Value], /) -> Value:
        last_try = time.monotonic() + seconds
        try:
            return call()
        except EnodeError as error:
            if not error.retriable or seconds <= 0:
                raise
            first = error
        return _repeated(call, first, last_try)

    return call_again


def _repeated(call: Callable[[], Value], error: EnodeError, last_try: float) -> Value:
    """Repeat a call that has just raised ``error``."""
    with Attempts() as attempts:
        for delay in delays():
            attempts.failed(error)
            pause(delay)
            is_last = time.monotonic() >= last_try
            try:
                return call()
            except EnodeError as again:
                if not again.retriable or is_last:
                    raise
                error = again
    raise AssertionError("delays() ends")


class CountedWaits:
    """A thread-safe `until_it_works`. ``waiting`` is the number of threads that wait for a repair by somebody."""

    def __init__(self) -> None:
        self._waiting: set[int] = set()

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    def __call__(self, call: Callable[[], Value], /) -> Value:
        def watched() -> Value:
            try:
                return call()
            except EnodeError as error:
                if error.needs_help:
                    self._waiting.add(threading.get_ident())
                raise

        try:
            return until_it_works(watched)
        finally:
            if self._waiting:
                self._waiting.discard(threading.get_ident())
