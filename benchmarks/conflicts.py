"""The cost of conflicts: another writer changes aggregates that a worker has in its cache."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import NamedTuple

import psutil

from benchmarks import loads
from benchmarks.figures import Figure, median
from benchmarks.processors import Processors, timed_run
from benchmarks.streams import stored
from benchmarks.throughput import check_stored
from benchmarks.workspace import Services, Workspace
from enode_django.eventstore.base import StreamRecord
from enode_django.eventstore.statements import TABLE
from sample_project.bank.domain import BankAccount, Deposit, OpenAccount

ACCOUNTS = 10_000
SHARES = (0.0, 0.001, 0.01, 0.1)


class Round(NamedTuple):
    """``rate`` is in commands per second; ``cost`` is the workers' processor time per command in microseconds."""

    rate: float
    cost: float


def run(services: Services, quick: bool) -> list[Figure]:
    """Open accounts, so that the workers have them in memory. Then store a deposit to a share of them without the
    workers, and measure deposits to all. The rounds of all shares take turns."""
    count, rounds = (50_000, 1) if quick else (200_000, 3)
    accounts = loads.account_ids(ACCOUNTS)
    opening, messages = loads.opens(accounts), loads.deposits(accounts, count)
    used = list(dict.fromkeys(id for id, _ in messages))
    found: dict[float, list[Round]] = {share: [] for share in SHARES}
    for _ in range(rounds):
        for share, measured in found.items():
            changed = random.Random(3).sample(used, int(share * ACCOUNTS))
            measured.append(_round(services, opening, messages, changed))
    return [figure for share, measured in found.items() for figure in _figures(share, measured, count)]


def _figures(share: float, measured: Sequence[Round], count: int) -> list[Figure]:
    name = f"conflicts, {share:.1%} of the accounts" if share else "no conflicts"
    note = f"{int(share * ACCOUNTS):,} conflicts in {count:,} commands"
    return [
        median(name, [one.rate for one in measured], "commands/s", note),
        median(f"{name}: workers", [one.cost for one in measured], "µs", "processor time, for each command"),
    ]


def _round(services: Services, opening: loads.Messages, messages: loads.Messages, changed: Sequence[str]) -> Round:
    with services.workspace() as workspace:
        with Processors(workspace) as processors:
            workspace.send(opening)
            processors.wait_published(len(opening))
            _change(workspace, changed)
            before = _processor_time(processors)
            seconds = timed_run(workspace, processors, messages, len(messages))
            spent = _processor_time(processors) - before
            processors.wait_reported("conflicts", len(changed))
        check_stored(workspace, len(opening) + len(changed) + len(messages))
    return Round(len(messages) / seconds, spent / len(messages) * 1e6)


def _processor_time(processors: Processors) -> float:
    """Return the processor time of all workers so far, in seconds."""
    return sum(sum(psutil.Process(pid).cpu_times()[:2]) for pid in processors.pids())


def _change(workspace: Workspace, accounts: Sequence[str]) -> None:
    """Store a deposit to each account without the workers."""
    columns = StreamRecord._fields
    marks = ", ".join(["%s"] * len(columns))
    with workspace.connect() as connection, connection.cursor() as cursor:
        cursor.executemany(
            f"INSERT INTO {TABLE} ({', '.join(columns)}) VALUES ({marks})".encode(), list(map(_deposited, accounts))
        )


def _deposited(account: str) -> StreamRecord:
    root = BankAccount(account)
    stored(root, OpenAccount(account, owner="somebody else"))
    return stored(root, Deposit(account, amount=loads.AMOUNT))
