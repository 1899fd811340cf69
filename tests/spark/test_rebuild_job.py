"""A rebuild in Spark's own processes, from the store, and from an archive of most of it."""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from django.core.management import call_command
from django.db.models import Model
from pyspark.sql import SparkSession

from enode_django.eventstore.postgres import PostgresEventStore
from enode_django.jobs.progress import Report
from enode_django.models import ParkedEvent
from enode_django.rebuilding import catch_up_tasks, catching_up
from enode_django.rebuilding.catch_up_tasks import CatchUpTask
from enode_django.rebuilding.engine import InProcess, Plan
from enode_django.rebuilding.rebuild import rebuild
from enode_django.rebuilding.replaying import Replayed
from enode_django.rebuilding.shadow import Shadow
from enode_django.runtime import replay
from enode_django.serialization.codec import encode_stream
from enode_django.spark import rebuild_job
from enode_django.spark.archive import export_events
from enode_django.spark.rebuild_job import SparkEngine
from sample_project.bank.domain import Deposited, TransferConfirmed
from sample_project.bank.models import AccountSummary, LedgerEntry, Payee
from tests.rebuilding.conftest import drop_schemas
from tests.spark.accounts import account, unopened

pytestmark = pytest.mark.django_db(transaction=True)

SUMMARIES, LEDGER = "bank.AccountSummaries", "bank.Ledger"
ACCOUNTS = [f"a{number:02}" for number in range(30)]
MODELS: dict[str, type[Model]] = {SUMMARIES: AccountSummary, LEDGER: LedgerEntry}
ORDERS = {SUMMARIES: ["pk"], LEDGER: ["account", "version"]}

Rows = list[dict[str, Any]]


@pytest.fixture
def store(transactional_db: None) -> Iterator[PostgresEventStore]:
    yield PostgresEventStore()
    drop_schemas()


def silent(stage: str, /, **figures: object) -> None: ...


def rows(name: str) -> Rows:
    found = MODELS[name]._base_manager.order_by(*ORDERS[name]).values()
    return [{column: value for column, value in row.items() if column != "id"} for row in found]


def test_tasks_build_rows_that_they_share(spark: SparkSession, store: PostgresEventStore) -> None:
    """Each transfer is an aggregate of its own, and all are between the same two accounts."""
    confirmed = encode_stream([TransferConfirmed(source="a", target="b")])
    (first,) = account("t", [1])
    transfer = first._replace(aggregate_root_type="bank.MoneyTransfer", events=confirmed)
    store.append([transfer._replace(aggregate_root_id=f"t{n:03}", command_id=f"t{n:03}") for n in range(60)])
    replay("bank.Payees")
    rebuilt = rebuild("bank.Payees", SparkEngine(lambda: spark), silent)
    assert (rebuilt.replayed.streams, rebuilt.comparison.is_equal, rebuilt.is_swapped) == (60, True, True)
    assert list(Payee.objects.values_list("source", "target", "transfers")) == [("a", "b", 60)]


