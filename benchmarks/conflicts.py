"""What conflicts cost: aggregates that somebody else has changed while a worker had them in its cache."""

from __future__ import annotations

import random
from collections.abc import Sequence

from benchmarks import loads
from benchmarks.figures import Figure, median
from benchmarks.processors import Processors, timed_run
from benchmarks.streams import accepted
from benchmarks.throughput import check_stored
from benchmarks.workspace import Services, Workspace
from enode_django.eventstore.base import StreamRecord
from enode_django.eventstore.statements import TABLE
from sample_project.bank.domain import BankAccount, Deposit

ACCOUNTS = 10_000
SHARES = (0.0, 0.001, 0.01, 0.1)


def run(services: Services, quick: bool) -> list[Figure]:
    """Accounts are opened, so that the workers have them in memory. Then a share of them gets a deposit that the
    workers do not hear of, and all of them the deposits that are measured. Rounds of all shares in turn."""
    count, rounds = (50_000, 1) if quick else (200_000, 3)
    accounts = loads.account_ids(ACCOUNTS)
    opening, messages = loads.opens(accounts), loads.deposits(accounts, count)
    used = list(dict.fromkeys(id for id, _ in messages))
    rates: dict[float, list[float]] = {share: [] for share in SHARES}
    for _ in range(rounds):
        for share, found in rates.items():
            changed = random.Random(3).sample(used, int(share * ACCOUNTS))
            found.append(count / _seconds(services, opening, messages, changed))
    return [
        median(_name(share), found, "commands/s", f"{int(share * ACCOUNTS):,} conflicts in {count:,} commands")
        for share, found in rates.items()
    ]


def _name(share: float) -> str:
    return f"conflicts, {share:.1%} of the accounts" if share else "no conflicts"


def _seconds(services: Services, opening: loads.Messages, messages: loads.Messages, changed: Sequence[str]) -> float:
    with services.workspace() as workspace:
        with Processors(workspace) as processors:
            workspace.send(opening)
            processors.wait_published(len(opening))
            _change(workspace, changed)
            seconds = timed_run(workspace, processors, messages, len(messages))
            processors.wait_reported("conflicts", len(changed))
        check_stored(workspace, len(opening) + len(changed) + len(messages))
    return seconds


def _change(workspace: Workspace, accounts: Sequence[str]) -> None:
    """Store a deposit to each, as a worker that has not heard of these would."""
    columns = StreamRecord._fields
    marks = ", ".join(["%s"] * len(columns))
    with workspace.connect() as connection, connection.cursor() as cursor:
        cursor.executemany(
            f"INSERT INTO {TABLE} ({', '.join(columns)}) VALUES ({marks})".encode(), list(map(_deposited, accounts))
        )


def _deposited(account: str) -> StreamRecord:
    root = BankAccount.open(account, "somebody else")
    root.accept()
    root.deposit(loads.AMOUNT)
    return accepted(root, Deposit)
