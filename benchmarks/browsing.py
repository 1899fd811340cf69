"""The database time of the event browser with 10 million stored streams.

``python -m benchmarks.browsing ROWS`` fills the table and prints milliseconds of database time as JSON: for each kind
of page the rounds, each of another page.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

from benchmarks.figures import Figure, median
from benchmarks.workspace import PROJECT, Services
from enode_django.eventstore.statements import TABLE

ROWS, ROWS_QUICK = 10_000_000, 1_000_000
PORTION = 500_000
ROUNDS = 15
VERSIONS = 20
"""The versions of each account."""
RARE_EVERY = 20_000
BEGIN = datetime(2026, 1, 1, tzinfo=UTC)

# One row per millisecond. A thousand accounts at a time take turns. Ids grow, like generated ones.
FILL = f"""
    INSERT INTO {TABLE} (aggregate_root_type, aggregate_root_id, version, command_id, command_type, created_at, events,
                         metadata)
    SELECT 'bank.BankAccount', 'account-' || lpad((n / {VERSIONS}000 * 1000 + n %% 1000)::text, 28, '0'),
           n %% {VERSIONS}000 / 1000 + 1, 'command-' || lpad(n::text, 28, '0'),
           CASE WHEN n %% {RARE_EVERY} = 0 THEN 'bank.Rare' WHEN n %% 2 = 0 THEN 'bank.Deposit' ELSE 'bank.Withdraw' END,
           %s::timestamptz + n * interval '1 millisecond', %s, %s
    FROM generate_series(%s::bigint, %s::bigint) AS n
"""  # noqa: E501


def run(services: Services, quick: bool) -> list[Figure]:
    rows = ROWS_QUICK if quick else ROWS
    with services.workspace() as workspace:
        command = [sys.executable, "-m", "benchmarks.browsing", str(rows)]
        done = subprocess.run(
            command, cwd=PROJECT, env=workspace.environment, stdout=subprocess.PIPE, check=True, text=True
        )
    pages: dict[str, list[float]] = json.loads(done.stdout)
    figures = [median(f"browsing, {name}", ms, "ms") for name, ms in pages.items()]
    slowest = max(max(ms) for ms in pages.values())
    return [*figures, Figure("browsing, slowest page", slowest, "ms", note=f"of all of these, {rows:,} rows")]


def fill(rows: int) -> None:
    from django.db import connection

    from enode_django.domain.metadata import Metadata
    from enode_django.serialization.codec import encode_metadata, encode_stream
    from sample_project.bank.domain import Deposited

    events = encode_stream([Deposited(amount=Decimal(5), balance=Decimal(5))])
    metadata = encode_metadata(Metadata(user_id="7", request="0198b5d2", correlation_id="0198b5d2-0000-7000-8000"))
    with connection.cursor() as cursor:
        for start in range(0, rows, PORTION):
            cursor.execute(FILL, (BEGIN, events, metadata, start, min(rows, start + PORTION) - 1))
        cursor.execute(f"VACUUM ANALYZE {TABLE}")
        cursor.execute("CHECKPOINT")


@contextmanager
def database_time(taken: list[float]) -> Iterator[None]:
    """Append to ``taken`` the milliseconds of all statements of the block, including the transfer of rows."""
    from django.db import connection

    spent = [0.0]

    def timed(execute: Callable[..., Any], *arguments: Any) -> Any:
        started = time.perf_counter()
        try:
            return execute(*arguments)
        finally:
            spent[0] += time.perf_counter() - started

    with connection.execute_wrapper(timed):
        yield
    taken.append(1_000 * spent[0])


def measure(rows: int) -> dict[str, list[float]]:
    from enode_django.admin import stream_list, stream_search
    from enode_django.runtime import make_store

    chance = random.Random(1)
    store = make_store()

    def listing(**asked: Any) -> Callable[[], object]:
        form = stream_list.Filters(asked, may_read=True)
        assert form.is_valid(), form.errors
        return lambda: (stream_list.listing(form), stream_list.size_in_words(form.alias))

    def search(kind: str, number: int) -> Callable[[], object]:
        return lambda: stream_search.search(store, f"{kind}-{number:028}")

    def moment() -> datetime:
        return BEGIN + timedelta(milliseconds=chance.randrange(rows))

    def place() -> int:
        return chance.randrange(rows // 10, rows)

    kinds: dict[str, Callable[[], Callable[[], object]]] = {
        "first page": lambda: listing(),
        "deep page": lambda: listing(before=place()),
        "deep page backwards": lambda: listing(after=place()),
        "page of a type": lambda: listing(command="bank.Withdraw", before=place()),
        "page of a rare type": lambda: listing(command="bank.Rare", before=place()),
        "page of a type that there is not": lambda: listing(command="bank.None", before=place()),
        "page of a time": lambda: listing(until=moment().isoformat()),
        "page of a type and a time": lambda: listing(command="bank.Withdraw", since=moment().isoformat()),
        "page of an event type": lambda: listing(event="bank.Deposited", before=place()),
        "page of an event type that there is not": lambda: listing(event="bank.None", before=place()),
        "page of a correlation id that there is not": lambda: listing(about="none", before=place()),
        "search of an aggregate": lambda: search("account", chance.randrange(rows // VERSIONS)),
        "search of a command": lambda: search("command", chance.randrange(rows)),
    }
    taken: dict[str, list[float]] = {}
    for name, make in kinds.items():
        for _ in range(ROUNDS):
            ask = make()
            with database_time(taken.setdefault(name, [])):
                ask()
    return taken


def main(rows: int) -> None:
    import django

    django.setup()
    fill(rows)
    print(json.dumps(measure(rows)))


if __name__ == "__main__":
    main(int(sys.argv[1]))
