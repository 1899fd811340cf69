"""``python -m benchmarks [names…] [--quick] [--json FILE]``: exit status 1 after errors, else 0, for any figures."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path

from benchmarks import figures
from benchmarks.workspace import SETTINGS, Services
from sample_project.embedded import embedded_services

Benchmark = Callable[[Services, bool], list[figures.Figure]]


ONLY_BY_NAME = frozenset({"append", "browsing", "queue_start"})
"""These take gigabytes of disk and many minutes."""


def benchmarks() -> dict[str, Benchmark]:
    """Return the benchmarks in the order of execution. They are imported here, after Django is set up."""
    from benchmarks import (
        appending,
        browsing,
        conflicts,
        cores,
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
    parser.add_argument("names", nargs="*", help=f"which to run; by default all but {', '.join(ONLY_BY_NAME)}")
    parser.add_argument("--quick", action="store_true", help="smaller loads and single rounds: for a first look")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there, too")
    arguments = parser.parse_args()
    with embedded_services():
        os.environ["DJANGO_SETTINGS_MODULE"] = SETTINGS
        import django

        django.setup()
        known = benchmarks()
        unknown = [name for name in arguments.names if name not in known]
        if unknown:
            parser.error(f"there is no benchmark {unknown[0]!r}; there are {', '.join(known)}")
        names = arguments.names or known.keys() - ONLY_BY_NAME
        chosen = {name: run for name, run in known.items() if name in names}
        with Services(os.environ["DATABASE_URL"], os.environ["REDIS_URL"]) as services:
            machine = figures.machine(services.server_version())
            results, failed = _run(chosen, services, arguments.quick)
    print("\n" + "   ".join(f"{name} {value}" for name, value in machine.items()) + "\n")
    print(figures.table(results))
    if arguments.json:
        arguments.json.write_text(json.dumps(_as_json(machine, results), indent=2))
    return 1 if failed else 0


def _run(chosen: dict[str, Benchmark], services: Services, quick: bool) -> tuple[list[figures.Figure], bool]:
    results: list[figures.Figure] = []
    failed = False
    for name, benchmark in chosen.items():
        print(f"{name} …", flush=True)
        started = time.monotonic()
        try:
            results += benchmark(services, quick)
        except Exception:
            traceback.print_exc()
            failed = True
        print(f"{name}: {time.monotonic() - started:.0f} s", flush=True)
    return results, failed


def _as_json(machine: dict[str, object], results: list[figures.Figure]) -> dict[str, object]:
    return {
        "machine": machine,
        "figures": [vars(figure) for figure in results],
        "ratios": figures.judged(results),
    }


if __name__ == "__main__":
    sys.exit(main())
