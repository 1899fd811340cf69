"""The figures of a broker in the format of Prometheus. Needs prometheus-client."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

Figures = Mapping[str, Any]

GAUGES = {
    "free_bytes": ("enode_broker_free_bytes", "Free space on the broker's disk."),
    "uses_reserve": ("enode_broker_uses_reserve", "1 while the disk is full, so that sends are refused."),
    "stored_bytes": ("enode_broker_stored_bytes", "Messages and control records that are left."),
    "unflushed_bytes": ("enode_broker_unflushed_bytes", "Bytes written and not yet synced to the disk."),
    "since_checkpoint_bytes": (
        "enode_broker_since_checkpoint_bytes",
        "Bytes that a start would read if the broker crashed now.",
    ),
    "held_bytes": ("enode_broker_held_bytes", "Message files that may stay in the kernel's memory."),
    "ring_batches": ("enode_broker_ring_batches", "Batches in the ring."),
    "ring_bytes": ("enode_broker_ring_bytes", "Bytes of the batches in the ring."),
    "damaged_batches": ("enode_broker_damaged_batches", "Batches found damaged since the start."),
    "waiting_pulls": ("enode_broker_waiting_pulls", "Pulls that wait for messages."),
    "waiting_inboxes": ("enode_broker_waiting_inboxes", "Processes that wait for answers."),
    "measured_at": ("enode_broker_measured_timestamp_seconds", "When these figures were taken, since 1970."),
}
HISTOGRAMS = {
    "fsync_seconds": ("enode_broker_fsync_seconds", "Seconds that syncing written messages to the disk took."),
    "loop_delay_seconds": (
        "enode_broker_loop_delay_seconds",
        "Delay of the broker's loop, measured four times a second.",
    ),
}


def metrics_of_broker(figures: Figures) -> Iterator[Metric]:
    """Yield the metrics of one scrape, from the result of `Measuring.figures`."""
    for name, (metric, text) in GAUGES.items():
        yield GaugeMetricFamily(metric, text, value=float(figures[name]))
    for name, (metric, text) in HISTOGRAMS.items():
        yield HistogramMetricFamily(metric, text, **histogram(figures[name]))
    yield CounterMetricFamily(
        "enode_broker_deleted_early",
        "Files of consumed messages deleted before their retention ended, since the disk was full.",
        value=figures["deleted_early"],
    )
    for metric, name, text in (
        ("enode_broker_messages", "messages", "Messages ever stored."),
        ("enode_broker_bytes", "bytes", "Bytes stored since the start."),
    ):
        counts = {topic: counted[name] for topic, counted in figures["topics"].items()}
        yield labelled(CounterMetricFamily, metric, text, "topic", counts)
    yield from _groups(figures["groups"])
    text = "Open connections by client."
    yield labelled(GaugeMetricFamily, "enode_broker_connections", text, "client", figures["connections"])


def _groups(groups: Iterable[Any]) -> Sequence[Metric]:
    queue = ["topic", "group", "queue"]
    committed = CounterMetricFamily(
        "enode_broker_committed_messages", "Offsets committed, over all queues.", labels=["topic", "group"]
    )
    backlog = GaugeMetricFamily("enode_broker_backlog_messages", "Messages not committed.", labels=queue)
    age = GaugeMetricFamily(
        "enode_broker_backlog_age_seconds", "Age of the oldest message not committed.", labels=queue
    )
    for topic, group, offsets, rows in groups:
        committed.add_metric([topic, group], offsets)
        for number, messages, seconds in rows:
            backlog.add_metric([topic, group, str(number)], messages)
            if seconds is not None:
                age.add_metric([topic, group, str(number)], seconds)
    return committed, backlog, age


def broker_reads(reads: Mapping[str, int]) -> Metric:
    text = "Batches of messages read from the broker's ring, from a file in memory, or from the disk."
    return labelled(CounterMetricFamily, "enode_broker_reads", text, "source", reads)


def labelled(
    family: type[CounterMetricFamily] | type[GaugeMetricFamily],
    metric: str,
    text: str,
    label: str,
    values: Mapping[str, float],
) -> Metric:
    """Return a metric with one label. ``values`` has a number for each value of the label."""
    made = family(metric, text, labels=[label])
    for key, value in values.items():
        made.add_metric([key], value)
    return made


def histogram(figures: Figures) -> dict[str, Any]:
    """Return the arguments of `HistogramMetricFamily`, or of its ``add_metric``, as keywords."""
    buckets = figures["buckets"].items()
    return {"buckets": sorted(buckets, key=lambda bucket: float(bucket[0])), "sum_value": figures["sum"]}
