"""``python -m benchmarks [names…] [--quick] [--output DIR]``: exit status 1 after errors, else 0, for any figures."""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path

from benchmarks import figures
from benchmarks.workspace import PROJECT, SETTINGS, Services
from sample_project.embedded import embedded_services

Benchmark = Callable[[Services, bool], list[figures.Figure]]


USUAL = (
    "throughput",
    "hot",
    "peer",
    "latency",
    "open_loop",
    "projection",
    "ledger",
    "handled",
    "end_to_end",
    "transfers",
    "start",
)
"""Those that run unless others are named: together they take up to a quarter of an hour."""
ONLY_BY_NAME = frozenset({"append", "browsing", "queue_start"})
"""Not even part of `ALL`: they take gigabytes of disk and many minutes."""
ALL = "all"
OUTPUT = PROJECT / "build" / "benchmarks"


def benchmarks() -> dict[str, Benchmark]:
    """Return the benchmarks in the order of execution. They are imported here, after Django is set up."""
    from benchmarks import (
        appending,
        browsing,
        conflicts,
        cores,
        end_to_end,
        intercepting,
        latency,
        mailboxes,
        memory,
        multi,
        observing,
        open_loop,
        outbox,
        peer,
        posting,
        profile,
        queueing,
        read_side,
        rebuilding,
        recovery,
        rehydrating,
        scheduling,
        shards,
        stalling,
        start,
        throughput,
        transfers,
        unique,
        warming,
    )

    return {
        "throughput": throughput.run,
        "hot": throughput.run_hot,
        "peer": peer.run,
        "latency": latency.run,
        "open_loop": open_loop.run,
        "cores": cores.run,
        "profile": profile.run,
        "repeats": throughput.run_repeats,
        "reports": observing.run,
        "recovery": recovery.run,
        "projection": read_side.run_projection,
        "ledger": read_side.run_ledger,
        "multi": multi.run,
        "transfers": transfers.run,
        "handled": latency.run_handled,
        "end_to_end": end_to_end.run,
        "snapshots": rehydrating.run,
        "warm": warming.run,
        "cache_cost": warming.run_cost,
        "rebuild": rebuilding.run,
        "shards": shards.run,
        "mailboxes": mailboxes.run,
        "middleware": intercepting.run,
        "conflicts": conflicts.run,
        "outbox": outbox.run,
        "unique": unique.run,
        "deadlines": scheduling.run,
        "queue": queueing.run,
        "queue_single": queueing.run_single,
        "queue_latency": queueing.run_latency,
        "queue_backlog": queueing.run_backlog,
        "queue_pipeline": queueing.run_pipeline,
        "queue_start": queueing.run_start,
        "queue_stalls": stalling.run,
        "api": posting.run,
        "start": start.run,
        "memory": memory.run,
        "append": appending.run,
        "browsing": browsing.run,
    }


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", help=f"which to run; by default {', '.join(USUAL)}; or {ALL!r}")
    parser.add_argument("--quick", action="store_true", help="smaller loads and single rounds: for a first look")
    parser.add_argument("--output", type=Path, metavar="DIR", default=OUTPUT, help="where run.json and plots are put")
    arguments = parser.parse_args()
    with embedded_services():
        os.environ["DJANGO_SETTINGS_MODULE"] = SETTINGS
        import django

        django.setup()
        known = benchmarks()
        names = set(arguments.names) or set(USUAL)
        if ALL in names:
            names = names - {ALL} | known.keys() - ONLY_BY_NAME
        if unknown := sorted(names - known.keys()):
            parser.error(f"there is no benchmark {unknown[0]!r}; there are {', '.join(known)}, and {ALL!r}")
        chosen = {name: run for name, run in known.items() if name in names}
        with Services(os.environ["DATABASE_URL"], os.environ["REDIS_URL"]) as services:
            machine = figures.machine(services.server_version())
            run = Run(machine)
            for name, benchmark in chosen.items():
                run.execute(name, benchmark, services, arguments.quick)
                written = run.write(arguments.output)  # each time, so that a run that is broken off leaves its figures
    print(f"all: {sum(run.seconds.values()):.0f} s")
    print("\n" + "   ".join(f"{name} {value}" for name, value in machine.items()) + "\n")
    print(figures.table(run.figures))
    print("\nwritten: " + " ".join(map(str, written)))
    return 1 if run.failed else 0


@dataclasses.dataclass
class Run:
    machine: dict[str, object]
    figures: list[figures.Figure] = dataclasses.field(default_factory=list)
    seconds: dict[str, float] = dataclasses.field(default_factory=dict)
    """Of each benchmark."""
    failed: list[str] = dataclasses.field(default_factory=list)

    def execute(self, name: str, benchmark: Benchmark, services: Services, quick: bool) -> None:
        print(f"{name} …", flush=True)
        started = time.monotonic()
        try:
            self.figures += benchmark(services, quick)
        except Exception:
            traceback.print_exc()
            self.failed.append(name)
        self.seconds[name] = round(time.monotonic() - started, 1)
        print(f"{name}: {self.seconds[name]:.0f} s", flush=True)

    def write(self, directory: Path) -> list[Path]:
        """Write ``run.json`` and the plots. Return their files."""
        from benchmarks import plots  # takes a second to import

        directory.mkdir(parents=True, exist_ok=True)
        file = directory / "run.json"
        content = {**dataclasses.asdict(self), "ratios": figures.judged(self.figures)}
        file.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n")
        return [file, *plots.write(self.figures, directory)]


if __name__ == "__main__":
    sys.exit(main())
