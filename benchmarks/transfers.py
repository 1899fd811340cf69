"""Transfers of money by the sample's process manager, from commands in the queue to completed transfers, beside durable
workflows of DBOS. In both, the first transfers warm the workers up."""

from __future__ import annotations

from decimal import Decimal
from itertools import groupby
from operator import attrgetter

from benchmarks import loads
from benchmarks.dbos_transfers import THREADS, Load, Round, transferred
from benchmarks.figures import Figure, best, median
from benchmarks.peer_environments import DBOS
from benchmarks.processors import BenchmarkError, Processors, timed_run
from benchmarks.workspace import Services, Workspace
from enode_django.domain.aggregate import AggregateRoot
from enode_django.eventstore.base import StreamRecord
from enode_django.eventstore.statements import TABLE
from enode_django.history import replay_records
from sample_project.bank.domain import BankAccount, Deposit, MoneyTransfer, TransferStatus

ACCOUNTS = 10_000
PAID_IN = Decimal(10_000)
"""The balance of each account before, which is more than its transfers can take."""
PROCESSES = 2
"""Of each role: as many command workers as event workers."""
PEERS_PROCESSES = (1, 2, 4)
"""Of the peer, in turns: up to as many as we have."""
STREAMS = 9
"""The streams of a transfer, each the outcome of a command: one starts it, two reserve, two note that, two move the
money, and two note that."""


def run(services: Services, quick: bool) -> list[Figure]:
    """Measure the median of our rounds, and the best of the peer's, whose threads are in one process or in several."""
    count, rounds = (4_000, 1) if quick else (10_000, 3)
    peers_count, peers_rounds = (600, 1) if quick else (2_000, 2)
    load = _load(count)
    found = [_ours(services, load) for _ in range(rounds)]
    note = f"{count:,} transfers between {ACCOUNTS:,} accounts, {PROCESSES} command and {PROCESSES} event workers"
    figures = [
        median("transfers", [one.rate for one in found], "transfers/s", note),
        median("transfers, workers", [one.cost for one in found], "µs", "processor time a transfer"),
    ]
    python = DBOS.python()
    if python is not None:
        load = _load(peers_count)
        turns = PEERS_PROCESSES * peers_rounds
        found = [transferred(services, python, load, processes) for processes in turns]
        note = f"{peers_count:,} transfers, {THREADS} threads in {', '.join(map(str, PEERS_PROCESSES))} processes"
        fastest = max(found, key=attrgetter("rate"))
        figures += [
            best("DBOS transfers", [one.rate for one in found], "transfers/s", note),
            Figure("DBOS transfers, workers", fastest.cost, "µs", note="processor time a transfer, in that round"),
        ]
    return figures


def _load(count: int) -> Load:
    accounts = loads.account_ids(ACCOUNTS)
    before = dict.fromkeys(accounts, PAID_IN)
    transfers = loads.transfers(accounts, count + count // 10)
    after = dict(before)
    for transfer in transfers:
        after[transfer.source] -= transfer.amount
        after[transfer.target] += transfer.amount
    return Load(before, transfers[count:], transfers[:count], after)


def _ours(services: Services, load: Load) -> Round:
    with services.on_broker(["bank.transfers"]) as workspace:
        with Processors(workspace, PROCESSES, role="all") as processors:
            accounts = list(load.before)
            workspace.send(loads.opens(accounts))
            workspace.send(loads.encoded([Deposit(id, amount=PAID_IN) for id in accounts]))
            workspace.send(loads.encoded(load.warming))
            processors.wait_published(2 * len(accounts) + STREAMS * len(load.warming))
            before = processors.processor_seconds()
            streams = STREAMS * len(load.measured)
            seconds = timed_run(workspace, processors, loads.encoded(load.measured), streams)
            spent = processors.processor_seconds() - before
        _check(workspace, load)
    return Round(len(load.measured) / seconds, 1e6 * spent / len(load.measured))


def _check(workspace: Workspace, load: Load) -> None:
    """Raise `BenchmarkError` unless each transfer is completed, and moved its money exactly once."""
    columns = ", ".join(StreamRecord._fields)
    query = f'SELECT {columns} FROM {TABLE} WHERE version IS NOT NULL ORDER BY aggregate_root_id COLLATE "C", version'
    with workspace.connect() as connection:
        records = map(StreamRecord._make, connection.execute(query.encode()).fetchall())
        found = [replay_records(streams) for _, streams in groupby(records, attrgetter("aggregate_root_id"))]
    completed = [one.id for one in found if isinstance(one, MoneyTransfer) and one.status is TransferStatus.COMPLETED]
    if sorted(completed) != sorted(one.aggregate_root_id for one in (*load.warming, *load.measured)):
        raise BenchmarkError(f"{len(completed)} transfers are completed")
    balances = {account.id: _balance(account) for account in found if isinstance(account, BankAccount)}
    if balances != load.after:
        raise BenchmarkError(f"the balances are wrong; they add up to {sum(balances.values())}")


def _balance(account: AggregateRoot) -> Decimal:
    assert isinstance(account, BankAccount)
    if account.outgoing or account.incoming:
        raise BenchmarkError(f"account {account.id} has reservations left")
    return account.balance
