"""From commands in the queue to the rows of two projections, compared with raw COPY of the events alone."""

from __future__ import annotations

import time

from benchmarks import loads
from benchmarks.feeding import look_for
from benchmarks.figures import Figure, median
from benchmarks.processors import BenchmarkError, Processors
from benchmarks.raw_copy import copy_seconds, stored_rows
from benchmarks.read_side import BOOKED, GIVEN_IDS, LEDGER, SUMMARIES
from benchmarks.throughput import ACCOUNTS, check_stored
from benchmarks.workspace import Services, Workspace, count

SUMMED_UP = "SELECT coalesce(sum(version), 0) FROM bank_accountsummary"
WRONG = """
    SELECT count(*) FROM bank_accountsummary LEFT JOIN (
        SELECT account, sum(amount) AS balance FROM bank_ledgerentry GROUP BY account
    ) AS booked ON account = aggregate_root_id
    WHERE bank_accountsummary.balance <> coalesce(booked.balance, 0)
"""


def run(services: Services, quick: bool) -> list[Figure]:
    deposits, rounds = (30_000, 1) if quick else (100_000, 3)
    accounts = loads.account_ids(ACCOUNTS)
    opening, messages = loads.opens(accounts), loads.deposits(accounts, deposits)
    rates, raw = [], []
    for _ in range(rounds):
        with services.on_broker([SUMMARIES, LEDGER]) as workspace:
            rates.append(deposits / _seconds(workspace, opening, messages))
            check_stored(workspace, len(opening) + deposits)
            rows = stored_rows(workspace)
        with services.workspace() as target:
            raw.append(deposits / copy_seconds(target, rows[: len(accounts)], rows[len(accounts) :]))
    note = f"{deposits:,} deposits to rows of both projections, 2 command and 2 event workers"
    return [median("end to end", rates, "commands/s", note), median("end to end: raw COPY", raw, "rows/s")]


def _seconds(workspace: Workspace, opening: loads.Messages, messages: loads.Messages) -> float:
    """Return the seconds from the start of the workers on a full queue until both projections have all rows."""
    with workspace.connect() as connection, Processors(workspace, role="all") as processors:
        workspace.send(opening)
        look_for(processors, connection, SUMMED_UP, len(opening))
        processors.freeze()
        workspace.send(messages)
        workspace.checkpoint()
        started = time.perf_counter()
        processors.thaw()
        look_for(processors, connection, GIVEN_IDS, len(messages))  # cheaper than counting the rows again and again
        look_for(processors, connection, BOOKED, len(messages))
        _, ended = look_for(processors, connection, SUMMED_UP, len(opening) + len(messages))
        if wrong := count(connection, WRONG):
            raise BenchmarkError(f"{wrong} balances differ from the ledger")
        return ended - started
