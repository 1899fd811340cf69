"""Figures, their required ratios, and the table of both."""

from __future__ import annotations

import dataclasses
import os
import platform
import statistics
from collections.abc import Callable, Sequence
from typing import Any

from benchmarks.interpreter import loop_seconds


@dataclasses.dataclass(frozen=True)
class Figure:
    name: str
    value: float
    unit: str
    rounds: Sequence[float] = ()
    note: str = ""


@dataclasses.dataclass(frozen=True)
class Bar:
    """A requirement: the ``ratio`` of the figures ``needs`` must be ``at_least`` or ``at_most`` a value. With neither,
    the ratio is given for information."""

    name: str
    needs: Sequence[str]
    ratio: Callable[..., float]
    at_least: float | None = None
    at_most: float | None = None


def median(name: str, rounds: Sequence[float], unit: str, note: str = "") -> Figure:
    return Figure(name, statistics.median(rounds), unit, tuple(rounds), note)


def best(name: str, rounds: Sequence[float], unit: str, note: str = "") -> Figure:
    return Figure(name, max(rounds), unit, tuple(rounds), note)


def quantile(values: Sequence[float], share: float) -> float:
    """Return the value that this share of the values does not exceed. Raises `ValueError` if there are too few."""
    if len(values) * (1 - share) < 1:
        raise ValueError(f"{len(values)} values have no quantile {share}")
    return statistics.quantiles(values, n=1_000, method="inclusive")[round(share * 1_000) - 1]


