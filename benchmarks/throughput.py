"""Throughput from the queue to stored and published, compared with raw COPY of the same rows."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from benchmarks import loads
from benchmarks.figures import Figure, median
from benchmarks.processors import BenchmarkError, Processors, timed_run
from benchmarks.raw_copy import copy_seconds, stored_rows
from benchmarks.workspace import Services, Workspace
from sample_project.embedded import Broker

ACCOUNTS = 10_000


def run(services: Services, quick: bool) -> list[Figure]:
    """Measure both in turn, so that other work of the machine affects both; medians are compared."""
    count, rounds = (50_000, 1) if quick else (200_000, 5)
    accounts = loads.account_ids(ACCOUNTS)
    opening, messages = loads.opens(accounts), loads.deposits(accounts, count)
    ours, raw, used, redis = [], [], [], []
    for _ in range(rounds):
        with on_broker(services) as workspace:
            seconds, processor_seconds = pipeline(workspace, opening, messages)
            ours.append(count / seconds)
            used.append(1e6 * processor_seconds / count)
            check_stored(workspace, len(opening) + count)
            rows = stored_rows(workspace)
        with services.workspace() as target:
            raw.append(count / copy_seconds(target, rows[: len(accounts)], rows[len(accounts) :]))
        with services.workspace() as workspace:
            redis.append(count / pipeline_seconds(workspace, opening, messages))
    with on_broker(services) as workspace:
        beside = count / _beside_a_producer(workspace, opening, messages)
    return [
        median("raw COPY", raw, "rows/s", "batches of 1,000"),
        median("spread", ours, "commands/s", f"{count:,} deposits over {ACCOUNTS:,} accounts, 2 workers"),
        median("spread, workers", used, "µs", "processor time a command"),
        median("spread, Redis Streams", redis, "commands/s", "the same with the queues in Redis"),
        Figure("spread, while they are being sent", beside, "commands/s", note="the sender needs cores, too"),
    ]


def run_hot(services: Services, quick: bool) -> list[Figure]:
    count, rounds = (50_000, 1) if quick else (200_000, 3)
    accounts = loads.account_ids(1)
    messages = loads.deposits(accounts, count)
    rates = []
    for _ in range(rounds):
        with on_broker(services) as workspace:
            rates.append(count / pipeline_seconds(workspace, loads.opens(accounts), messages))
    return [median("one account", rates, "commands/s", f"{count:,} deposits")]


def run_repeats(services: Services, quick: bool) -> list[Figure]:
    """Measure with one command in a hundred twice in the queue. Only commands that took effect are counted."""
    count, rounds = (50_000, 1) if quick else (200_000, 2)
    accounts = loads.account_ids(ACCOUNTS)
    opening, messages = loads.opens(accounts), loads.deposits(accounts, count)
    doubled = loads.with_repeats(messages, 0.01)
    clean, twice = [], []
    for _ in range(rounds):
        with on_broker(services) as workspace:
            clean.append(count / pipeline_seconds(workspace, opening, messages))
        with on_broker(services) as workspace:
            twice.append(count / pipeline_seconds(workspace, opening, doubled, effective=count))
    return [
        median("1 % twice: clean", clean, "commands/s"),
        median("1 % twice", twice, "commands/s", "each repeat is answered from the store and published again"),
    ]


@contextmanager
def on_broker(services: Services) -> Iterator[Workspace]:
    """Give a workspace with the queues in a broker of its own, which is the default of the settings."""
    with Broker() as server, services.workspace(queue=server.url) as workspace:
        yield workspace


def pipeline_seconds(
    workspace: Workspace, opening: loads.Messages, messages: loads.Messages, effective: int | None = None
) -> float:
    """Return the seconds for ``messages``. The accounts are opened first, which also warms the workers up."""
    seconds, _ = pipeline(workspace, opening, messages)
    check_stored(workspace, len(opening) + (len(messages) if effective is None else effective))
    return seconds


def pipeline(
    workspace: Workspace, opening: loads.Messages, messages: loads.Messages, workers: int = 2
) -> tuple[float, float]:
    """Return the seconds until the last stream is published, and the workers' processor time meanwhile."""
    with Processors(workspace, workers) as processors:
        workspace.send(opening)
        processors.wait_published(len(opening))
        before = processors.processor_seconds()
        seconds = timed_run(workspace, processors, messages, len(messages))
        return seconds, processors.processor_seconds() - before


def check_stored(workspace: Workspace, expected: int) -> None:
    stored = workspace.stored()
    if stored != expected:
        raise BenchmarkError(f"{stored} rows are stored, {expected} should be")


def _beside_a_producer(workspace: Workspace, opening: loads.Messages, messages: Sequence[tuple[str, bytes]]) -> float:
    with Processors(workspace) as processors:
        workspace.send(opening)
        processors.wait_published(len(opening))
        started = time.perf_counter()
        sender = threading.Thread(target=workspace.send, args=(messages,))
        sender.start()
        ended = processors.wait_published(len(opening) + len(messages))
        sender.join()
        return ended - started
