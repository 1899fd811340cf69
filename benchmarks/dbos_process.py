"""Transfers of money as durable workflows of DBOS, in an interpreter that has ``dbos`` and not this package.

``python -m benchmarks.dbos_process work NUMBER THREADS`` is one of the processes that serve the queue; it answers when
it is launched. ``python -m benchmarks.dbos_process send`` enqueues transfers: its lines are the files that list them,
and it answers each when all are stored. ``BANK_URL`` names the database, which has the table ``account``.

As its documentation recommends: the steps that write to the database are transactions of a datasource, a queue is
served by several processes, each with an ``executor_id`` of its own, and ``worker_concurrency`` limits the workflows of
a process. The id of a transfer is the id of its workflow, so it cannot run twice. In its favour: its system tables are
in the same database as the accounts, the transactions are READ COMMITTED instead of SERIALIZABLE, and the queue is
looked at more often than once a second.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable

from dbos import (  # type: ignore[import-not-found,unused-ignore]
    DBOS,
    DBOSClient,
    DBOSConfig,
    SQLAlchemyDatasource,
)
from sqlalchemy import create_engine, text  # type: ignore[import-not-found,unused-ignore]

QUEUE = "transfers"
AT_ONCE = 200
"""Workflows that a process has taken from the queue: more than its threads, so that none waits for the next look."""
LOOK = 0.1
"""Seconds between two looks at the queue."""

url = os.environ["BANK_URL"].replace("postgresql://", "postgresql+psycopg://")
bank = SQLAlchemyDatasource.create(url)


@bank.transaction(isolation_level="READ COMMITTED")  # type: ignore[untyped-decorator,unused-ignore]
def debit(account: str, cents: int) -> bool:
    changed = bank.sql_session().execute(
        text("UPDATE account SET cents = cents - :cents WHERE id = :account AND cents >= :cents"),
        {"account": account, "cents": cents},
    )
    return bool(changed.rowcount)


@bank.transaction(isolation_level="READ COMMITTED")  # type: ignore[untyped-decorator,unused-ignore]
def credit(account: str, cents: int) -> bool:
    changed = bank.sql_session().execute(
        text("UPDATE account SET cents = cents + :cents WHERE id = :account"), {"account": account, "cents": cents}
    )
    return bool(changed.rowcount)


@DBOS.workflow(name="transfer")  # type: ignore[untyped-decorator,unused-ignore]
def transfer(source: str, target: str, cents: int) -> str:
    if not debit(source, cents):
        return "refused"
    if not credit(target, cents):
        credit(source, cents)
        return "refused"
    return "completed"


def work(number: str, threads: str) -> None:
    config: DBOSConfig = {
        "name": "bank",
        "system_database_url": url,
        "executor_id": f"worker {number}",
        "max_executor_threads": int(threads),
        "log_level": "WARNING",
    }
    DBOS(config=config)
    DBOS.launch()
    DBOS.register_queue(QUEUE, worker_concurrency=AT_ONCE, polling_interval_sec=LOOK)
    print(json.dumps("launched"), flush=True)
    sys.stdin.read()
    DBOS.destroy()


def send() -> None:
    """Enqueue all transfers of a file in one transaction."""
    engine, client = create_engine(url), DBOSClient(system_database_url=url)
    for line in sys.stdin:
        with open(line.strip()) as file, engine.begin() as connection:
            transfers = json.load(file)
            for id, source, target, cents in transfers:
                options = {"workflow_name": "transfer", "queue_name": QUEUE, "workflow_id": id}
                client.enqueue_in_transaction(connection, options, source, target, cents)
        print(json.dumps(len(transfers)), flush=True)
    client.destroy()
    engine.dispose()


ROLES: dict[str, Callable[..., None]] = {"work": work, "send": send}

if __name__ == "__main__":
    ROLES[sys.argv[1]](*sys.argv[2:])
