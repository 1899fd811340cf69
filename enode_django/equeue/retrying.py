"""Messages whose handler has failed: when to try again, and their form in the topics that keep them. Pure.

A group has one topic of retries, with a queue for each delay of each queue that messages came from, so that due times
ascend within a queue. It has another topic for dead letters, which are not tried again.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from math import isfinite
from typing import Any, NamedTuple

import msgpack

from enode_django.exceptions import MalformedMessage, shown

ERROR_MAX = 4_000
"""The most characters that are kept of an error."""

_FAILED, _SETTLED = 1, 2


class Message(NamedTuple):
    """A message for a handler. ``topic``, ``queue`` and ``offset`` are the place it was sent to, also when it is
    handled again after a failure. The first ``attempt`` is 1.

    For example::

        def send_invoice(message: Message) -> None:
            print(f"{message.topic}/{message.queue}/{message.offset}: {message.body!r}")
    """

    topic: str
    queue: int
    offset: int
    body: bytes
    attempt: int = 1


class Failed(NamedTuple):
    """A message that was set aside. ``message.attempt`` is the one that failed, 0 to start over. ``due`` and
    ``failed_at`` are seconds since 1970. ``for_all``: each consumer of the group got the message, so there are no
    retries."""

    message: Message
    error: str
    failed_at: float
    due: float
    for_all: bool = False


class Settled(NamedTuple):
    """A note behind dead letters: the letters at these offsets were sent again or discarded."""

    offsets: frozenset[int]


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """``delays``: seconds before the second attempt, before the third, and so on. After the last delay a failed
    message becomes a dead letter.

    For example::

        policy = RetryPolicy(delays=(1.0, 30.0))
        assert [policy.delay_after(attempt) for attempt in (1, 2, 3)] == [1.0, 30.0, None]
    """

    delays: tuple[float, ...] = (1.0, 5.0, 30.0, 120.0, 600.0)

    def __post_init__(self) -> None:
        wrong = [delay for delay in self.delays if not 0 <= delay < float("inf")]
        if wrong:
            raise ValueError(f"a delay of a retry policy is a number of seconds from 0 on, got {wrong[0]!r}")

    def delay_after(self, attempt: int) -> float | None:
        return self.delays[attempt - 1] if attempt <= len(self.delays) else None


def retry_topic(group: str) -> str:
    return f"retry.{group}"


def retry_queue(message: Message, delays: int) -> int:
    """Return the queue of the topic of retries for a message that has failed at ``message.attempt``.

    The first ``delays`` queues are those of messages from queue 0, by delay; then come those of queue 1, and so on.
    Queues added to the message's topic thus only append queues here.

    >>> [retry_queue(Message("orders", queue, 0, b"", attempt=2), 5) for queue in (0, 1, 2)]
    [1, 6, 11]
    """
    return message.queue * delays + message.attempt - 1


def dead_letter_topic(group: str) -> str:
    return f"dead.{group}"


def group_of_letters(topic: str) -> str | None:
    """Return the group whose dead letters a topic holds; None for any other topic."""
    prefix = dead_letter_topic("")
    return topic.removeprefix(prefix) if topic.startswith(prefix) else None


def error_text(error: BaseException) -> str:
    try:
        text = f"{type(error).__qualname__}: {error}"
    except Exception:  # the text of an exception is application code
        text = type(error).__qualname__
    return text[:ERROR_MAX].encode(errors="replace").decode()


def encode_failed(failed: Failed) -> bytes:
    return bytes(msgpack.packb([_FAILED, *failed.message, failed.error, failed.failed_at, failed.due, failed.for_all]))


def encode_settled(offsets: Collection[int]) -> bytes:
    return bytes(msgpack.packb([_SETTLED, sorted(offsets)]))


def decode(body: bytes) -> Failed | Settled:
    """Decode what `encode_failed` or `encode_settled` returned. Raises `MalformedMessage` for other bytes."""
    try:
        parts = msgpack.unpackb(body)
        if parts[0] == _SETTLED:
            return Settled(frozenset(map(_integer, parts[1])))
        kind, topic, queue, offset, content, attempt, error, failed_at, due, for_all = parts
        message = Message(
            _text(topic), _integer(queue), _integer(offset), bytes(memoryview(content)), _integer(attempt)
        )
        if kind == _FAILED:
            return Failed(message, _text(error), _seconds(failed_at), _seconds(due), bool(for_all))
    except Exception as error:
        raise MalformedMessage(f"no message that a consumer has set aside: {shown(body)}") from error
    raise MalformedMessage(f"a message that a consumer of another version has set aside, of kind {shown(kind)}")


def _integer(value: Any) -> int:
    if type(value) is not int or value < 0:
        raise ValueError(value)
    return value


def _seconds(value: Any) -> float:
    if not isfinite(value):
        raise ValueError(value)
    return float(value)


def _text(value: Any) -> str:
    if type(value) is not str:
        raise ValueError(value)
    return value
