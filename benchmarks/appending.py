"""The cost of appending to a large table, with time-ordered and with random ids, and to a partitioned one.

``python -m benchmarks.appending KIND ROWS…`` fills one table up to each of these sizes, and then appends to it in
batches through the event store. It prints microseconds per row as JSON: for each size the rounds of each load.
"""

from __future__ import annotations

import contextlib
import json
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from decimal import Decimal
from uuid import uuid4

from benchmarks.figures import Figure, median
from benchmarks.workspace import PROJECT, Services
from enode_django.eventstore.base import Outcome, StreamRecord
from enode_django.eventstore.copy_format import encode
from enode_django.eventstore.statements import COPY, TABLE
from enode_django.ids import new_id

SMALL, LARGE, LARGE_QUICK = 100_000, 10_000_000, 1_000_000
BATCH, BATCHES, ROUNDS = 1_000, 10, 9
FILL = 50_000
"""Rows per transaction while the table is filled."""
ORDERED, RANDOM, PARTITIONED = "ordered", "random", "partitioned"
"""The kinds of tables; the ids of the last one are ordered, too."""
PARTITIONS = 16
NEW, OLD = "new aggregates", "old aggregates"

UNIQUE = "SELECT conname, pg_get_constraintdef(oid) FROM pg_constraint WHERE conrelid = %s::regclass AND contype = 'u'"

Rounds = dict[str, list[float]]


def run(services: Services, quick: bool) -> list[Figure]:
    sizes = [SMALL, LARGE_QUICK if quick else LARGE]
    tables = {kind: _measured(services, kind, sizes) for kind in (ORDERED, RANDOM, PARTITIONED)}
    figures = []
    for kind, load, name in [
        (ORDERED, NEW, "append"),
        (ORDERED, OLD, "append to old aggregates"),
        (RANDOM, NEW, "append with random ids"),
        (PARTITIONED, NEW, "append, partitioned"),
        (PARTITIONED, OLD, "append to old aggregates, partitioned"),
    ]:
        small, large = (rounds[load] for rounds in tables[kind])
        figures.append(median(f"{name}, small table", small, "µs/row", f"on {sizes[0]:,} rows"))
        figures.append(median(f"{name}, large table", large, "µs/row", f"on {sizes[1]:,} rows"))
    return figures


def _measured(services: Services, kind: str, sizes: Sequence[int]) -> list[Rounds]:
    with services.workspace() as workspace:
        command = [sys.executable, "-m", "benchmarks.appending", kind, *map(str, sizes)]
        done = subprocess.run(
            command, cwd=PROJECT, env=workspace.environment, stdout=subprocess.PIPE, check=True, text=True
        )
    rounds: list[Rounds] = json.loads(done.stdout)
    return rounds


class Table:
    """The event store's table in a temporary database. Rows are deposits, each to a new aggregate by default."""

    def __init__(self, kind: str) -> None:
        from django.db import connection

        from enode_django.eventstore.postgres import PostgresEventStore
        from enode_django.serialization.codec import encode_stream
        from sample_project.bank.domain import Deposited

        self.store = PostgresEventStore()
        self._is_random = kind == RANDOM
        self.new_id: Callable[[], str] = (lambda: str(uuid4())) if self._is_random else new_id
        self.rows = 0
        self.connection = connection
        self._events = encode_stream([Deposited(amount=Decimal(5), balance=Decimal(5))])
        # Otherwise it would begin after the filling and distort the measurement. Partitions take this over.
        self._execute(f"ALTER TABLE {TABLE} SET (autovacuum_enabled = off)")
        if kind == PARTITIONED:
            self._partition()

    def _partition(self) -> None:
        from django.db.migrations.loader import MigrationLoader

        from enode_django.operations import PartitionEventStream

        state = MigrationLoader(self.connection).project_state()
        with self.connection.schema_editor() as editor:
            PartitionEventStream(PARTITIONS).database_forwards("benchmarks", editor, state, state)

    def records(self, aggregates: Sequence[str], version: int = 1) -> list[StreamRecord]:
        now, new_id, events = datetime.now(UTC), self.new_id, self._events
        return [
            StreamRecord(id, version, new_id(), "bank.BankAccount", "bank.Deposit", now, events, b"")
            for id in aggregates
        ]

    def fill(self, size: int, kept: int) -> list[str]:
        """Fill the table up to ``size`` rows by COPY. Return at least ``kept`` of the new aggregates, evenly spread.

        With random ids the unique indexes are built afterwards, because each row would touch two other pages.
        """
        with self._without_unique_indexes() if self._is_random else contextlib.nullcontext():
            sample = self._fill(size, kept)
        self._execute("CHECKPOINT")
        return sample

    def _fill(self, size: int, kept: int) -> list[str]:
        step, sample = (size - self.rows) // kept, list[str]()
        while self.rows < size:
            ids = [self.new_id() for _ in range(min(FILL, size - self.rows))]
            with self.connection.cursor() as cursor, cursor.copy(COPY) as copy:
                copy.write(encode(self.records(ids)))
            sample += ids[::step]
            self.rows += len(ids)
        return sample

    @contextlib.contextmanager
    def _without_unique_indexes(self) -> Iterator[None]:
        with self.connection.cursor() as cursor:
            cursor.execute(UNIQUE, [TABLE])
            constraints = cursor.fetchall()
        for name, _ in constraints:
            self._execute(f"ALTER TABLE {TABLE} DROP CONSTRAINT {name}")
        yield
        for name, definition in constraints:
            self._execute(f"ALTER TABLE {TABLE} ADD CONSTRAINT {name} {definition}")

    def append(self, records: Sequence[StreamRecord]) -> float:
        """Append in batches, and return microseconds per row."""
        batches = [records[start : start + BATCH] for start in range(0, len(records), BATCH)]
        started = time.perf_counter()
        outcomes = [self.store.append(batch) for batch in batches]
        seconds = time.perf_counter() - started
        assert all(one.outcome is Outcome.STORED for batch in outcomes for one in batch)
        self.rows += len(records)
        return 1e6 * seconds / len(records)

    def _execute(self, statement: str) -> None:
        with self.connection.cursor() as cursor:
            cursor.execute(statement)


def measure(table: Table, size: int) -> Rounds:
    """Measure appending to new aggregates, and of second versions to aggregates sampled from the whole table."""
    count = BATCH * BATCHES
    old = table.fill(size, ROUNDS * count)
    random.Random(1).shuffle(old)
    rounds: Rounds = {NEW: [], OLD: []}
    for number in range(ROUNDS):
        rounds[NEW].append(table.append(table.records([table.new_id() for _ in range(count)])))
        rounds[OLD].append(table.append(table.records(old[number * count : (number + 1) * count], version=2)))
    return rounds


def main(kind: str, sizes: Sequence[int]) -> None:
    import django

    django.setup()
    from enode_django.concurrency.garbage import collect_seldom

    collect_seldom()  # as workers do
    table = Table(kind)
    table.append(table.records([table.new_id() for _ in range(BATCH)]))  # opens the connection
    print(json.dumps([measure(table, size) for size in sizes]))


if __name__ == "__main__":
    main(sys.argv[1], list(map(int, sys.argv[2:])))
