"""Helpers of the tests of consumers."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NoReturn

import pytest

from enode_django.equeue import subscribing
from enode_django.equeue.subscribing import Consumer, Limits, Message, RetryPolicy
from enode_django.equeue.transport import Transport
from enode_django.exceptions import UnknownQueue

FAST = Limits(pull_wait=0.05, commit_interval=0.05, lease=60.0)
"""With a lease that does not run out while a slow machine lets the test stand still."""
BEATS = 75
"""Renewals within the duration of a lease: queues are divided anew as soon as with a short one."""
AT_ONCE = RetryPolicy(delays=(0.02, 0.05))


def eventually(holds: Callable[[], object], seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, "it did not come true in time"
        time.sleep(0.005)


class WidensBeforeItIsAsked:
    """A transport whose topic gets its second queue back after a call has failed without it, and before the consumer
    asks how many there are."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def queue_count(self, topic: str) -> int:
        return self._transport.add_queues(topic, 2, unordered=True)


class RefusesPulls:
    """A transport that knows a queue of its topic, but refuses pulls from it."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def pull(self, topic: str, offsets: Mapping[int, int], *, limit: int, wait: float = 0.0) -> NoReturn:
        raise UnknownQueue(f"no queue {min(offsets)}")


class Handled:
    """A handler that records its messages. ``failing`` is the number of attempts that fail, by body (-1: all). The
    handler blocks while ``gate`` is cleared."""

    def __init__(self, **failing: int) -> None:
        self.messages: list[Message] = []
        self.failing = failing
        self.gate = threading.Event()
        self.gate.set()
        self.busy = 0
        self.most_busy = 0
        self.overlaps: list[Message] = []
        self._at: set[tuple[str, int]] = set()
        self._lock = threading.Lock()

    def __call__(self, message: Message) -> None:
        place = (message.topic, message.queue)
        with self._lock:
            if place in self._at:
                self.overlaps.append(message)
            self._at.add(place)
            self.messages.append(message)
            self.busy += 1
            self.most_busy = max(self.busy, self.most_busy)
        try:
            assert self.gate.wait(60)
            left = self.failing.get(message.body.decode(), 0)
            if left:
                self.failing[message.body.decode()] = left - 1
                raise ValueError(f"cannot handle {message.body!r}")
        finally:
            with self._lock:
                self._at.discard(place)
                self.busy -= 1

    @property
    def bodies(self) -> list[str]:
        return [message.body.decode() for message in list(self.messages)]


@contextmanager
def consuming(transport: Transport, handle: Callable[[Message], object], **options: Any) -> Iterator[Consumer]:
    """Run a consumer of the topic "orders" inside the block."""
    given = {"group": "billing", "topics": ["orders"], "limits": FAST, "retry": AT_ONCE, **options}
    consumer = Consumer(transport, handle=handle, **given)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(subscribing, "BEATS", BEATS)
        consumer.start()
        try:
            yield consumer
        finally:
            consumer.stop(60)


def texts(*names: object) -> list[bytes]:
    return [str(name).encode() for name in names]
