"""List dead letters, send them again, and discard them.

A group's topic of dead letters holds the letters, followed by notes that name the settled letters: those sent again or
discarded. A note is written after its letters were sent. A crash in between sends them again: each letter is sent at
least once, and none is lost. The group ``requeue`` of that topic commits past settled letters, so that they may be
trimmed.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import islice
from typing import NamedTuple, Self

from enode_django.equeue.administration import read_queue
from enode_django.equeue.messages import Commit
from enode_django.equeue.portions import portions
from enode_django.equeue.retrying import (
    Failed,
    Message,
    Settled,
    dead_letter_topic,
    decode,
    encode_failed,
    encode_settled,
    group_of_letters,
    retry_queue,
    retry_topic,
)
from enode_django.equeue.transport import Transport
from enode_django.exceptions import MalformedMessage, QueueError

__all__ = ["DeadLetter", "dead_letters", "discard", "groups_with_dead_letters", "requeue"]

REQUEUE_GROUP = "requeue"
LEASE = 60.0
LETTERS_PER_NOTE = 100
"""The most letters that are sent before their note is written; large ones are sent in smaller portions."""


class DeadLetter(NamedTuple):
    """``offset`` is the letter's own. ``failed`` is the failed message, None for a message that no consumer has put
    there. ``body`` is the body of the failed message, or the bytes of that foreign message."""

    group: str
    offset: int
    failed: Failed | None
    body: bytes


class Letters(NamedTuple):
    """The number of some letters, and when the newest of them failed: in seconds since 1970, 0.0 if that is unknown."""

    many: int
    newest: float


def groups_with_dead_letters(transport: Transport) -> list[str]:
    """Return the names of the groups that have a topic of dead letters.

    For example::

        assert groups_with_dead_letters(transport) == ["billing"]
    """
    return [group for group in map(group_of_letters, transport.topics()) if group is not None]


def dead_letters(transport: Transport, group: str) -> Iterator[DeadLetter]:
    """Yield the dead letters that are not settled, the oldest first. Reads the topic twice. Raises `UnknownTopic` for
    a group that never had any.

    For example::

        (letter,) = dead_letters(transport, "billing")
        assert (letter.offset, letter.body) == (0, b"3 apples")
    """
    topic = dead_letter_topic(group)
    first, end, _, _ = transport.queues(topic)[0]
    settled: set[int] = set()
    for _, entry, _ in _read(transport, topic, first, end):
        if isinstance(entry, Settled):
            settled |= entry.offsets
    for offset, entry, body in _read(transport, topic, first, end):
        if offset in settled or isinstance(entry, Settled):
            continue
        yield DeadLetter(group, offset, entry, entry.message.body if entry else body)


def letters_by_error(transport: Transport, group: str) -> Mapping[str, Letters]:
    """Return the dead letters that are not settled, by the class name of their error: empty for messages that no
    consumer has put there. Reads the topic once, and remembers no messages. Raises as `dead_letters` does."""
    topic = dead_letter_topic(group)
    first, end, _, _ = transport.queues(topic)[0]
    found: dict[int, tuple[str, float]] = {}
    for offset, entry, _ in _read(transport, topic, first, end):
        if isinstance(entry, Settled):
            for settled in entry.offsets:
                found.pop(settled, None)
        else:
            found[offset] = (entry.error.partition(":")[0], entry.failed_at) if entry else ("", 0.0)
    by_error: dict[str, list[float]] = {}
    for error_type, at in found.values():
        by_error.setdefault(error_type, []).append(at)
    return {error_type: Letters(len(times), max(times)) for error_type, times in sorted(by_error.items())}


def _read(
    transport: Transport, topic: str, first: int, end: int
) -> Iterator[tuple[int, Failed | Settled | None, bytes]]:
    for message in read_queue(transport, topic, 0, first, end):
        entry: Failed | Settled | None = None
        with suppress(MalformedMessage):
            entry = decode(message.body)
        yield message.offset, entry, message.body


def requeue(
    transport: Transport,
    group: str,
    offsets: Collection[int] | None = None,
    *,
    to_topic: bool = False,
    before: int | None = None,
) -> list[int]:
    """Send dead letters again, those at ``offsets`` or all that can be sent, only those ``before`` an offset if it is
    given. Return their offsets.

    They go to the group's retries, where only this group gets them, as a first attempt; with ``to_topic`` they go to
    the end of the queue that they came from, where every group gets them. Raises `QueueError`, and sends nothing, for
    an offset without such a dead letter; raises `QueueHeld` while another process discards or requeues.

    For example::

        assert requeue(transport, "billing") == [0]
        assert list(dead_letters(transport, "billing")) == []
    """

    def can_be_sent(letter: DeadLetter) -> bool:
        return _is_before(letter, before) and letter.failed is not None and (to_topic or not letter.failed.for_all)

    def send(letters: Sequence[DeadLetter]) -> None:
        _send(transport, group, [letter.failed.message for letter in letters if letter.failed], to_topic)

    return _settle(transport, group, offsets, can_be_sent, send)


def discard(
    transport: Transport, group: str, offsets: Collection[int] | None = None, *, before: int | None = None
) -> list[int]:
    """Settle dead letters without sending them, those at ``offsets`` or all, only those ``before`` an offset if it is
    given. Return their offsets.

    Raises `QueueError`, and discards nothing, for an offset without a dead letter; raises `QueueHeld` while another
    process discards or requeues.

    For example::

        assert discard(transport, "billing", [0]) == [0]
    """
    return _settle(transport, group, offsets, lambda letter: _is_before(letter, before), lambda letters: None)


def _is_before(letter: DeadLetter, offset: int | None) -> bool:
    return offset is None or letter.offset < offset


def _settle(
    transport: Transport,
    group: str,
    offsets: Collection[int] | None,
    suits: Callable[[DeadLetter], bool],
    act: Callable[[Sequence[DeadLetter]], None],
) -> list[int]:
    topic = dead_letter_topic(group)
    transport.queue_count(topic)
    settled: list[int] = []
    with _Lease(transport, topic) as lease:
        chosen = _chosen(transport, group, offsets, suits)
        # Read again: all letters together may be too large for the memory.
        letters = (letter for letter in dead_letters(transport, group) if letter.offset in chosen)
        for some in portions(letters, lambda letter: len(letter.body), most_items=LETTERS_PER_NOTE):
            lease.renew()
            act(some)
            done = [letter.offset for letter in some]
            transport.send(topic, {0: [encode_settled(done)]})
            settled += done
        end = transport.end_offsets(topic)[0]  # read first: a letter that arrives later must not be committed past
        lease.commit(min([end, *(letter.offset for letter in islice(dead_letters(transport, group), 1))]))
    transport.trim(topic)
    return settled


def _chosen(
    transport: Transport, group: str, offsets: Collection[int] | None, suits: Callable[[DeadLetter], bool]
) -> set[int]:
    chosen = {
        letter.offset
        for letter in dead_letters(transport, group)
        if suits(letter) and (offsets is None or letter.offset in offsets)
    }
    missing = sorted(set(offsets or ()) - chosen)
    if missing:
        raise QueueError(
            f"group {group!r} has no dead letter at {', '.join(map(str, missing))} that can be settled so; what each "
            "of its consumers got (broadcasting) goes to its topic only"
        )
    return chosen


def _send(transport: Transport, group: str, messages: Sequence[Message], to_topic: bool) -> None:
    if not to_topic:
        _send_to_retries(transport, retry_topic(group), messages)
        return
    by_topic: dict[str, dict[int, list[bytes]]] = {}
    for message in messages:
        by_topic.setdefault(message.topic, {}).setdefault(message.queue, []).append(message.body)
    for topic, by_queue in by_topic.items():
        transport.send(topic, by_queue)


def _send_to_retries(transport: Transport, topic: str, messages: Sequence[Message]) -> None:
    """Send the messages of each queue, in their order, to one queue of the retries: to its queue of the shortest delay,
    if the letters were tried after each delay of the policy."""
    queues = transport.create_topic(topic, 1)
    bodies: dict[int, list[bytes]] = {}
    for message in messages:
        first = retry_queue(message._replace(attempt=1), max(1, message.attempt - 1))
        failed = Failed(message._replace(attempt=0), "", 0.0, 0.0)
        bodies.setdefault(first % queues, []).append(encode_failed(failed))
    transport.send(topic, bodies)


class _Lease:
    """A lease of the only queue of a topic of dead letters, from its making to the end of the block."""

    def __init__(self, transport: Transport, topic: str) -> None:
        self._transport = transport
        self._topic = topic
        self._owner = uuid.uuid4().hex
        self._epoch = transport.acquire(REQUEUE_GROUP, topic, 0, self._owner, LEASE).epoch

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._transport.release(REQUEUE_GROUP, self._topic, self._owner, {0: self._epoch})

    def renew(self) -> None:
        if self._transport.renew(REQUEUE_GROUP, self._topic, self._owner, {0: self._epoch}, LEASE):
            raise QueueError(f"somebody else settles the dead letters of {self._topic!r}; see what is left, and repeat")

    def commit(self, offset: int) -> None:
        self._transport.commit(REQUEUE_GROUP, self._topic, {0: Commit(self._epoch, offset)})
