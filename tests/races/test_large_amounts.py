"""The backlog of a queue that is taken over has more bytes than the queue takes at once: it is published in pieces."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

import pytest
import redis

from enode_django.bus.messages import decode_published
from enode_django.bus.results import CommandResult, decode_result
from enode_django.commanding.decisions import Finished
from enode_django.domain.messages import Command
from enode_django.equeue.transport import Transport
from enode_django.equeue.transports.memory import MemoryTransport
from enode_django.equeue.transports.redis_streams import RedisStreamsTransport
from enode_django.eventstore.memory import MemoryEventStore
from enode_django.serialization.codec import encode_command
from tests.equeue.brokers import RunningBroker
from tests.races.counting import AddText, Create, Tell
from tests.races.whole_worker import COMMANDS, WholeWorker

STREAMS, STREAM = 500, 140_000
ANSWERS, ANSWER = 10_000, 8_000
AT_ONCE = 100
"""Messages that the test sends, or pulls, at once."""


class Queue(NamedTuple):
    """``restart`` kills the broker and starts it again; it does nothing for other transports."""

    transport: Transport
    restart: Callable[[], None]


@pytest.fixture(params=["memory", "broker", "redis"])
def queue(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Queue]:
    if request.param == "memory":
        yield Queue(MemoryTransport(), lambda: None)
    elif request.param == "broker":
        with RunningBroker(tmp_path / "data") as broker, closing(broker.transport(timeout=60)) as transport:
            yield Queue(transport, lambda: broker.kill() or broker.start())
    else:
        url, prefix = request.getfixturevalue("redis_url"), f"large-{uuid.uuid4().hex}"
        with closing(RedisStreamsTransport(url, prefix=prefix, timeout=60)) as transport:
            yield Queue(transport, lambda: None)
        with redis.Redis.from_url(url) as client:
            for key in client.scan_iter(f"{prefix}:*", count=1_000):
                client.delete(key)


@pytest.fixture
def transport(queue: Queue) -> Transport:
    for topic in (COMMANDS, "events"):
        queue.transport.create_topic(topic, 1)
    return queue.transport


def send(transport: Transport, commands: Sequence[Command], reply_to: str = "") -> None:
    for start in range(0, len(commands), AT_ONCE):
        bodies = [encode_command(command, b"", reply_to) for command in commands[start : start + AT_ONCE]]
        transport.send(COMMANDS, {0: bodies})


def everything(worker: WholeWorker) -> tuple[list[Finished], int]:
    """Handle as `WholeWorker.handle` does, until the queue is empty."""
    finished, handled = worker.handle()
    while (more := worker.handle())[0]:
        finished, handled = finished + more[0], handled + more[1]
    return finished, handled


def published_versions(transport: Transport) -> list[int | None]:
    found: list[int | None] = []
    while pulled := transport.pull("events", {0: len(found)}, limit=AT_ONCE, wait=0):
        found += (decode_published(body).record.version for body in pulled[0].bodies)
    return found


def test_large_streams_that_stand_in_a_queue_are_published_by_who_takes_it_over(transport: Transport) -> None:
    store = MemoryEventStore()
    first = WholeWorker(transport, store, "first", max_bytes=2 * STREAM).take()
    texts = [AddText("x", text="x" * STREAM) for _ in range(STREAMS)]
    send(transport, [Create("x"), *texts])
    assert everything(first)[1] == STREAMS + 1  # it stores the streams, and ends before it publishes any
    second = WholeWorker(transport, store, "second", max_bytes=2 * STREAM).take("first")
    finished, handled = everything(second)
    assert (len(finished), handled) == (STREAMS + 1, 0)
    second.publisher.publish(finished)
    second.consumer.commit()
    assert published_versions(transport) == list(range(1, STREAMS + 2))
    assert transport.committed("g", COMMANDS) == {0: STREAMS + 1}


def test_large_remembered_answers_are_given_again_after_a_restart(queue: Queue, transport: Transport) -> None:
    store, inbox = MemoryEventStore(), transport.open_inbox()
    first = WholeWorker(transport, store, "first", remember=ANSWERS).take()
    commands = [Tell("x", id=f"c{n}", characters=ANSWER) for n in range(ANSWERS)]
    send(transport, commands, inbox.address)
    while finished := first.handle()[0]:
        first.publisher.publish(finished)
    queue.restart()
    second = WholeWorker(transport, store, "second", remember=ANSWERS).take("first")
    inbox = transport.open_inbox()
    send(transport, [commands[0], commands[-1]], inbox.address)
    assert second.work() == 0  # no handler has seen them again
    answers = [decode_result(body) for body in inbox.receive(10)]
    assert [answer.command_id for answer in answers] == [commands[0].id, commands[-1].id]
    assert {answer.value for answer in answers} == {"x" * ANSWER}


def test_large_answers_that_wait_for_the_offset_are_all_given(transport: Transport) -> None:
    inbox = transport.open_inbox()
    worker = WholeWorker(transport, MemoryEventStore(), "first", max_bytes=2 * STREAM).take()
    send(transport, [Tell("x", characters=STREAM) for _ in range(STREAMS)], inbox.address)
    finished, _ = everything(worker)
    worker.publisher.publish(finished)
    answers: list[CommandResult] = []
    while bodies := inbox.receive(0):
        answers += map(decode_result, bodies)
    assert 0 < len(answers) <= STREAMS  # an inbox that nobody empties keeps the newest
    assert {len(answer.value) for answer in answers} == {STREAM}
