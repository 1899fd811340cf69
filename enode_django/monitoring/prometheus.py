"""Write the figures of one ``runprocessors`` or ``runbroker`` in Prometheus's format. Needs prometheus-client."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from prometheus_client import CONTENT_TYPE_LATEST as CONTENT_TYPE
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from enode_django.monitoring.broker_metrics import broker_reads, histogram, labelled, metrics_of_broker

__all__ = ["CONTENT_TYPE", "exposition"]

Figures = Mapping[str, Any]

COUNTERS = {
    "finished": ("enode_commands_finished", "Commands whose outcome is final."),
    "published": ("enode_commands_published", "Commands whose outcome is final and published."),
    "batches": ("enode_batches", "Batches of the event mailboxes."),
    "conflicts": ("enode_conflicts", "Aggregates whose commands were handled again after a conflict."),
    "restarts": ("enode_worker_restarts", "Workers started to replace one that had ended."),
}
GAUGES = {
    "cached_aggregates": ("enode_cached_aggregates", "Aggregates in memory."),
    "unfinished": ("enode_unfinished_commands", "Commands that were pulled and are not published."),
    "waiting_for_help": (
        "enode_mailboxes_waiting_for_help",
        "Mailboxes that wait for a database that an operator has to mend.",
    ),
    "largest_batch": ("enode_largest_batch_commands", "Commands in the largest batch since the start."),
    "peak_memory": ("enode_worker_peak_memory_bytes", "Memory of the worker that had the most since the start."),
}
GAUGES_OF_TABLES = {
    "dead_letters": ("enode_dead_letters", "Commands and messages that failed for good and were not settled.", "group"),
    "parked_aggregates": ("enode_parked_aggregates", "Aggregates that are parked now.", "subscriber"),
    "outbox_commands": ("enode_outbox_commands", "Commands that wait in the outbox.", "database"),
    "outbox_age": ("enode_outbox_age_seconds", "Age of the oldest command that waits in the outbox.", "database"),
    "outbox_rejected": ("enode_outbox_rejected", "Commands in the outbox that cannot be sent.", "database"),
    "subscriber_lags": (
        "enode_subscriber_lag_seconds",
        "Age of the oldest event stream that is stored and not handled.",
        "subscriber",
    ),
}
HISTOGRAMS = {
    "batch_sizes": ("enode_batch_commands", "Commands of a batch."),
    "store_seconds": ("enode_store_seconds", "Seconds that the event store took to store a batch."),
}
LATENCIES = {"pulled_to_durable": "pulled", "sent_to_durable": "sent"}
OUTCOMES = ("succeeded", "unchanged", "refused", "failed", "crashed")
ROLES = {"command": "workers", "event": "event_workers"}


class _Figures(Collector):
    """The metrics of one scrape."""

    def __init__(self, figures: Figures) -> None:
        self._of_broker: Figures = figures.get("broker", {})
        self._figures = {name: value for name, value in figures.items() if name != "broker"}

    def collect(self) -> Iterator[Metric]:
        if self._figures:
            yield from self._plain()
            yield from self._commands()
            yield from self._subscribers()
            yield self._backlog()
            yield from self._from_tables()
            yield from self._workers()
        if self._of_broker:
            yield from metrics_of_broker(self._of_broker)
        if self._figures or self._of_broker:
            yield broker_reads(self._figures.get("broker_reads", self._of_broker.get("reads")) or {})

    def _plain(self) -> Iterator[Metric]:
        figures = self._figures
        for name, (metric, text) in COUNTERS.items():
            yield CounterMetricFamily(metric, text, value=figures.get(name, 0))
        for name, (metric, text) in GAUGES.items():
            yield GaugeMetricFamily(metric, text, value=figures.get(name, 0))
        for name, (metric, text) in HISTOGRAMS.items():
            if name in figures:
                yield HistogramMetricFamily(metric, text, **histogram(figures[name]))

    def _commands(self) -> Iterator[Metric]:
        outcomes = {outcome: self._figures.get(outcome, 0) for outcome in OUTCOMES}
        yield labelled(CounterMetricFamily, "enode_commands", "Commands by how they ended.", "outcome", outcomes)
        latency = HistogramMetricFamily(
            "enode_command_latency_seconds",
            "Time from pulling or sending a command until its outcome was durable; one command of each batch.",
            labels=["since"],
        )
        for name, since in LATENCIES.items():
            if name in self._figures:
                latency.add_metric([since], **histogram(self._figures[name]))
        yield latency

    def _subscribers(self) -> Iterator[Metric]:
        for metric, name, text in (
            ("enode_streams_handled", "handled", "Event streams handled."),
            ("enode_aggregates_parked", "parked", "Aggregates parked since the start."),
        ):
            counts = {key: one.get(name, 0) for key, one in self._figures.get("subscribers", {}).items()}
            yield labelled(CounterMetricFamily, metric, text, "subscriber", counts)

    def _backlog(self) -> Metric:
        backlog = GaugeMetricFamily(
            "enode_queue_backlog_messages", "Messages in the queue and not committed.", labels=["topic", "group"]
        )
        for topic, groups in self._figures.get("backlog", {}).items():
            for group, count in groups.items():
                backlog.add_metric([topic, group], count)
        return backlog

    def _from_tables(self) -> Iterator[Metric]:
        """Leave out gauges that cannot be measured: 0 would say that all is well."""
        for name, (metric, text, label) in GAUGES_OF_TABLES.items():
            if name in self._figures:
                yield labelled(GaugeMetricFamily, metric, text, label, self._figures[name])

    def _workers(self) -> Iterator[Metric]:
        for metric, prefix, text in (
            ("enode_workers", "", "Living workers."),
            ("enode_workers_planned", "planned_", "Planned workers."),
        ):
            counts = {role: self._figures.get(f"{prefix}{name}", 0) for role, name in ROLES.items()}
            yield labelled(GaugeMetricFamily, metric, text, "role", counts)


def exposition(figures: Figures) -> bytes:
    """Return the page of metrics. ``figures`` are a supervisor's; a broker's are under the key ``broker``, alone or
    among them."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Figures(figures))
    return generate_latest(registry)
