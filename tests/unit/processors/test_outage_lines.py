"""A worker whose store, and then whose queue, is away says so when that begins and when it ends, not with each try."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from enode_django.concurrency.in_flight import InFlightMarker
from enode_django.conf import make_conf
from enode_django.equeue.producer import Producer
from enode_django.equeue.transports.memory import MemoryTransport
from enode_django.eventstore.memory import MemoryEventStore
from enode_django.exceptions import StoreUnavailable, TransportUnavailable
from enode_django.processors.statistics import Statistics
from enode_django.processors.wiring import make_pipeline
from enode_django.serialization.codec import encode_command
from tests.unit.processors.test_pipeline_memory import SOON, wait_for
from tests.unit.processors.test_shard_away import Ring

TRIES = 8


class Failing:
    """While ``error`` is set, the named methods of another object raise it."""

    def __init__(self, behind: object, *names: str) -> None:
        self._behind, self._names = behind, names
        self.error: Exception | None = None
        self.failures: Counter[str] = Counter()

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._behind, name)
        return self._guarded(name, found) if name in self._names else found

    def _guarded(self, name: str, call: Callable[..., object]) -> Callable[..., object]:
        def guarded(*arguments: Any, **options: Any) -> object:
            if self.error is not None:
                self.failures[name] += 1
                raise self.error
            return call(*arguments, **options)

        return guarded

    def fail(self, error: Exception) -> None:
        """Return when many tries have failed."""
        before = self.failures.total()
        self.error = error
        wait_for(lambda: self.failures.total() >= before + TRIES)
        self.error = None


def test_few_lines_are_logged_while_store_and_queue_are_away(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "enode_django")
    conf = make_conf(
        {
            "SNAPSHOTS": {"ENABLED": False},
            "COMMANDS": {"MAILBOXES": 3, "EVENT_MAILBOXES": 2},
            "WORKERS": {"COMMIT_INTERVAL": 0.05, "LEASE": 600.0},
        }
    )
    memory = MemoryTransport()
    store: Any = Failing(MemoryEventStore(), "append", "find", "load_ranges", "heads", "load")
    store.shards = [store]
    transport: Any = Failing(memory, "pull", "send", "join", "commit", "acquire")
    memory.create_topic(conf.COMMANDS.TOPIC, 2)
    memory.create_topic(conf.SUBSCRIBERS.TOPIC, 2)
    statistics = Statistics()
    notes: list[InFlightMarker] = [[0] for _ in range(3)]
    pipeline = make_pipeline(conf, transport, store, owner="w", markers=notes, statistics=statistics)

    def send(count: int) -> None:
        ids = [f"bell {number}" for number in range(count)]
        messages = [(id, encode_command(Ring(id), b"")) for id in ids]
        Producer(memory).send_all(conf.COMMANDS.TOPIC, messages)

    def lines() -> list[str]:
        return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]

    pipeline.start()
    send(60)
    wait_for(lambda: statistics.published == 60)
    assert lines() == []
    store.error = StoreUnavailable("no store")
    send(60)
    store.fail(StoreUnavailable("no store"))
    wait_for(lambda: statistics.published == 120 and len(lines()) == 2)
    transport.fail(TransportUnavailable("no queue"))
    send(60)
    wait_for(lambda: statistics.published == 180 and len(lines()) == 4)
    assert pipeline.drain(SOON)
    pipeline.close(SOON)
    begun_store, ended_store, begun_queue, ended_queue = lines()
    assert begun_store == "no store; trying again until it works"
    assert begun_queue == "no queue; trying again until it works"
    assert ended_store.startswith("a database answers again, after ")
    assert ended_queue.startswith("the queue answers again, after ")
