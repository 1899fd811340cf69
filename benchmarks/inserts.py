"""Rows inserted one by one, by processes side by side: ``python -m benchmarks.inserts COUNT`` is one of them.

It prepares itself, prints a line, and begins when it is sent one.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from subprocess import PIPE

from benchmarks.workspace import PROJECT, Services


def rate(services: Services, processes: int, count: int) -> float:
    """Rows a second of all of them, ``count`` each."""
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
    """A row for each deposit, as the sample's ledger makes them."""
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
    LedgerEntry.objects.exists()  # the connection is there
    ledger = Ledger()
    ledger.__dict__["insert"] = lambda row: row.save(force_insert=True)  # as ``create`` does it
    print("ready", flush=True)
    sys.stdin.readline()
    for event in events:
        assert isinstance(event, Deposited)
        ledger.deposited(event)
    sys.stdout.flush()
    os._exit(0)  # at once: tearing down a process is none of the work


if __name__ == "__main__":
    main(int(sys.argv[1]))
