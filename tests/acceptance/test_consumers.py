"""Consumers in processes of their own, which are killed and stopped while messages come in."""

from __future__ import annotations

import json
import signal
import uuid
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from enode_django.equeue.administration import list_groups
from enode_django.equeue.dead_letters import dead_letters, requeue
from enode_django.equeue.transport import Transport
from enode_django.equeue.transports.broker import BrokerTransport
from enode_django.equeue.transports.redis_streams import RedisStreamsTransport
from tests import warm
from tests.equeue.brokers import RunningBroker
from tests.equeue.consuming import eventually
from tests.meta.tree import ROOT

pytestmark = pytest.mark.acceptance

QUEUES, MESSAGES, EACH_BAD = 4, 400, 100
PATIENCE = 120.0


class Queue(NamedTuple):
    transport: Transport
    location: str
    options: dict[str, Any]
    restart: Callable[[], None]


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Queue]:
    with RunningBroker(tmp_path / "broker", patience_of_leases=2.0) as running:

        def restart() -> None:
            running.kill()
            running.start()

        transport = running.transport()
        yield Queue(transport, running.location, {}, restart)
        transport.close()


@pytest.fixture
def redis(redis_url: str) -> Iterator[Queue]:
    options: dict[str, Any] = {"prefix": f"consumers-{uuid.uuid4().hex}", "timeout": PATIENCE}
    transport = RedisStreamsTransport(redis_url, **options)
    yield Queue(transport, redis_url, options, lambda: None)
    transport.close()


class Consumers:
    def __init__(self, queue: Queue, directory: Path, ending: ExitStack) -> None:
        self.file = directory / "handled"
        self.file.touch()
        backend = BrokerTransport if isinstance(queue.transport, BrokerTransport) else RedisStreamsTransport
        name = f"{backend.__module__}.{backend.__qualname__}"
        self._command = [name, queue.location, json.dumps(queue.options), str(self.file)]
        self._log = ending.enter_context((directory / "consumers.log").open("a"))
        self._ending = ending

    def start(self) -> warm.Started:
        command = ["-m", "tests.equeue.consumer_process", *self._command]
        process = warm.start(command, cwd=ROOT, stdout=self._log)
        self._ending.callback(process.kill)
        return process

    @property
    def handled(self) -> list[tuple[int, ...]]:
        """(queue, offset, attempt, process) of each time."""
        return [tuple(map(int, line.split())) for line in self.file.read_text().splitlines()]

    def at_work(self, since: int = 0) -> set[int]:
        """The processes that have handled something, from the ``since``-th time on."""
        return {pid for *_, pid in self.handled[since:]}


def owns_any(transport: Transport, consumer: warm.Started) -> bool:
    shares = [share for info in list_groups(transport, group="billing") for share in info.shares]
    return any(f"-{consumer.pid}-" in (share.owner or "") for share in shares)


@pytest.mark.parametrize("kind", ["broker", "redis"])
def test_consumers_are_killed_and_stopped_and_no_message_is_missed(
    kind: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    queue: Queue = request.getfixturevalue(kind)
    transport = queue.transport
    transport.create_topic("orders", QUEUES)
    sent = 0

    def send(count: int) -> None:
        nonlocal sent
        for number in range(sent, sent + count):
            body = b"bad" if number % EACH_BAD == 0 else b"good"
            transport.send("orders", {number % QUEUES: [body]})
        sent += count

    with ExitStack() as ending:
        consumers = Consumers(queue, tmp_path, ending)
        first, second = consumers.start(), consumers.start()
        while not {first.pid, second.pid} <= consumers.at_work():
            send(20)
        first.kill()
        send(MESSAGES // 4)
        third = consumers.start()
        while third.pid not in consumers.at_work():
            send(20)
        queue.restart()
        since = len(consumers.handled)
        while not {second.pid, third.pid} <= consumers.at_work(since):
            send(20)
        third.send_signal(signal.SIGSTOP)
        eventually(lambda: not owns_any(transport, third), PATIENCE)  # it is silent for longer than its lease
        send(20)
        third.send_signal(signal.SIGCONT)
        since = len(consumers.handled)
        while third.pid not in consumers.at_work(since):
            send(20)
        second.send_signal(signal.SIGTERM)
        assert second.wait(PATIENCE) == 0
        send(max(1, MESSAGES - sent))
        eventually(lambda: sum(info.backlog for info in list_groups(transport, group="billing")) == 0, PATIENCE)
        bad = -(-sent // EACH_BAD)
        eventually(lambda: len(list(dead_letters(transport, "billing"))) >= bad, PATIENCE)
        assert len(requeue(transport, "billing")) >= bad
        eventually(lambda: len(list(dead_letters(transport, "billing"))) >= bad, PATIENCE)
        third.send_signal(signal.SIGTERM)
        assert third.wait(PATIENCE) == 0
    check(consumers.handled, transport)


def check(handled: list[tuple[int, ...]], transport: Transport) -> None:
    firsts: dict[int, list[int]] = defaultdict(list)
    seen: set[tuple[int, int]] = set()
    for queue, offset, attempt, _ in handled:
        if attempt == 1 and (queue, offset) not in seen:
            seen.add((queue, offset))
            firsts[queue].append(offset)
    # Every message is handled, and the first times are in order, whichever consumer handles them.
    assert firsts == {queue: list(range(end)) for queue, end in transport.end_offsets("orders").items()}
    # A fourth time follows where the broker was away when a letter was to be sent, since the consumer keeps it then.
    assert {attempt for _, _, attempt, _ in handled} >= {1, 2, 3}
