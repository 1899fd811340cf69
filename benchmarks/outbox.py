"""The outbox: rows relayed to the queue, held against raw COPY, and the latency from a commit until it is handled.

``python -m benchmarks.outbox rows COUNT ROUNDS`` and ``… latency COUNT`` print the figures of a workspace as JSON.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from contextlib import closing
from typing import Any

from benchmarks import loads
from benchmarks.figures import Figure, median
from benchmarks.processors import Processors
from benchmarks.raw_copy import BATCH, batches_of
from benchmarks.workspace import PROJECT, Services, Workspace

WARM_UP = 50
LOOK_AGAIN = 0.0003
"""Seconds between two looks into the store: looking without a pause would take a core from the workers."""
COLUMNS = "aggregate_root_id, command_id, body"
COPY_IN = f"COPY enode_django_outboxcommand ({COLUMNS}) FROM STDIN (FORMAT BINARY)"
COPY_OUT = f"COPY (SELECT {COLUMNS} FROM enode_django_outboxcommand ORDER BY id) TO STDOUT (FORMAT BINARY)"


def run(services: Services, quick: bool) -> list[Figure]:
    with services.workspace() as workspace:
        rates = _measured(workspace, "rows", 20_000 if quick else 100_000, 1 if quick else 5)
    with services.workspace() as workspace, Processors(workspace, processes=1):
        seconds = _measured(workspace, "latency", 200 if quick else 1_000)
    stored, executed = seconds["stored"], seconds["executed"]
    percentiles = statistics.quantiles(stored, n=100)
    return [
        median("outbox relayed", rates["relayed"], "rows/s"),
        median("outbox: raw COPY", rates["copied"], "rows/s", f"the same rows, {BATCH:,} in a transaction"),
        Figure("outbox, commit to stored, p50", percentiles[49] * 1e3, "ms", note=f"{len(stored):,} one after another"),
        Figure("outbox, commit to stored, p99", percentiles[98] * 1e3, "ms"),
        Figure("outbox: execute_command, p50", statistics.median(executed) * 1e3, "ms", note="in turn"),
    ]


def _measured(workspace: Workspace, *arguments: object) -> dict[str, list[float]]:
    command = [sys.executable, "-m", "benchmarks.outbox", *map(str, arguments)]
    done = subprocess.run(
        command, cwd=PROJECT, env=workspace.environment, stdout=subprocess.PIPE, check=True, text=True
    )
    found: dict[str, list[float]] = json.loads(done.stdout)
    return found


def rates(count: int, rounds: int) -> dict[str, list[float]]:
    """Return the rows a second that were relayed, and copied, in each round."""
    from django.db import connection

    from enode_django.outbox import rows
    from enode_django.runtime import make_relay, make_transport
    from enode_django.serialization.codec import decode_command

    accounts, found = loads.account_ids(1_000), dict[str, list[float]](relayed=[], copied=[])
    with closing(make_transport()) as transport:
        relay = make_relay("default", transport)
        for _ in range(rounds):
            messages = loads.deposits(accounts, count)
            for start in range(0, count, BATCH):
                some = messages[start : start + BATCH]
                rows.insert("default", [rows.NewRow(id, decode_command(body).id, body) for id, body in some])
            with connection.cursor() as cursor, cursor.copy(COPY_OUT) as copy:
                batches = batches_of(b"".join(copy))
            _settle(connection)
            started = time.perf_counter()
            assert relay.run() == count
            found["relayed"].append(count / (time.perf_counter() - started))
            _settle(connection)
            started = time.perf_counter()
            with connection.cursor() as cursor:
                for batch in batches:
                    with cursor.copy(COPY_IN) as copy:
                        copy.write(batch)
            found["copied"].append(count / (time.perf_counter() - started))
            with connection.cursor() as cursor:
                cursor.execute("TRUNCATE enode_django_outboxcommand")
    return found


def _settle(connection: Any) -> None:
    with connection.cursor() as cursor:
        cursor.execute("VACUUM ANALYZE enode_django_outboxcommand")
        cursor.execute("CHECKPOINT")


def latencies(count: int) -> dict[str, list[float]]:
    """Return the seconds from the commit of each command until its event is in the store; and those that
    `execute_command` takes, in turn."""
    from django.db import transaction

    from enode_django import execute_command, result_of, send_command
    from sample_project.bank.domain import Deposit, OpenAccount

    accounts = loads.account_ids(10)
    for id in accounts:
        execute_command(OpenAccount(id, owner="somebody"))
    stored, executed = [], []
    for number in range(count + WARM_UP):
        started = time.perf_counter()
        execute_command(Deposit(accounts[number % 10], amount=loads.AMOUNT))
        executed.append(time.perf_counter() - started)
        command = Deposit(accounts[number % 10], amount=loads.AMOUNT)
        with transaction.atomic():
            send_command(command, outbox=True)
        started = time.perf_counter()
        while result_of(command.id, command.aggregate_root_id) is None:
            time.sleep(LOOK_AGAIN)
        stored.append(time.perf_counter() - started)
    return {"stored": stored[WARM_UP:], "executed": executed[WARM_UP:]}


if __name__ == "__main__":
    import django

    django.setup()
    what, *numbers = sys.argv[1:]
    print(json.dumps(rates(*map(int, numbers)) if what == "rows" else latencies(*map(int, numbers))))
