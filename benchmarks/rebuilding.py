"""Spark over a store of 2,000,000 streams: a projection built anew, and all snapshots; half as many for comparison."""

from __future__ import annotations

import json
from typing import Any

from benchmarks.children import Asked
from benchmarks.figures import Figure, median
from benchmarks.processors import BenchmarkError
from benchmarks.workspace import Services, Workspace

ROUNDS = 3


def run(services: Services, quick: bool) -> list[Figure]:
    accounts, half = (10_000, 10) if quick else (100_000, 10)
    with (
        services.workspace() as workspace,
        Asked("benchmarks.rebuilding_process", accounts, env=environment(workspace)) as process,
    ):
        start = process.answer()["start"]
        smaller = _round(process, half, 1, warm_up=True)
        larger = _round(process, half, 1 if quick else ROUNDS)
    count = f"{2 * half * accounts:,} streams of {accounts:,} accounts"
    return [
        Figure("rebuild: start of Spark", start, "s", note="with its first Python workers; not in what follows"),
        median("rebuild: plain SQL", larger["plain"], "s", "reads the same rows, copies the same result"),
        median("rebuild: plain SQL, sorted", larger["sorted"], "s", "the same by aggregate and version"),
        median("rebuild", larger["rebuild"], "s", f"{count}; caught up, compared and swapped"),
        median("rebuild: replay alone", larger["replay"], "s"),
        median("rebuild, half the streams", smaller["rebuild"], "s"),
        median("snapshots on Spark", larger["snapshots"], "s", f"one for each of {accounts:,} accounts"),
        median("snapshots on Spark, half the streams", smaller["snapshots"], "s"),
        *_memory("rebuild", larger, smaller),
        *_memory("snapshots on Spark", larger, smaller),
    ]


def environment(workspace: Workspace) -> dict[str, str]:
    """Accounts have fewer versions here than there are between two snapshots by default."""
    return {**workspace.environment, "BENCHMARK_SNAPSHOT_EVERY": "5"}


def _round(process: Asked, streams: int, rounds: int, *, warm_up: bool = False) -> dict[str, Any]:
    """``warm_up``: once more before, since what Java does for the first time takes it several times as long."""
    filled = process.ask(f"fill {streams}")
    print(f"  {filled['streams']:,} streams", flush=True)
    if warm_up:
        process.ask("rebuild")
        process.ask("snapshots")
    found: dict[str, Any] = {name: [] for name in ("plain", "sorted", "rebuild", "replay", "snapshots")}
    for _ in range(rounds):
        rebuilt = process.ask("rebuild")
        if (rebuilt["streams"], rebuilt["balance"]) != (filled["streams"], filled["balance"]):
            raise BenchmarkError(f"rebuilt {rebuilt}, should be {filled}")
        made = process.ask("snapshots")
        if (made["made"], made["failed"]) != (filled["accounts"], 0):
            raise BenchmarkError(f"made {made}, should be {filled}")
        for name, seconds in (
            ("rebuild", rebuilt["seconds"]),
            ("replay", rebuilt["replay"]),
            ("snapshots", made["seconds"]),
            ("plain", process.ask("plain")["seconds"]),
            ("sorted", process.ask("sorted")["seconds"]),
        ):
            found[name].append(seconds)
        found["rebuild peaks"], found["snapshots on Spark peaks"] = rebuilt["peaks"], made["peaks"]
        print(f"  {json.dumps({name: values[-1] for name, values in found.items() if isinstance(values, list)})}")
    return found


def _memory(what: str, larger: dict[str, Any], smaller: dict[str, Any]) -> list[Figure]:
    return [
        Figure(f"{what}: peak of {kind}", peak, "MB", note=f"with half the streams {before:.0f}")
        for (kind, peak), before in zip(larger[f"{what} peaks"].items(), smaller[f"{what} peaks"].values(), strict=True)
    ]