@pytest.mark.parametrize("name", [SUMMARIES, LEDGER])
def test_from_an_archive_and_what_came_since_come_the_rows_that_come_from_the_store(
    spark: SparkSession, store: PostgresEventStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """The rows also replace those in use."""
    store.append([one for id in ACCOUNTS for one in account(id, range(1, 21))])
    export_events(spark, str(tmp_path), silent)
    store.append([one for id in ACCOUNTS[::3] for one in account(id, range(21, 26))])
    store.append([*account("new", range(1, 4)), unopened("unopened")])
    replay(name)
    streams = 20 * len(ACCOUNTS) + 5 * len(ACCOUNTS[::3]) + 3 + 1

    rebuilt = rebuild(name, SparkEngine(lambda: spark), silent)
    assert (rebuilt.replayed.streams, rebuilt.comparison.rows, rebuilt.is_swapped) == (streams, 0, True)
    from_store = rows(name)
    assert len(from_store) == {SUMMARIES: len(ACCOUNTS) + 1, LEDGER: streams - len(ACCOUNTS) - 1}[name]

    changed = MODELS[name]._base_manager.filter(balance=Decimal(24)).update(balance=-1)
    assert changed == len(ACCOUNTS[::3])
    monkeypatch.delattr(rebuild_job, "scans")  # the store is not read for it
    out = io.StringIO()
    call_command("rebuildprojection", name, archive=str(tmp_path), accept_differences=True, stdout=out)
    said = out.getvalue().splitlines()[-1]
    assert said.startswith(f"{name}: {streams} streams of {len(ACCOUNTS) + 2} aggregates in ")
    assert said.endswith(f" {changed} rows differ among {len(ACCOUNTS) + 2} aggregates; swapped")
    assert rows(name) == from_store
    assert not AccountSummary.objects.filter(pk="unopened").exists()
    assert not ParkedEvent.objects.exists()


def test_a_corrected_event_is_read_from_the_store_and_from_an_archive_of_the_original(
    spark: SparkSession, store: PostgresEventStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An event whose correction was taken back after the export is read as it was stored."""
    store.append([one for id in ACCOUNTS[:3] for one in account(id, range(1, 6))])
    replay(LEDGER)
    who: dict[str, Any] = {"by": "ann", "reason": "a typing error"}
    seven = encode_stream([Deposited(amount=Decimal(7), balance=Decimal(7))])
    wrong = store.correct(ACCOUNTS[1], 2, seven, last=0, **who)
    export_events(spark, str(tmp_path), silent)
    store.correct(ACCOUNTS[1], 2, None, last=wrong.number, **who)
    store.correct(ACCOUNTS[0], 2, seven, last=0, **who)
    expected = [dict(row, amount=Decimal(7), balance=Decimal(7))
                if (row["account"], row["version"]) == (ACCOUNTS[0], 2) else row for row in rows(LEDGER)]  # fmt: skip
    rebuild(LEDGER, SparkEngine(lambda: spark), silent, accept_differences=True)
    assert rows(LEDGER) == expected
    LedgerEntry.objects.filter(version=2).update(amount=-1)
    monkeypatch.delattr(rebuild_job, "scans")
    rebuild(LEDGER, SparkEngine(lambda: spark), silent, accept_differences=True, archive=str(tmp_path))
    assert rows(LEDGER) == expected


@pytest.mark.parametrize("name", [SUMMARIES, LEDGER])
def test_what_came_during_the_replay_is_caught_up_with_in_tasks_of_spark(
    spark: SparkSession, store: PostgresEventStore, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr(catch_up_tasks, "ALONE", 10)
    monkeypatch.setattr(catching_up, "ALONE", 10)
    monkeypatch.setattr(catching_up, "TASK_STREAMS", 30)
    store.append([one for id in ACCOUNTS for one in account(id, range(1, 4))])

    class Engine(SparkEngine):
        def replay(self, plan: Plan, report: Report) -> Replayed:
            replayed = super().replay(plan, report)
            store.append([one for id in ACCOUNTS[::2] for one in account(id, range(4, 12))])
            store.append(account("new", range(1, 4)))
            return replayed

        def work_off(self, shadow: Shadow, tasks: Sequence[CatchUpTask]) -> Replayed:
            divided.append(len(tasks))
            return super().work_off(shadow, tasks)

    divided: list[int] = []
    rebuilt = rebuild(name, Engine(lambda: spark), silent)
    assert max(divided) == spark.sparkContext.defaultParallelism > 1
    assert rebuilt.is_swapped
    caught_up = rows(name)
    rebuild(name, InProcess(), silent)
    assert rows(name) == caught_up
    versions = dict(AccountSummary._base_manager.values_list("pk", "version")) if name == SUMMARIES else {}
    assert not versions or (versions["a00"], versions["a01"], versions["new"]) == (11, 3, 3)


def test_a_poison_event_is_parked_in_the_rebuilt_tables(spark: SparkSession, store: PostgresEventStore) -> None:
    large = Decimal(10) ** 30
    (poison,) = account("poisoned", [2])
    poison = poison._replace(events=encode_stream([Deposited(amount=large, balance=large)]))
    store.append([*account("good", range(1, 4)), *account("poisoned", [1]), poison, *account("poisoned", [3])])
    out = io.StringIO()
    call_command("rebuildprojection", SUMMARIES, accept_differences=True, stdout=out)
    assert out.getvalue().splitlines()[-1].endswith("swapped")
    assert [(row["pk"], row["version"]) for row in rows_of_all()] == [("good", 3), ("poisoned", 1)]
    assert list(ParkedEvent.objects.values_list("aggregate_root_id", "version").distinct()) == [("poisoned", 2)]


def rows_of_all() -> Rows:
    return list(AccountSummary._base_manager.order_by("pk").values("pk", "version"))
