"""A projection with rows of many aggregates: on a full topic, and beside other ways to add up."""

from __future__ import annotations

import os
from collections import Counter
from contextlib import ExitStack

from benchmarks import feeding
from benchmarks.children import Asked
from benchmarks.figures import Figure, median
from benchmarks.processors import BenchmarkError
from benchmarks.raw_copy import copy_seconds, encoded_rows
from benchmarks.streams import publish
from benchmarks.workspace import Services, Workspace

KEYS = 10_000
PROCESSES = 2
NAME = "benchmarks.CustomerTotals"
_TABLE = """
    CREATE TABLE benchmarks_customertotal (customer varchar(40) COLLATE "C" PRIMARY KEY, orders integer NOT NULL,
    amount numeric(20, 2) NOT NULL)
"""


def run(services: Services, quick: bool) -> list[Figure]:
    """Measure, in each round, writing the store by COPY, which is the baseline, and projecting the same events, for
    many keys and for one; and then the same sums made in other ways by processes without a queue."""
    events, rounds = (50_000, 1) if quick else (200_000, 3)
    os.environ["BENCHMARK_TOTALS"] = "1"  # for the workers, too
    raw: list[float] = []
    many: list[float] = []
    one: list[float] = []
    for _ in range(rounds):
        for keys, rates in ((KEYS, many), (1, one)):
            with services.on_broker([NAME]) as workspace:
                rate, copied = _projected(workspace, events, keys)
                rates.append(rate)
                if keys == KEYS:
                    raw.append(copied)
    note = f"{events:,} orders of {events // 20:,} aggregates, 2 workers"
    return [
        median("multi: raw COPY", raw, "rows/s", "batches of 1,000"),
        median("multi", many, "events/s", f"{KEYS:,} keys, {note}"),
        median("multi, one key", one, "events/s", note),
        *_ways(services, events // 2, rounds),
    ]


def _projected(workspace: Workspace, events: int, keys: int) -> tuple[float, float]:
    from benchmarks.totals import AMOUNT, customers, history

    records = history(events // 20, events, keys)
    with workspace.connect() as connection:
        connection.execute(_TABLE)
    copied = events / copy_seconds(workspace, [], encoded_rows(records))
    publish(workspace, records)
    expected = Counter(event.customer for event in customers(records))

    def check(connection: feeding.Connection) -> None:
        found = connection.execute("SELECT customer, orders, amount FROM benchmarks_customertotal").fetchall()
        if {customer: (orders, amount) for customer, orders, amount in found} != {
            customer: (orders, orders * AMOUNT) for customer, orders in expected.items()
        }:
            raise BenchmarkError("the rows are wrong")

    progress = "SELECT coalesce(sum(orders), 0) FROM benchmarks_customertotal"
    return feeding.feed(workspace, progress, events, check).rate, copied


def _ways(services: Services, events: int, rounds: int) -> list[Figure]:
    figures = []
    for way, keys, count in (
        ("rows", KEYS, events),
        ("deltas", KEYS, events),
        ("rows", 1, events),
        ("deltas", 1, events),
        ("one", 1, events // 50),
    ):
        rates = [_rate(services, way, keys, count // PROCESSES) for _ in range(rounds)]
        named = {"rows": "rows in memory", "deltas": "deltas in one statement", "one": "F() per event"}[way]
        unit = "one key" if keys == 1 else f"{keys:,} keys"
        figures.append(median(f"multi: {named}, {unit}", rates, "events/s", f"{PROCESSES} processes, no queue"))
    return figures


def _rate(services: Services, way: str, keys: int, count: int) -> float:
    """Return the events per second of all processes together, which handle ``count`` each."""
    with services.workspace([NAME]) as workspace, ExitStack() as stack:
        with workspace.connect() as connection:
            connection.execute(_TABLE)
            if way == "one":
                connection.execute("INSERT INTO benchmarks_customertotal VALUES ('customer 0', 0, 0)")
        children = [
            stack.enter_context(Asked("benchmarks.totals_process", way, keys, count, n, env=workspace.environment))
            for n in range(PROCESSES)
        ]
        for child in children:
            child.answer()
        workspace.checkpoint()
        for child in children:
            child.tell("begin")
        return PROCESSES * count / max(float(child.answer()) for child in children)
