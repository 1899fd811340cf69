"""An outbox on the real database, relayed to a queue in memory. Tests decide when, and where it breaks."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, TypeVar

from django.db import connection, connections

from enode_django.bus.command_bus import QueueCommandBus
from enode_django.bus.queue_sender import QueueSender
from enode_django.equeue.producer import Producer
from enode_django.equeue.transports.memory import MemoryTransport
from enode_django.models import OutboxCommand
from enode_django.outbox.relay import Relay
from enode_django.outbox.rows import Row
from enode_django.scheduling import rows as scheduling
from enode_django.serialization.codec import WireCommand, decode_command

TOPIC = "commands"
Value = TypeVar("Value")


class Harness:
    """``queue`` has two queues of commands. ``bus`` sends to it."""

    def __init__(self) -> None:
        self.queue = MemoryTransport()
        self.queue.create_topic(TOPIC, 2)
        self.bus = QueueCommandBus(self.queue, Producer(self.queue), TOPIC)

    def relay(self, *, at_once: int = 100, sender: QueueSender | None = None) -> Relay:
        return Relay("default", sender or self.sender(), schedule=scheduling, at_once=at_once)

    def sender(self) -> QueueSender:
        return QueueSender(Producer(self.queue), TOPIC)

    def bodies(self) -> list[bytes]:
        """Return the messages in the queue, in the order of each queue."""
        batches = self.queue.pull(TOPIC, {0: 0, 1: 0}, limit=10_000, wait=0)
        return [body for batch in sorted(batches, key=lambda one: one.queue) for body in batch.bodies]

    def sent(self) -> list[WireCommand]:
        return [decode_command(body) for body in self.bodies()]

    def amounts(self, id: str) -> list[int]:
        """Return the amounts of the commands for an aggregate in the order of their arrival, repeats left out."""
        arrived = {one.id: one.fields["amount"] for one in self.sent() if one.aggregate_root_id == id}
        return list(arrived.values())

    @staticmethod
    def waiting() -> int:
        return OutboxCommand.objects.filter(rejected_at=None).count()


def has_waiting() -> bool:
    return Harness.waiting() > 0


class BreakingSender(QueueSender):
    """Calls ``before`` before it sends, and ``after`` after it has."""

    def __init__(self, harness: Harness, before: Callable[[], object], after: Callable[[], object]) -> None:
        super().__init__(Producer(harness.queue), TOPIC)
        self._before, self._after = before, after

    def send(self, waiting: Sequence[Row]) -> None:
        self._before()
        super().send(waiting)
        self._after()


@contextmanager
def another_thread() -> Iterator[Callable[[Callable[[], Any]], Future[Any]]]:
    """A thread with a connection of its own, and the function that calls something there."""
    with ThreadPoolExecutor(1) as pool:
        try:
            yield pool.submit
        finally:
            pool.submit(connections.close_all).result()


def holds_somebody_up() -> bool:
    """Return True if another session waits for a lock of this one's transaction."""
    waiting = "SELECT EXISTS (SELECT FROM pg_locks WHERE NOT granted AND pg_backend_pid() = ANY(pg_blocking_pids(pid)))"
    with connection.cursor() as cursor:
        cursor.execute(waiting)
        return bool(cursor.fetchone()[0])


def read_rows_as_they_lie() -> None:
    """Let this session use no index: statements meet rows in the order that they name, or in that of the table."""
    with connection.cursor() as cursor:
        cursor.execute("SET enable_indexscan = off; SET enable_indexonlyscan = off; SET enable_bitmapscan = off")


def released(event: threading.Event) -> None:
    assert event.wait(60)
