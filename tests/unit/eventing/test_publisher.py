from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import TypeVar

import pytest

from enode_django.bus.messages import decode_published
from enode_django.bus.results import CommandResult, CommandStatus
from enode_django.commanding.decisions import Envelope, Finished
from enode_django.commanding.publisher import FULL_SECONDS, EventPublisher
from enode_django.commanding.remembered_answers import RememberedAnswers
from enode_django.concurrency.backoff import Persist, once
from enode_django.equeue.messages import Once
from enode_django.equeue.offsets import OffsetWindow
from enode_django.equeue.producer import Producer
from enode_django.equeue.transports.memory import MemoryTransport
from enode_django.eventstore.base import StreamRecord
from enode_django.exceptions import PartlyUnavailable, QueueFull

Value = TypeVar("Value")


def publisher_on(
    transport: MemoryTransport, persist: Persist = once, commit: Callable[[], None] = lambda: None
) -> EventPublisher:
    return EventPublisher(
        transport,
        Producer(transport, queues=1),
        RememberedAnswers(0, lambda window: ()),
        event_topic="events",
        command_topic="commands",
        persist=persist,
        commit=commit,
    )


class Watched(MemoryTransport):
    """Notes how many answers the publisher still says to wait for while it replies."""

    publisher: EventPublisher
    waiting_while_replying: int | None = None

    def reply(self, replies: Sequence[tuple[str, bytes]]) -> None:
        self.waiting_while_replying = self.publisher.waiting
        super().reply(replies)


def test_answer_counts_as_waiting_until_it_was_sent() -> None:
    transport = Watched()
    window = OffsetWindow("commands", 0, epoch=1, committed=0, deadline=10.0)
    window.add([0])

    def commit() -> None:
        window.committed = window.committable

    transport.publisher = publisher = publisher_on(transport, commit=commit)
    inbox = transport.open_inbox()
    envelope = Envelope("c", "x", "T", None, reply_to=inbox.address, window=window, offset=0)
    result = CommandResult(status=CommandStatus.NOTHING_CHANGED, command_id="c", aggregate_root_id="x")
    publisher.publish([Finished(envelope, None, result)])
    assert transport.waiting_while_replying == 1
    assert publisher.waiting == 0
    assert len(inbox.receive(0)) == 1


class HalfAway(MemoryTransport):
    """While ``is_away``, it delivers only the first of several replies."""

    is_away = True

    def reply(self, replies: Sequence[tuple[str, bytes]]) -> None:
        super().reply(replies[:1] if self.is_away else replies)
        if self.is_away:
            raise PartlyUnavailable("a server is away", answers={0: True})


def test_an_answer_that_was_delivered_is_not_sent_again() -> None:
    transport = HalfAway()

    def twice(call: Callable[[], Value], /) -> Value:
        if not transport.is_away:
            return call()
        with pytest.raises(PartlyUnavailable):
            call()
        transport.is_away = False
        return call()

    publisher = publisher_on(transport, twice)
    inboxes = [transport.open_inbox() for _ in range(3)]
    results = [
        CommandResult(status=CommandStatus.NOTHING_CHANGED, command_id="c", aggregate_root_id="x") for _ in inboxes
    ]
    envelopes = [Envelope("c", "x", "T", None, reply_to=inbox.address, window=None, offset=0) for inbox in inboxes]
    publisher.publish([Finished(*one) for one in zip(envelopes, [None] * 3, results, strict=True)])
    assert [len(inbox.receive(0)) for inbox in inboxes] == [1, 1, 1]


def test_stream_stored_with_larger_limits_is_left_to_the_sweep(caplog: pytest.LogCaptureFixture) -> None:
    transport = MemoryTransport()
    transport.create_topic("commands", 1)
    publisher = publisher_on(transport)
    window = OffsetWindow("commands", 0, epoch=1, committed=0, deadline=10.0)
    window.add([0, 1, 2])
    sizes = [10, transport.max_send, 20]
    publisher.publish([Finished(*stored(window, offset, size), None) for offset, size in enumerate(sizes)])
    (published,) = transport.pull("events", {0: 0}, limit=5, wait=0)
    assert [len(decode_published(body).record.events) for body in published.bodies] == [10, 20]
    assert window.committable == 3
    assert "'x1' is too large for the queue" in caplog.text


def stored(window: OffsetWindow, offset: int, size: int) -> tuple[Envelope, StreamRecord]:
    id, command = f"x{offset}", f"c{offset}"
    record = StreamRecord(id, 1, command, "T", "C", datetime.now(UTC), bytes(size), b"")
    return Envelope(command, id, "C", None, window=window, offset=offset), record


class Full(MemoryTransport):
    """Has no room for events while ``is_full``."""

    is_full = True

    def send(
        self, topic: str, bodies: Mapping[int, Sequence[bytes]], *, route: int | None = None, once: Once | None = None
    ) -> Mapping[int, int]:
        if self.is_full:
            raise QueueFull("no room")
        return super().send(topic, bodies, route=route, once=once)


def test_events_that_a_full_queue_does_not_take_are_left_to_the_sweep_so_that_commands_make_room(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    now = 100.0
    transport = Full()
    publisher = EventPublisher(
        transport,
        Producer(transport, queues=1),
        RememberedAnswers(0, lambda window: ()),
        event_topic="events",
        command_topic="commands",
        persist=once,
        commit=lambda: None,
        clock=lambda: now,
    )
    window = OffsetWindow("commands", 0, epoch=1, committed=0, deadline=10.0)
    window.add(range(4))
    first, *others = [[Finished(*stored(window, offset, 10), None)] for offset in range(4)]
    with pytest.raises(QueueFull):
        publisher.publish(first)
    assert window.committable == 0, "it may have room soon"
    now += FULL_SECONDS
    publisher.publish(first)
    publisher.publish(others[0])
    assert window.committable == 2
    transport.is_full = False
    publisher.publish(others[1])
    transport.is_full = True
    with pytest.raises(QueueFull):
        publisher.publish(others[2])
    (published,) = transport.pull("events", {0: 0}, limit=5, wait=0)
    assert [decode_published(body).record.aggregate_root_id for body in published.bodies] == ["x2"]
    assert [record.message for record in caplog.records] == [
        "the queue has been full for 10 s; until it has room, subscribers get events by sweeping",
        "the queue has room again; subscribers get the events since then without sweeping",
    ]
