"""Trying again until it works."""

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
    """Seconds to wait before each next try: doubling, up to the longest, for ever.

    >>> from itertools import islice
    >>> list(islice(delays(0.5, 2.0), 4))
    [0.5, 1.0, 2.0, 2.0]
    """
    delay = first
    while True:
        yield delay
        delay = min(delay * 2, longest)


class Persist(Protocol):
    """Makes a call, again and again as the caller sees fit, while it raises a retriable error."""

    def __call__(self, call: Callable[[], Value], /) -> Value: ...


def once(call: Callable[[], Value], /) -> Value:
    return call()


def until_it_works(call: Callable[[], Value], /) -> Value:
    """Blocks while ``call`` raises a retriable `EnodeError`; every other error is the caller's."""
    return within(inf)(call)


def within(seconds: float) -> Persist:
    """Return a function that repeats a call as `until_it_works` does, but raises the error of a call that began after
    so many seconds. It also raises what ends the work that it is part of, see `stopping`."""

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
    """Repeat a call that has just raised ``error``. Most calls never come here."""
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
    """Repeats calls as `until_it_works` does, for several threads. ``waiting`` is how many of them wait now for
    somebody to mend something."""

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
