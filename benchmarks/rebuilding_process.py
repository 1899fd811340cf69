"""A process that fills a store with accounts, and lets Spark rebuild their projection and make their snapshots.

``python -m benchmarks.rebuilding_process ACCOUNTS`` answers each line of its input (``fill STREAMS`` each, ``rebuild``,
``snapshots``, ``plain``, ``sorted``) with a line of JSON.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import psutil

AT_ONCE = 5_000


def main(accounts: int) -> None:
    import django

    django.setup()
    from benchmarks.loads import account_ids
    from enode_django.spark.session import spark_session
    from sample_project.bank.domain import BankAccount

    roots = [BankAccount.open(id, f"owner {n}") for n, id in enumerate(account_ids(accounts))]
    started = time.perf_counter()
    with spark_session() as spark:
        # Sessions, workers and their imports are there when work begins.
        spark.range(0, 8, 1, 8).mapInArrow(_warm, "id BIGINT").collect()
        print(json.dumps({"start": time.perf_counter() - started}), flush=True)
        answers: dict[str, Callable[..., dict[str, Any]]] = {
            "fill": lambda streams: fill(roots, int(streams)),
            "rebuild": lambda: measured(lambda: rebuild(spark)),
            "snapshots": lambda: measured_anew(lambda: snapshots(spark)),
            "plain": lambda: plain(""),
            "sorted": lambda: plain("ORDER BY aggregate_root_id, version"),
        }
        for line in sys.stdin:
            name, *arguments = line.split()
            print(json.dumps(answers[name](*arguments)), flush=True)


def _warm(batches: Iterator[Any]) -> Iterator[Any]:
    from enode_django.spark.executors import task

    with task():
        yield from batches


def fill(roots: list[Any], streams: int) -> dict[str, Any]:
    """So many streams more for each account; a store is filled by many accounts at a time, so theirs lie apart."""
    from benchmarks.loads import AMOUNT
    from benchmarks.streams import accepted
    from enode_django.eventstore.postgres import PostgresEventStore
    from sample_project.bank.domain import Deposit, OpenAccount

    store = PostgresEventStore()
    for _ in range(streams):
        for start in range(0, len(roots), AT_ONCE):
            records = []
            for root in roots[start : start + AT_ONCE]:
                command = Deposit if root.version else OpenAccount
                if root.version:
                    root.deposit(AMOUNT)
                records.append(accepted(root, command))
            store.append(records)
    _execute("VACUUM (ANALYZE) enode_django_eventstream")
    return {
        "accounts": len(roots),
        "streams": roots[0].version * len(roots),
        "balance": str(sum(root.balance for root in roots)),
    }


def rebuild(spark: Any) -> dict[str, Any]:
    from enode_django.rebuilding.rebuild import rebuild as rebuild_projection
    from enode_django.spark.rebuild_job import SparkEngine
    from sample_project.bank.models import AccountSummary

    stages: dict[str, float] = {}

    def report(stage: str, /, **figures: object) -> None:
        stages.setdefault(stage, time.perf_counter())

    began = time.perf_counter()
    rebuilt = rebuild_projection("bank.AccountSummaries", SparkEngine(lambda: spark), report, accept_differences=True)
    found = sum(AccountSummary.objects.values_list("balance", flat=True))
    until_caught_up = stages.get("catch up", stages.get("check a sample", began)) - began
    return {"streams": rebuilt.replayed.streams, "balance": str(found), "replay": until_caught_up}


def snapshots(spark: Any) -> dict[str, Any]:
    from enode_django.models import Snapshot
    from enode_django.spark.snapshot_job import build_snapshots

    figures = build_snapshots(spark, None, _ignore)
    return {"made": Snapshot.objects.count(), "failed": figures["failed"]}


def _ignore(stage: str, /, **figures: object) -> None: ...


def plain(order: str) -> dict[str, Any]:
    """The same rows read, and the same result copied, by SQL alone."""
    from django.db import connection

    _execute("CREATE TABLE IF NOT EXISTS plain (LIKE bank_accountsummary INCLUDING ALL)")
    _execute("TRUNCATE plain")
    columns = "aggregate_root_id, version, command_id, aggregate_root_type, command_type, created_at, events, metadata"
    where = "FROM enode_django_eventstream WHERE version IS NOT NULL"
    with connection.cursor() as cursor:
        with cursor.copy("COPY bank_accountsummary TO STDOUT (FORMAT BINARY)") as copy:
            result = list(copy)
        began = time.perf_counter()
        with cursor.copy(f"COPY (SELECT {columns} {where} {order}) TO STDOUT (FORMAT BINARY)") as copy:
            for _ in copy:
                pass
        read = time.perf_counter() - began
        with cursor.copy("COPY plain FROM STDIN (FORMAT BINARY)") as copy:
            for some in result:
                copy.write(some)
    return {"seconds": time.perf_counter() - began, "read": read}


def measured(call: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """With the seconds that it took, and the most memory that each kind of process had meanwhile, in MB."""
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
        while not ended.wait(0.1):
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
