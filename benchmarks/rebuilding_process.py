"""A process that fills a store with accounts, rebuilds their projections and makes their snapshots.

``python -m benchmarks.rebuilding_process ACCOUNTS`` answers each line of its input with a line of JSON: ``fill
STREAMS`` (for each account); ``rebuild spark`` and ``rebuild processes``, followed by ``details`` for the table with
indexes; ``snapshots``; ``plain``, ``sorted`` and ``plain_details``.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Any

import psutil

if TYPE_CHECKING:
    from enode_django.rebuilding.engine import Engine

AT_ONCE = 5_000
LOOK_EVERY = 0.5
"""Seconds between looks at the memory: each takes a millisecond and more of the measured work's cores."""


def main(accounts: int) -> None:
    import django

    django.setup()
    from benchmarks.details import make_tables
    from benchmarks.loads import account_ids
    from enode_django.spark.session import spark_session
    from sample_project.bank.domain import BankAccount

    make_tables()
    roots = [BankAccount(id) for id in account_ids(accounts)]
    started = time.perf_counter()
    with spark_session() as spark:
        # Starts the session, the workers and their imports before the measurement.
        spark.range(0, 8, 1, 8).mapInArrow(_warm, "id BIGINT").collect()
        print(json.dumps({"start": time.perf_counter() - started}), flush=True)
        answers: dict[str, Callable[..., dict[str, Any]]] = {
            "fill": lambda streams: fill(roots, int(streams)),
            "rebuild": rebuild,
            "snapshots": lambda: measured_anew(lambda: snapshots(spark)),
            "plain": lambda: plain(""),
            "sorted": lambda: plain("ORDER BY aggregate_root_id, version"),
            "plain_details": plain_details,
        }
        for line in sys.stdin:
            name, *arguments = line.split()
            print(json.dumps(answers[name](*arguments)), flush=True)


def _warm(batches: Iterator[Any]) -> Iterator[Any]:
    from enode_django.spark.executors import task

    with task():
        yield from batches


def fill(roots: list[Any], streams: int) -> dict[str, Any]:
    """Store that many more streams for each account. Accounts take turns, as in a real store, so that the streams of
    one are not adjacent."""
    from benchmarks.loads import AMOUNT
    from benchmarks.streams import stored
    from enode_django.eventstore.postgres import PostgresEventStore
    from sample_project.bank.domain import Deposit, OpenAccount

    store = PostgresEventStore()
    for _ in range(streams):
        for start in range(0, len(roots), AT_ONCE):
            records = []
            for root in roots[start : start + AT_ONCE]:
                opens = OpenAccount(root.id, owner=f"owner {root.id}")
                records.append(stored(root, Deposit(root.id, amount=AMOUNT) if root.version else opens))
            store.append(records)
    _execute("VACUUM (ANALYZE) enode_django_eventstream")
    return {
        "accounts": len(roots),
        "streams": roots[0].version * len(roots),
        "balance": str(sum(root.balance for root in roots)),
    }


def rebuild(engine: str, which: str = "") -> dict[str, Any]:
    """Rebuild a projection, and measure the start of the engine and the rebuild separately. The session of Spark is
    already running. The peaks of memory are those of the rebuild."""
    from benchmarks.details import AccountDetails, Details
    from enode_django.rebuilding.rebuild import rebuild as rebuild_projection
    from sample_project.bank.models import AccountSummary

    name, model = (Details.name, AccountDetails) if which else ("bank.AccountSummaries", AccountSummary)
    stages: dict[str, float] = {}

    def report(stage: str, /, **figures: object) -> None:
        stages.setdefault(stage, time.perf_counter())

    before = time.perf_counter()
    with _started(engine, name) as chosen:
        began = time.perf_counter()
        answer = measured(
            lambda: {"streams": rebuild_projection(name, chosen, report, accept_differences=True).replayed.streams}
        )
    told = [*sorted(stages.values()), began + answer["seconds"]]
    seconds = {stage: told[told.index(at) + 1] - at for stage, at in stages.items()}
    after = [at for stage, at in stages.items() if stage not in ("replay",)]
    return {
        **answer,
        "balance": str(sum(model._default_manager.values_list("balance", flat=True))),
        "start": began - before,
        "replay": min(after, default=began) - began,
        "indexes": sum(seconds.get(stage, 0.0) for stage in ("make indexes", "make foreign keys")),
        "stages": seconds,
    }


