"""The peer of the transfers: DBOS, whose processes are driven from here and measured from outside."""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from decimal import Decimal
from pathlib import Path
from typing import NamedTuple

import psutil
import psycopg

from benchmarks.children import Asked
from benchmarks.feeding import Connection
from benchmarks.processors import BenchmarkError, wait_for
from benchmarks.workspace import Services
from sample_project.bank.domain import StartTransfer

THREADS = 16
"""Of all processes of DBOS together."""
LOOK = 0.05
"""Seconds between two looks, rare enough to leave the cores to the workers."""
_ACCOUNTS = 'CREATE TABLE account (id text COLLATE "C" PRIMARY KEY, cents bigint NOT NULL CHECK (cents >= 0))'
_IS_UNDER_WAY = "SELECT EXISTS (SELECT FROM dbos.workflow_status WHERE status IN ('ENQUEUED', 'PENDING'))"
_ENDED = "SELECT workflow_uuid, status, output FROM dbos.workflow_status WHERE name = 'transfer'"


class Load(NamedTuple):
    """``before`` are the balances of all accounts, ``after`` those after all transfers. ``warming`` come first, and are
    not measured."""

    before: Mapping[str, Decimal]
    warming: Sequence[StartTransfer]
    measured: Sequence[StartTransfer]
    after: Mapping[str, Decimal]


class Round(NamedTuple):
    """``rate`` is in transfers per second; ``cost`` is the workers' processor time per transfer in microseconds."""

    rate: float
    cost: float


def transferred(services: Services, python: Path, load: Load, processes: int) -> Round:
    """Return the round of DBOS, whose workers are stopped while the transfers are enqueued, as ours are."""
    with services.database(migrated=False) as url, psycopg.connect(url, autocommit=True) as connection:
        _open(connection, load.before)
        environment = {**os.environ, "BANK_URL": url}
        with (
            _workers(python, environment, processes) as workers,
            Asked("benchmarks.dbos_process", "send", env=environment, python=python) as sender,
        ):
            _enqueue(sender, load.warming)
            _wait_until_done(connection)
            with _stopped(workers):
                _enqueue(sender, load.measured)
                connection.execute("CHECKPOINT")
                before, started = _processor_seconds(workers), time.perf_counter()
            _wait_until_done(connection)
            seconds, spent = time.perf_counter() - started, _processor_seconds(workers) - before
        _check(connection, load)
    return Round(len(load.measured) / seconds, 1e6 * spent / len(load.measured))


@contextlib.contextmanager
def _workers(python: Path, environment: Mapping[str, str], processes: int) -> Iterator[list[psutil.Process]]:
    """Run the workers. The first one makes the tables."""
    with contextlib.ExitStack() as stack:
        workers = []
        for number in range(processes):
            worker = Asked(
                "benchmarks.dbos_process", "work", number, THREADS // processes, env=environment, python=python
            )
            stack.enter_context(worker).answer()
            workers.append(psutil.Process(worker.pid))
        yield workers


@contextlib.contextmanager
def _stopped(workers: Sequence[psutil.Process]) -> Iterator[None]:
    try:
        for worker in workers:
            worker.suspend()
        yield
    finally:
        for worker in workers:  # also after an error: a stopped process would not see the end of its input
            worker.resume()


def _open(connection: Connection, balances: Mapping[str, Decimal]) -> None:
    connection.execute(_ACCOUNTS)
    with connection.cursor().copy("COPY account FROM STDIN") as copy:
        for id, balance in balances.items():
            copy.write_row((id, _cents(balance)))


def _enqueue(sender: Asked, transfers: Sequence[StartTransfer]) -> None:
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump([(one.id, one.source, one.target, _cents(one.amount)) for one in transfers], file)
        file.flush()
        if sender.ask(file.name) != len(transfers):
            raise BenchmarkError("not all transfers are enqueued")


def _wait_until_done(connection: Connection) -> None:
    wait_for("all workflows have ended", lambda: not _is_under_way(connection), poll=LOOK)


def _is_under_way(connection: Connection) -> bool:
    row = connection.execute(_IS_UNDER_WAY).fetchone()
    return row is not None and bool(row[0])


def _processor_seconds(workers: Sequence[psutil.Process]) -> float:
    return sum(sum(worker.cpu_times()[:2]) for worker in workers)


def _check(connection: Connection, load: Load) -> None:
    """Raise `BenchmarkError` unless each transfer has ended well, and moved its money exactly once."""
    ended = connection.execute(_ENDED).fetchall()
    sent = {one.id for one in (*load.warming, *load.measured)}
    if {id for id, _, _ in ended} != sent or {status for _, status, _ in ended} != {"SUCCESS"}:
        raise BenchmarkError(f"{len(ended)} workflows are there, {len(sent)} should be, and have succeeded")
    if len({output for _, _, output in ended}) != 1:
        raise BenchmarkError("some transfers are refused")
    found: dict[str, int] = dict(connection.execute("SELECT id, cents FROM account").fetchall())
    if found != {id: _cents(balance) for id, balance in load.after.items()}:
        raise BenchmarkError(f"the balances are wrong; they add up to {sum(found.values())}")


def _cents(amount: Decimal) -> int:
    return int(amount.scaleb(2))
