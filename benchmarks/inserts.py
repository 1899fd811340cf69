"""Rows inserted one by one by parallel processes. ``python -m benchmarks.inserts COUNT`` is one of them.

It prepares itself, prints a line, and begins when it receives one.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from subprocess import PIPE

from benchmarks.workspace import PROJECT, Services


def rate(services: Services, processes: int, count: int) -> float:
    """Return the rows per second of all processes, which insert ``count`` each."""
    with services.workspace() as workspace:
        command = [sys.executable, "-m", "benchmarks.inserts", str(count)]
        environment = workspace.environment
        running = [
            subprocess.Popen(command, cwd=PROJECT, env=environment, stdin=PIPE, stdout=PIPE, text=True)
            for _ in range(processes)
        ]
        for process in running:
            assert process.stdout is not None
            process.stdout.readline()
        workspace.checkpoint()
        started = time.perf_counter()
        for process in running:
            assert process.stdin is not None
            process.stdin.write("begin\n")
            process.stdin.flush()
        for process in running:
            process.communicate()
            if process.returncode:
                raise subprocess.CalledProcessError(process.returncode, command)
        return processes * count / (time.perf_counter() - started)


def main(count: int) -> None:
    """Insert a row for each deposit, like the sample's ledger."""
    import django

    django.setup()
    from benchmarks.streams import history
    from enode_django.repository.loading import StoredStamp
    from enode_django.serialization.codec import decode_events
    from sample_project.bank.domain import Deposited
    from sample_project.bank.models import LedgerEntry
    from sample_project.bank.projections import Ledger

    records = history(max(1, count // 20), count).deposited
    events = [event for record in records for event in decode_events(record.events, StoredStamp(record))]
    LedgerEntry.objects.exists()  # opens the connection
    ledger = Ledger()
    ledger.__dict__["insert"] = lambda row: row.save(force_insert=True)  # like ``create``
    print("ready", flush=True)
    sys.stdin.readline()
    for event in events:
        assert isinstance(event, Deposited)
        ledger.deposited(event)
    sys.stdout.flush()
    os._exit(0)  # at once: the teardown of the process is not measured


if __name__ == "__main__":
    main(int(sys.argv[1]))
