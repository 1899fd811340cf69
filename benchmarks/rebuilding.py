"""Jobs over a store of 2,000,000 streams, and over half of it for comparison: rebuilds of projections on Spark and in
plain processes, one of them of a table with three indexes and a foreign key; and all snapshots on Spark."""

from __future__ import annotations

import json
import statistics
from typing import Any

from benchmarks.children import Asked
from benchmarks.figures import Figure, median
from benchmarks.processors import BenchmarkError
from benchmarks.workspace import Services, Workspace

ROUNDS = 3
QUESTIONS = {
    "rebuild": "rebuild spark",
    "processes": "rebuild processes",
    "details": "rebuild spark details",
    "details in processes": "rebuild processes details",
    "snapshots": "snapshots",
    "plain": "plain",
    "sorted": "sorted",
    "plain details": "plain_details",
}
"""Asked in turn, so that other work of the machine affects all alike."""
REFERENCES = ("plain", "plain details")
"""Asked after each of the others as well: they are short, and all is compared with them."""


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
        Figure("rebuild: start of Spark", start, "s", note="with its first Python workers"),
        median("rebuild: plain SQL", larger["plain"], "s", "reads the same rows, copies the same result"),
        median("rebuild: plain SQL, indexed", larger["plain details"], "s", "and makes three indexes, a foreign key"),
        median("rebuild: plain SQL, sorted", larger["sorted"], "s", "the same by aggregate and version"),
        median("rebuild", larger["rebuild"], "s", f"{count}; caught up, compared and swapped; without Spark's start"),
        Figure("rebuild with Spark's start", start + statistics.median(larger["rebuild"]), "s"),
        median("rebuild: start of processes", larger["start"], "s"),
        median("rebuild in processes", larger["processes"], "s", "without their start"),
        Figure("rebuild with the start of processes", _sum_of_medians(larger, "processes"), "s"),
        median("rebuild, indexed", larger["details"], "s", "a table with three indexes and a foreign key"),
        median("rebuild in processes, indexed", larger["details in processes"], "s", "without their start"),
        Figure("rebuild with the start of processes, indexed", _sum_of_medians(larger, "details in processes"), "s"),
        median("rebuild: making indexes", larger["indexes"], "s", "the indexes and the foreign key alone"),
        median("rebuild: replay alone", larger["replay"], "s"),
        median("rebuild, half the streams", smaller["rebuild"], "s"),
        median("rebuild in processes, half the streams", smaller["processes"], "s"),
        median("snapshots on Spark", larger["snapshots"], "s", f"one for each of {accounts:,} accounts"),
        median("snapshots on Spark, half the streams", smaller["snapshots"], "s"),
        *_memory("rebuild", larger, smaller),
        *_memory("snapshots on Spark", larger, smaller),
    ]


def _sum_of_medians(found: dict[str, Any], engine: str) -> float:
    """Return the seconds of a rebuild with the start of its processes."""
    seconds: float = statistics.median(found["start"]) + statistics.median(found[engine])
    return seconds


def environment(workspace: Workspace) -> dict[str, str]:
    """Return the environment of the process. Accounts have fewer versions here than the default ``snapshot_every``."""
    return {**workspace.environment, "BENCHMARK_SNAPSHOT_EVERY": "5", "BENCHMARK_DETAILS": "1"}


def _round(process: Asked, streams: int, rounds: int, *, warm_up: bool = False) -> dict[str, Any]:
    """Run the rounds. With ``warm_up`` jobs run once before, because Java takes several times as long at first."""
    filled = process.ask(f"fill {streams}")
    print(f"  {filled['streams']:,} streams", flush=True)
    if warm_up:
        process.ask("rebuild spark")
        process.ask("rebuild spark details")
        process.ask("snapshots")
    found: dict[str, Any] = {name: [] for name in (*QUESTIONS, "start", "replay", "indexes")}
    for _ in range(rounds):
        answers = {}
        for name, question in QUESTIONS.items():
            answers[name] = process.ask(question)
            found[name].append(answers[name]["seconds"])
            for reference in REFERENCES if name not in REFERENCES else ():
                found[reference].append(process.ask(QUESTIONS[reference])["seconds"])
        _check(filled, answers)
        found["start"] += [answers[name]["start"] for name in ("processes", "details in processes")]
        found["replay"].append(answers["rebuild"]["replay"])
        found["indexes"].append(answers["details in processes"]["indexes"])
        found["rebuild peaks"] = answers["rebuild"]["peaks"]
        found["snapshots on Spark peaks"] = answers["snapshots"]["peaks"]
        print(f"  {json.dumps({name: round(answer['seconds'], 2) for name, answer in answers.items()})}", flush=True)
        print(f"  in processes: {json.dumps(answers['processes']['stages'])}", flush=True)
    return found


def _check(filled: dict[str, Any], answers: dict[str, Any]) -> None:
    """Raise `BenchmarkError` unless all results agree with the stored events."""
    for name, question in QUESTIONS.items():
        answer = answers[name]
        is_wrong = any(answer.get(key, filled[key]) != filled[key] for key in ("streams", "balance"))
        if question.startswith("rebuild") and is_wrong:
            raise BenchmarkError(f"rebuilt {answer}, should be {filled}")
    made = answers["snapshots"]
    if (made["made"], made["failed"]) != (filled["accounts"], 0):
        raise BenchmarkError(f"made {made}, should be {filled}")


def _memory(what: str, larger: dict[str, Any], smaller: dict[str, Any]) -> list[Figure]:
    return [
        Figure(f"{what}: peak of {kind}", peak, "MB", note=f"with half the streams {before:.0f}")
        for (kind, peak), before in zip(larger[f"{what} peaks"].items(), smaller[f"{what} peaks"].values(), strict=True)
    ]