BARS = (
    Bar("spread / raw COPY", ["spread", "raw COPY"], lambda b, a: b / a, at_least=0.30),
    Bar("spread / peer at its best", ["spread", "peer best, spread"], lambda b, d: b / d, at_least=8),
    Bar("spread / peer's defaults", ["spread", "peer defaults, spread"], lambda b, d: b / d, at_least=25),
    Bar("one account / peer at its best", ["one account", "peer best, one account"], lambda c, d: c / d, at_least=8),
    Bar("spread / eventsource-py", ["spread", "eventsource-py, spread"], lambda ours, peer: ours / peer),
    Bar("one account / eventsource-py", ["one account", "eventsource-py, one account"], lambda ours, peer: ours / peer),
    Bar("execute_command p50, ms", ["execute_command p50"], lambda p50: p50, at_most=4),
    Bar("watched / unwatched", ["watched", "unwatched"], lambda w, u: w / u, at_least=0.97),
    Bar("1 % twice / clean", ["1 % twice", "1 % twice: clean"], lambda r, c: r / c, at_least=0.6),
    Bar(
        "peak memory, last tenth / first",
        ["memory after the last tenth", "memory after the first tenth"],
        lambda last, first: last / first,
        at_most=1.05,
    ),
    Bar(
        "peak memory with large events, end / middle",
        ["memory with large events, end", "memory with large events, middle"],
        lambda end, middle: end / middle,
        at_most=1.1,
    ),
    Bar("projection / raw COPY (goal 0.25)", ["projection", "projection: raw COPY"], lambda p, r: p / r, at_least=0.15),
    Bar("projection / peer's runner", ["projection", "peer projection"], lambda p, peer: p / peer, at_least=10),
    Bar("projection / batch peer", ["projection", "batch peer projection"], lambda p, peer: p / peer, at_least=1),
    Bar("end to end / raw COPY", ["end to end", "end to end: raw COPY"], lambda all, raw: all / raw, at_least=0.2),
    Bar("multi / raw COPY", ["multi", "multi: raw COPY"], lambda multi, raw: multi / raw, at_least=0.2),
    Bar(
        "multi / F() per event, one key",
        ["multi, one key", "multi: F() per event, one key"],
        lambda multi, one: multi / one,
        at_least=5,
    ),
    Bar("transfers / DBOS", ["transfers", "DBOS transfers"], lambda ours, peer: ours / peer),
    Bar("ledger / one by one", ["ledger", "ledger: one by one"], lambda b, one: b / one, at_least=5),
    Bar(
        "rehydrating, with snapshots / without",
        ["rehydrating with snapshots", "rehydrating"],
        lambda with_them, without: with_them / without,
        at_least=50,
    ),
    Bar("rehydrating / peer", ["rehydrating", "peer rehydrating"], lambda ours, peer: ours / peer, at_least=5),
    Bar(
        "half the steady rate, from the store / from shared states",
        ["half of it from the store", "half of it from shared states"],
        lambda cold, warm: cold / warm,
        at_least=3,
    ),
    Bar(
        "spread, with shared states / nothing kept",
        ["spread, with shared states", "spread, nothing kept"],
        lambda with_them, without: with_them / without,
        at_least=0.90,
    ),
    Bar(
        "workers' time, with both / nothing kept",
        ["workers, with both", "workers, nothing kept"],
        lambda with_them, without: with_them / without,
        at_most=1.11,
    ),
    Bar("rebuild / plain SQL", ["rebuild", "rebuild: plain SQL"], lambda spark, sql: spark / sql, at_most=4.5),
    Bar(
        "rebuild, indexed / plain SQL, indexed",
        ["rebuild, indexed", "rebuild: plain SQL, indexed"],
        lambda spark, sql: spark / sql,
        at_most=4.5,
    ),
    Bar(
        "rebuild with Spark's start / plain SQL",
        ["rebuild with Spark's start", "rebuild: plain SQL"],
        lambda spark, sql: spark / sql,
        at_most=7,
    ),
    Bar(
        "rebuild in processes / plain SQL",
        ["rebuild in processes", "rebuild: plain SQL"],
        lambda processes, sql: processes / sql,
        at_most=4.5,
    ),
    Bar(
        "rebuild in processes, indexed / plain SQL",
        ["rebuild in processes, indexed", "rebuild: plain SQL, indexed"],
        lambda processes, sql: processes / sql,
        at_most=4.5,
    ),
    Bar(
        "rebuild with the start of processes / plain SQL",
        ["rebuild with the start of processes", "rebuild: plain SQL"],
        lambda processes, sql: processes / sql,
        at_most=7,
    ),
    Bar(
        "rebuild with the start of processes, indexed / plain SQL, indexed",
        ["rebuild with the start of processes, indexed", "rebuild: plain SQL, indexed"],
        lambda processes, sql: processes / sql,
        at_most=7,
    ),
    Bar(
        "snapshots on Spark / plain SQL",
        ["snapshots on Spark", "rebuild: plain SQL"],
        lambda spark, sql: spark / sql,
        at_most=6,
    ),
    Bar(
        "rebuild, twice the streams / half",
        ["rebuild", "rebuild, half the streams"],
        lambda larger, smaller: larger / smaller,
        at_most=2.4,
    ),
    Bar(
        "snapshots on Spark, twice the streams / half",
        ["snapshots on Spark", "snapshots on Spark, half the streams"],
        lambda larger, smaller: larger / smaller,
        at_most=2.4,
    ),
    Bar("browsing, slowest page, ms", ["browsing, slowest page"], lambda slowest: slowest, at_most=200),
    Bar("handled p50, ms", ["handled p50"], lambda p50: p50, at_most=12),
    Bar(
        "append, large table / small",
        ["append, large table", "append, small table"],
        lambda large, small: large / small,
        at_most=1.3,
    ),
    Bar(
        "append to old aggregates, large table / small",
        ["append to old aggregates, large table", "append to old aggregates, small table"],
        lambda large, small: large / small,
        at_most=1.3,
    ),
    Bar(
        "broker / Redis Streams, 1 KB, in",
        ["broker, 1 KB, in", "Redis Streams, 1 KB, in"],
        lambda ours, theirs: ours / theirs,
        at_least=1.0,
    ),
    Bar(
        "broker / RabbitMQ, 1 KB, in",
        ["broker, 1 KB, in", "RabbitMQ, 1 KB, in"],
        lambda ours, theirs: ours / theirs,
        at_least=3,
    ),
    Bar(
        "broker / Redis Streams, 1 KB, out",
        ["broker, 1 KB, out", "Redis Streams, 1 KB, out"],
        lambda ours, theirs: ours / theirs,
        at_least=0.6,
    ),
    Bar(
        "broker / RabbitMQ, 1 KB, out",
        ["broker, 1 KB, out", "RabbitMQ, 1 KB, out"],
        lambda ours, theirs: ours / theirs,
        at_least=3,
    ),
    Bar(
        "broker / Redis Streams, 200 B, in",
        ["broker, 200 B, in", "Redis Streams, 200 B, in"],
        lambda ours, theirs: ours / theirs,
        at_least=1.0,
    ),
    Bar(
        "broker / RabbitMQ, 200 B, in",
        ["broker, 200 B, in", "RabbitMQ, 200 B, in"],
        lambda ours, theirs: ours / theirs,
        at_least=3,
    ),
    Bar(
        "broker / Redis Streams, 200 B, out",
        ["broker, 200 B, out", "Redis Streams, 200 B, out"],
        lambda ours, theirs: ours / theirs,
        at_least=0.6,
    ),
    Bar(
        "broker / RabbitMQ, 200 B, out",
        ["broker, 200 B, out", "RabbitMQ, 200 B, out"],
        lambda ours, theirs: ours / theirs,
        at_least=3,
    ),
    Bar("broker latency p50, ms", ["broker latency p50"], lambda p50: p50, at_most=2),
    Bar(
        "backlog, last tenth / first",
        ["backlog, last tenth", "backlog, first tenth"],
        lambda last, first: last / first,
        at_least=0.9,
    ),
    Bar(
        "broker's memory / low watermark",
        ["broker's memory with held files", "low watermark"],
        lambda taken, watermark: taken / watermark,
        at_most=1.0,
    ),
    Bar(
        "pipeline, broker / Redis Streams",
        ["pipeline on broker", "pipeline on Redis Streams"],
        lambda ours, theirs: ours / theirs,
        at_least=0.9,
    ),
    Bar("broker's pauses, p99.9, ms", ["broker's pauses, p99.9"], lambda pause: pause, at_most=20),
    Bar("broker's start after a stop, s", ["broker's start after a stop"], lambda seconds: seconds, at_most=5),
    Bar("broker's start after a kill, s", ["broker's start after a kill"], lambda seconds: seconds, at_most=5),
    Bar("API / empty view", ["API", "empty view"], lambda api, empty: api / empty, at_least=0.8),
    Bar("start to the first answer, s", ["start, to the first answer"], lambda seconds: seconds, at_most=1.2),
    Bar("start, processor time, s", ["start, processor time"], lambda seconds: seconds, at_most=1.0),
    Bar("manage.py check, with / without the app", ["check with / without"], lambda ratio: ratio, at_most=1.15),
    Bar("idle, memory, MB", ["idle, memory"], lambda megabytes: megabytes, at_most=200),
    Bar("idle, % of a core", ["idle, processor time"], lambda share: share, at_most=1),
    Bar(
        "without middleware / handlers alone",
        ["without middleware", "handlers alone"],
        lambda without, alone: without / alone,
        at_least=0.95,
    ),
    Bar(
        "with one middleware / without",
        ["with one middleware", "without middleware"],
        lambda with_one, without: with_one / without,
        at_least=0.9,
    ),
    *(
        Bar(
            f"{mailboxes} / 1 command mailboxes",
            [f"{mailboxes} command and 1 event mailboxes", "1 command and 1 event mailboxes"],
            lambda several, one: several / one,
            at_least=asked,
        )
        for mailboxes, asked in ((2, 1.6), (4, 2.5))
    ),
    *(
        Bar(
            f"conflicts, {share} / none",
            [f"conflicts, {share} of the accounts", "no conflicts"],
            lambda some, none: some / none,
            at_least=asked,
        )
        for share, asked in (("0.1%", 0.9), ("1.0%", 0.8), ("10.0%", 0.7))
    ),
    *(
        Bar(
            f"workers' time, conflicts, {share} / none",
            [f"conflicts, {share} of the accounts: workers", "no conflicts: workers"],
            lambda some, none: some / none,
            at_most=asked,
        )
        for share, asked in (("0.1%", 1.05), ("1.0%", 1.1), ("10.0%", 1.4))
    ),
    Bar("outbox relayed / raw COPY", ["outbox relayed", "outbox: raw COPY"], lambda r, c: r / c, at_least=0.25),
    Bar(
        "outbox, commit to stored / execute_command",
        ["outbox, commit to stored, p50", "outbox: execute_command, p50"],
        lambda stored, executed: stored / executed,
        at_most=2.5,
    ),
    Bar("deadlines, lateness p99, ms", ["deadlines, lateness p99"], lambda late: late, at_most=250),
    Bar(
        "workers' time, a million wait / none",
        ["deadlines: many wait, workers", "deadlines: none waits, workers"],
        lambda many, none: many / none,
        at_most=1.05,
    ),
    Bar("recovery / anew", ["recovery", "recovery: the same anew"], lambda again, anew: again / anew, at_most=1.5),
)


