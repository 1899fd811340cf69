"""Scheduled commands: how late they are on an idle system, and what a million that wait cost the write path.

``python -m benchmarks.scheduling COUNT`` prints the lateness of so many commands in a workspace as JSON, in seconds.
"""

from __future__ import annotations

import json
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence

from benchmarks import loads
from benchmarks.figures import Figure, median
from benchmarks.processors import Processors
from benchmarks.throughput import ACCOUNTS, pipeline
from benchmarks.workspace import PROJECT, Services, Workspace

EVERY = 0.1
"""Seconds between two commands that become due, on average."""
FILL = """
    INSERT INTO enode_django_scheduledcommand (aggregate_root_id, command_id, body, due_at)
    SELECT 'account', 'command ' || number, decode(repeat('00', 150), 'hex'), now() + number * interval '1 minute'
    FROM generate_series(1000, 1000 + %s) AS number
"""


def run(services: Services, quick: bool) -> list[Figure]:
    with services.workspace() as workspace, Processors(workspace, processes=1):
        late = _lateness(workspace, 50 if quick else 300)
    percentiles = statistics.quantiles(late, n=100)
    return [
        Figure("deadlines, lateness p50", percentiles[49] * 1e3, "ms", note=f"{len(late)} on an idle system"),
        Figure("deadlines, lateness p99", percentiles[98] * 1e3, "ms"),
        *_beside_many(services, 50_000 if quick else 200_000, 1 if quick else 3),
    ]


def _lateness(workspace: Workspace, count: int) -> list[float]:
    command = [sys.executable, "-m", "benchmarks.scheduling", str(count)]
    done = subprocess.run(
        command, cwd=PROJECT, env=workspace.environment, stdout=subprocess.PIPE, check=True, text=True
    )
    found: list[float] = json.loads(done.stdout)
    return found


def _beside_many(services: Services, count: int, rounds: int, waiting: int = 1_000_000) -> list[Figure]:
    """Measure both in turn."""
    accounts = loads.account_ids(ACCOUNTS)
    opening, messages = loads.opens(accounts), loads.deposits(accounts, count)
    without, beside = list[tuple[float, float]](), list[tuple[float, float]]()
    for _ in range(rounds):
        with services.workspace() as workspace:
            without.append(pipeline(workspace, opening, messages))
        with services.workspace() as workspace:
            with workspace.connect() as connection:
                connection.execute(FILL, (waiting,))
                connection.execute("VACUUM ANALYZE enode_django_scheduledcommand")
                connection.execute("CHECKPOINT")
            beside.append(pipeline(workspace, opening, messages))
    return [
        *_rates("deadlines: none waits", without, count),
        *_rates("deadlines: many wait", beside, count),
    ]


def _rates(name: str, rounds: Sequence[tuple[float, float]], count: int) -> list[Figure]:
    return [
        median(name, [count / seconds for seconds, _ in rounds], "commands/s"),
        median(f"{name}, workers", [1e6 * used / count for _, used in rounds], "µs", "processor time a command"),
    ]


def lateness(count: int) -> list[float]:
    """Return the seconds from each command's time until its event was made. Both clocks are those of the machine."""
    from datetime import UTC, datetime, timedelta

    from enode_django import execute_command, send_command
    from enode_django.models import EventStream
    from sample_project.bank.domain import Deposit, OpenAccount

    (account,) = loads.account_ids(1)
    execute_command(OpenAccount(account, owner="somebody"))
    begin, choose = datetime.now(UTC) + timedelta(seconds=2), random.Random(1)
    times = {}
    for _ in range(count):
        command = Deposit(account, amount=loads.AMOUNT)
        times[command.id] = begin + timedelta(seconds=choose.uniform(0, count * EVERY))
        send_command(command, at=times[command.id])
    while EventStream.objects.count() <= count:
        time.sleep(0.5)
    made = EventStream.objects.filter(command_id__in=times).values_list("command_id", "created_at")
    return [(at - times[id]).total_seconds() for id, at in made]


if __name__ == "__main__":
    import django

    django.setup()
    print(json.dumps(lateness(int(sys.argv[1]))))
