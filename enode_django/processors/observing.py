"""Observe one ``runprocessors``, for reports, metrics and health probes."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from enode_django.equeue.administration import broker_figures, list_groups
from enode_django.equeue.transport import Transport
from enode_django.equeue.transports.broker import BrokerTransport
from enode_django.eventstore.base import EventStore
from enode_django.processors.watch import Watch

WATCH_INTERVAL = 5.0
"""Seconds between two looks at the queue, and at the store."""
GAUGE_INTERVAL = 15.0
"""Seconds between two measurements of the gauges, which query several tables for each subscriber."""
TURNS_WITHIN = 60.0
"""Seconds after which a turn of the supervisor counts as hanging. It may wait for an unresponsive queue."""
ANSWERS_WITHIN = 20.0
"""Seconds without an answer after which the queue or the store counts as unavailable."""
STOP_SECONDS = 1.0
READ_SOURCES = ("ring", "memory", "file")

Backlog = dict[str, dict[str, int]]
"""Uncommitted messages by topic and consumer group."""


class Observations:
    """The figures and the health of one ``runprocessors``. `look` is called by the supervisor, and never blocks; any
    thread may call the rest.

    Before `start` only the supervisor's report is known.
    """

    def __init__(
        self,
        transport: Transport,
        topics: Sequence[str],
        store: EventStore,
        measure: Callable[[], Mapping[str, Any]],
        *,
        has_broker: bool = False,
    ) -> None:
        """``measure`` returns gauges, and may block. ``has_broker``: the queue's broker is a child of this command, so
        its figures are shown here, too."""
        self._transport = transport
        self._topics = topics
        self._store = store
        self._measure = measure
        self._has_broker = has_broker
        self._report: dict[str, Any] = {}
        self._turned_at = time.monotonic()
        self._queue: Watch[dict[str, Any]] | None = None
        self._broker: Watch[Mapping[str, Any]] | None = None
        self._shards: Watch[None] | None = None
        self._gauges: Watch[Mapping[str, Any]] | None = None

    def start(self, *, with_store: bool = True) -> None:
        """Watch the queue. ``with_store``: also watch the store, because health is asked for, not figures alone."""
        self._queue = Watch("queue-watch", lambda: figures_of(self._transport, self._topics), WATCH_INTERVAL)
        transport = self._transport
        if self._has_broker and isinstance(transport, BrokerTransport):
            self._broker = Watch("broker-watch", transport.figures, WATCH_INTERVAL)
        if with_store:
            self._shards = Watch("store-watch", self._ask_store, WATCH_INTERVAL)
            self._gauges = Watch("gauge-watch", self._measure, GAUGE_INTERVAL)

    def stop(self) -> None:
        for watch in (self._queue, self._broker, self._shards, self._gauges):
            if watch is not None:
                watch.stop(STOP_SECONDS)

    def look(self, report: dict[str, Any]) -> None:
        self._report = report
        self._turned_at = time.monotonic()

    def figures(self) -> dict[str, Any]:
        """Return the supervisor's report, with what is known of the queue, and the gauges."""
        of_queue = self._queue.answer if self._queue is not None else None
        gauges = self._gauges.answer if self._gauges is not None else None
        return {**self._report, **(of_queue or {}), **(gauges or {})}

    def shown(self) -> dict[str, Any]:
        """Return the figures, with those of the broker, which are too many for a report every few seconds."""
        of_broker = self._broker.answer if self._broker is not None else None
        return {**self.figures(), **({} if of_broker is None else {"broker": of_broker})}

    def _ask_store(self) -> None:
        for shard in self._store.shards:
            shard.heads(["?"])

    # -- health ---------------------------------------------------------------------------------------------------

    def is_not_live(self) -> list[str]:
        """Return the reasons to restart the process; none if it is live."""
        reasons = []
        if time.monotonic() - self._turned_at > TURNS_WITHIN:
            reasons.append("the supervisor hangs")
        if failing := self._report.get("failing_workers", 0):
            reasons.append(f"{failing} workers end again and again")
        return reasons

    def is_not_ready(self) -> list[str]:
        """Return the reasons why it does not work as planned; none if it is ready."""
        report, reasons = self._report, self.is_not_live()
        planned = report.get("planned_workers", 0) + report.get("planned_event_workers", 0)
        beating = report.get("beating_workers", 0)
        if beating < planned or not report:
            reasons.append(f"{beating} of {planned} workers are up")
        if report.get("stopping"):
            reasons.append("it is stopping")
        for what, watch in (("the queue", self._queue), ("the event store", self._shards)):
            if watch is not None and not watch.has_answered(ANSWERS_WITHIN):
                reasons.append(f"{what} does not answer")
        return reasons


def figures_of(transport: Transport, topics: Sequence[str]) -> dict[str, Any]:
    """Return the queue's part of the figures. Blocks; raises `QueueError`."""
    figures: dict[str, Any] = {"backlog": backlog_of(transport, topics)}
    if isinstance(transport, BrokerTransport):
        told = broker_figures(transport)
        figures["broker_reads"] = {source: told.get(f"{source}_reads", 0) for source in READ_SOURCES}
    return figures


def backlog_of(transport: Transport, topics: Sequence[str]) -> Backlog:
    """Return how many messages each group has not committed, by topic and group. Blocks; raises `QueueError`."""
    backlog: Backlog = {topic: {} for topic in topics}
    for info in list_groups(transport, topics):
        backlog[info.topic][info.group] = info.backlog
    return backlog