@contextmanager
def _started(engine: str, projection: str) -> Iterator[Engine]:
    """Open an engine whose processes have loaded the project, as Spark's have."""
    from enode_django.batch import engine_for
    from enode_django.concurrency.cores import usable_cores
    from enode_django.rebuilding.pool import Pool
    from enode_django.rebuilding.processes import Processes
    from enode_django.rebuilding.target import Target
    from enode_django.rebuilding.task_messages import Task

    if engine == "spark":
        with engine_for(engine=engine) as on_spark:
            yield on_spark
        return
    target = Target.of(projection)
    with closing(Pool(usable_cores())) as pool:
        pool.run([Task(target.shadow(target.generation()), None)] * pool.size)
        yield Processes(pool)


def snapshots(spark: Any) -> dict[str, Any]:
    from enode_django.models import Snapshot
    from enode_django.spark.snapshot_job import build_snapshots

    figures = build_snapshots(spark, None, _ignore)
    return {"made": Snapshot.objects.count(), "failed": figures["failed"]}


def _ignore(stage: str, /, **figures: object) -> None: ...


def plain(order: str) -> dict[str, Any]:
    """Measure reading the same rows and copying the same result by SQL alone."""
    from django.db import connection

    _execute("CREATE TABLE IF NOT EXISTS plain (LIKE bank_accountsummary INCLUDING ALL)")
    _execute("TRUNCATE plain")
    with connection.cursor() as cursor:
        with cursor.copy("COPY bank_accountsummary TO STDOUT (FORMAT BINARY)") as copy:
            result = list(copy)
        began = time.perf_counter()
        with cursor.copy(f"COPY (SELECT {COLUMNS} FROM {STREAMS} {order}) TO STDOUT (FORMAT BINARY)") as copy:
            for _ in copy:
                pass
        read = time.perf_counter() - began
        with cursor.copy("COPY plain FROM STDIN (FORMAT BINARY)") as copy:
            for some in result:
                copy.write(some)
    return {"seconds": time.perf_counter() - began, "read": read}


def plain_details() -> dict[str, Any]:
    """Measure the same for the table with indexes, which are created after the rows."""
    from django.db import connection

    _execute("DROP TABLE IF EXISTS plain_details")
    with connection.cursor() as cursor:
        with cursor.copy("COPY benchmarks_accountdetails TO STDOUT (FORMAT BINARY)") as copy:
            result = list(copy)
        began = time.perf_counter()
        with cursor.copy(f"COPY (SELECT {COLUMNS} FROM {STREAMS}) TO STDOUT (FORMAT BINARY)") as copy:
            for _ in copy:
                pass
        cursor.execute("CREATE TABLE plain_details (LIKE benchmarks_accountdetails)")
        with cursor.copy("COPY plain_details FROM STDIN (FORMAT BINARY)") as copy:
            for some in result:
                copy.write(some)
        for what in INDEXES:
            cursor.execute(f"ALTER TABLE plain_details ADD {what}" if "KEY" in what else f"CREATE INDEX ON {what}")
    return {"seconds": time.perf_counter() - began}


COLUMNS = "aggregate_root_id, version, command_id, aggregate_root_type, command_type, created_at, events, metadata"
STREAMS = "enode_django_eventstream WHERE version IS NOT NULL"
INDEXES = (
    "PRIMARY KEY (aggregate_root_id)",
    "plain_details (owner)",
    "plain_details (branch_id, balance DESC)",
    "plain_details (paid_at)",
    "FOREIGN KEY (branch_id) REFERENCES benchmarks_branch (id) DEFERRABLE INITIALLY DEFERRED",
)


def measured(call: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Return the result of the call with its seconds, and the peak memory of each kind of process in MB."""
    with _peaks() as peaks:
        began = time.perf_counter()
        found = call()
        seconds = time.perf_counter() - began
    return {**found, "seconds": seconds, "peaks": {kind: peak / 1e6 for kind, peak in peaks.items()}}


def measured_anew(call: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    _execute("TRUNCATE enode_django_snapshot")
    return measured(call)


@contextmanager
def _peaks() -> Iterator[dict[str, float]]:
    peaks: dict[str, float] = {"driver": 0, "jvm": 0, "python worker": 0}
    ended = threading.Event()

    def look() -> None:
        own = psutil.Process()
        while not ended.wait(LOOK_EVERY):
            peaks["driver"] = max(peaks["driver"], own.memory_info().rss)
            for child in own.children(recursive=True):
                try:
                    kind = "jvm" if child.name() == "java" else "python worker"
                    peaks[kind] = max(peaks[kind], child.memory_info().rss)
                except psutil.Error:
                    continue

    thread = threading.Thread(target=look, daemon=True)
    thread.start()
    try:
        yield peaks
    finally:
        ended.set()
        thread.join()


def _execute(statement: str) -> None:
    from django.db import connection

    with connection.cursor() as cursor:
        cursor.execute(statement)


if __name__ == "__main__":
    main(int(sys.argv[1]))
