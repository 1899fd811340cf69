"""``python -m benchmarks.peer_projection_process COUNT ENVIRONMENT`` prints events per second.

It is ``eventsourcing``'s runner with its Postgres tracking recorder: each event changes one row of the view and the
tracking in one transaction. In its favour, the events are stored before it starts, and the clock runs from the end of
the first event to that of the last, inside its process.
"""

from __future__ import annotations

import json
import random
import sys
import threading
import time
from decimal import Decimal
from typing import Any
from uuid import UUID

from eventsourcing.domain import DomainEventProtocol
from eventsourcing.persistence import Tracking
from eventsourcing.postgres import PostgresDatastore, PostgresTrackingRecorder
from eventsourcing.projection import Projection, ProjectionRunner
from psycopg.sql import SQL, Identifier

from benchmarks.peer_process import AMOUNT, OPEN_AT_ONCE, Account, Bank

ACCOUNTS = 500

_MAKE = SQL(
    "CREATE TABLE IF NOT EXISTS account_summary (id uuid PRIMARY KEY, owner text, balance numeric, version int)"
)
_OPEN = SQL("INSERT INTO account_summary VALUES (%s, %s, 0, %s)")
_MOVE = SQL("UPDATE account_summary SET balance = %s, version = %s WHERE id = %s")
_SUM = SQL("SELECT sum(balance) AS total FROM account_summary")


class Summaries(PostgresTrackingRecorder):
    def __init__(self, datastore: PostgresDatastore, **options: Any) -> None:
        super().__init__(datastore, **options)
        self.sql_create_statements.append(_MAKE.format(Identifier("account_summary")))

    def opened(self, event: Any, tracking: Tracking) -> None:
        self._change(_OPEN, (event.originator_id, event.owner, event.originator_version), tracking)

    def deposited(self, event: Any, tracking: Tracking) -> None:
        self._change(_MOVE, (event.balance, event.originator_version, event.originator_id), tracking)

    def _change(self, statement: SQL, values: tuple[Any, ...], tracking: Tracking) -> None:
        with self.datastore.transaction(commit=True) as cursor:
            self._insert_tracking(cursor, tracking)
            cursor.execute(statement, values, prepare=True)

    def total(self) -> Decimal:
        with self.datastore.transaction() as cursor:
            cursor.execute(_SUM)
            row = cursor.fetchone()
            assert row is not None
            return Decimal(row["total"])


class SummaryProjection(Projection[Summaries]):
    name = "summaries"
    expected = 0
    done = threading.Event()
    first = last = 0.0
    _count = 0

    def process_event(self, domain_event: DomainEventProtocol[UUID], tracking: Tracking) -> None:
        if type(domain_event).__name__ == "Opened":
            self.view.opened(domain_event, tracking)
        else:
            self.view.deposited(domain_event, tracking)
        self._count += 1
        if self._count == 1:
            self.first = time.perf_counter()
        if self._count == self.expected:
            self.last = time.perf_counter()
            self.done.set()


def rate(count: int, environment: dict[str, str]) -> float:
    _fill(count, environment)
    SummaryProjection.expected = ACCOUNTS + count
    with ProjectionRunner(
        application_class=Bank, projection_class=SummaryProjection, view_class=Summaries, env=environment
    ) as runner:
        projection = runner.projection
        assert isinstance(projection, SummaryProjection)
        while not projection.done.wait(1.0):
            runner.run_forever(0.0)  # raises the projection's error
        if runner.view.total() != count * AMOUNT:
            raise AssertionError(f"the balances add up to {runner.view.total()}, not to {count * AMOUNT}")
        return (projection.expected - 1) / (projection.last - projection.first)


def _fill(count: int, environment: dict[str, str]) -> None:
    """Store the events faster than by commands: deposits are saved together."""
    bank = Bank(env=environment)
    accounts = [Account(f"owner {n}") for n in range(ACCOUNTS)]
    bank.save(*accounts)
    choose = random.Random(1).choice
    for start in range(0, count, OPEN_AT_ONCE):
        for _ in range(min(OPEN_AT_ONCE, count - start)):
            choose(accounts).deposit(AMOUNT)
        bank.save(*accounts)
    bank.close()


if __name__ == "__main__":
    print(rate(int(sys.argv[1]), json.loads(sys.argv[2])))