def judged(figures: Sequence[Figure]) -> list[dict[str, Any]]:
    """Return the results of the bars whose figures are present."""
    values = {figure.name: figure.value for figure in figures}
    results = []
    for bar in BARS:
        if all(name in values for name in bar.needs):
            ratio = bar.ratio(*(values[name] for name in bar.needs))
            asked, verdict = _judged(bar, ratio)
            results.append({"name": bar.name, "ratio": ratio, "bar": asked, "verdict": verdict})
    return results


def _judged(bar: Bar, ratio: float) -> tuple[str, str]:
    """Return what the bar asks for, and whether the ratio meets it; nothing if it asks for nothing."""
    if bar.at_least is not None:
        return f"≥ {bar.at_least:g}", "meets" if ratio >= bar.at_least else "misses"
    if bar.at_most is not None:
        return f"≤ {bar.at_most:g}", "meets" if ratio <= bar.at_most else "misses"
    return "", ""


def table(figures: Sequence[Figure]) -> str:
    lines = [f"{'figure':40} {'value':>12}  {'unit':12} rounds"]
    for figure in figures:
        rounds = "  ".join(number(value) for value in figure.rounds) if len(figure.rounds) > 1 else ""
        note = f"  ({figure.note})" if figure.note else ""
        lines.append(f"{figure.name:40} {number(figure.value):>12}  {figure.unit:12} {rounds}{note}".rstrip())
    lines += ["", f"{'ratio':40} {'value':>12}  {'bar':12} verdict"]
    for row in judged(figures):
        lines.append(f"{row['name']:40} {row['ratio']:12.2f}  {row['bar']:12} {row['verdict']}".rstrip())
    return "\n".join(lines)


def number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.2f}"


def machine(postgres: str) -> dict[str, Any]:
    return {
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "python": f"{platform.python_version()}, a fixed loop in {1_000 * loop_seconds():.0f} ms",
        "postgresql": postgres,
        "system": f"{platform.system()} {platform.machine()}",
    }
