"""The sample's projections, each alone on a full topic, compared with the database and with other libraries."""

from __future__ import annotations

from typing import Any, LiteralString

from benchmarks import feeding, inserts, peer_projections
from benchmarks.figures import Figure, median
from benchmarks.processors import BenchmarkError
from benchmarks.raw_copy import copy_seconds, encoded_rows
from benchmarks.streams import History, history, publish
from benchmarks.workspace import Services, Workspace

ACCOUNTS = 10_000
SUMMARIES, LEDGER = "bank.AccountSummaries", "bank.Ledger"
BOOKED: LiteralString = "SELECT count(*) FROM bank_ledgerentry"
GIVEN_IDS: LiteralString = "SELECT last_value FROM bank_ledgerentry_id_seq"


def run_projection(services: Services, quick: bool) -> list[Figure]:
    """Measure, in each round, writing the store by COPY, which is the baseline, and projecting the same rows."""
    deposits, rounds = (50_000, 1) if quick else (200_000, 3)
    past = history(ACCOUNTS, deposits)
    opened, deposited = encoded_rows(past.opened), encoded_rows(past.deposited)
    raw, starts, rates, redis = [], [], [], []
    for _ in range(rounds):
        with services.on_broker([SUMMARIES]) as workspace:
            raw.append(deposits / copy_seconds(workspace, opened, deposited))
            fed = _summarized(workspace, past)
            starts.append(fed.started)
            rates.append(fed.rate)
        with services.workspace([SUMMARIES]) as workspace:
            copy_seconds(workspace, opened, deposited)
            redis.append(_summarized(workspace, past).rate)
    return [
        median("projection: raw COPY", raw, "rows/s", "batches of 1,000"),
        median("projection: start", starts, "s", "of the workers, to the first row"),
        median("projection", rates, "events/s", f"{deposits:,} deposits over {ACCOUNTS:,} accounts, 2 workers"),
        median("projection, Redis Streams", redis, "events/s", "the same with the events in Redis"),
        *peer_projections.run(services, quick),
    ]


def run_ledger(services: Services, quick: bool) -> list[Figure]:
    deposits, rounds = (20_000, 1) if quick else (100_000, 3)
    past = history(deposits // 20, deposits)
    rows = encoded_rows(past.records)
    rates, alone, side_by_side = [], [], []
    for _ in range(rounds):
        with services.on_broker([LEDGER]) as workspace:
            copy_seconds(workspace, [], rows)
            rates.append(_booked(workspace, past).rate)
        alone.append(inserts.rate(services, 1, deposits // 10))
        side_by_side.append(inserts.rate(services, 2, deposits // 10))
    return [
        median("ledger", rates, "events/s", f"{deposits:,} deposits over {deposits // 20:,} accounts, 2 workers"),
        median("ledger: one by one", alone, "rows/s", "the same create(), a transaction each, one process"),
        median("ledger: one by one, two processes", side_by_side, "rows/s"),
    ]


def _summarized(workspace: Workspace, past: History) -> feeding.Fed:
    publish(workspace, past.records)
    expected = {id: (len(after) + 1, after[-1] if after else 0) for id, after in past.balances.items()}

    def check(connection: feeding.Connection) -> None:
        found = connection.execute("SELECT aggregate_root_id, version, balance FROM bank_accountsummary").fetchall()
        _compare({id: (version, balance) for id, version, balance in found}, expected)

    total = len(past.records)
    return feeding.feed(workspace, "SELECT coalesce(sum(version), 0) FROM bank_accountsummary", total, check)


def _booked(workspace: Workspace, past: History) -> feeding.Fed:
    publish(workspace, past.records)
    expected = {
        (id, version): balance for id, after in past.balances.items() for version, balance in enumerate(after, start=2)
    }

    def check(connection: feeding.Connection) -> None:
        found = connection.execute("SELECT account, version, balance FROM bank_ledgerentry").fetchall()
        if len(found) != len(expected):
            raise BenchmarkError(f"there are {len(found)} rows, {len(expected)} should be")
        _compare({(account, version): balance for account, version, balance in found}, expected)

    return feeding.feed(workspace, BOOKED, len(past.deposited), check, nearly=GIVEN_IDS)


def _compare(found: dict[Any, Any], expected: dict[Any, Any]) -> None:
    if found != expected:
        wrong = [key for key in {**expected, **found} if found.get(key) != expected.get(key)]
        raise BenchmarkError(
            f"{len(wrong)} rows are wrong, {wrong[0]!r} for one: "
            f"it is {found.get(wrong[0])!r}, and should be {expected.get(wrong[0])!r}"
        )
