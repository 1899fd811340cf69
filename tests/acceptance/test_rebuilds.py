"""Projections are rebuilt by Spark while commands go on, and while whatever takes part is killed."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from enode_django import DomainEvent
from enode_django.eventstore.base import StreamRecord
from enode_django.exceptions import SparkUnavailable
from enode_django.ids import new_id
from enode_django.serialization.codec import encode_stream
from enode_django.spark.java import check_java
from sample_project.bank.domain import AccountOpened, Deposit, Deposited, OpenAccount
from sample_project.embedded import Postgres, Redis
from tests.acceptance.load import Load
from tests.acceptance.processors import is_running
from tests.acceptance.rebuilds import CLUSTER, SECONDS, Rebuild, RebuildStack, driver_of, family, java_of, wait_gone
from tests.acceptance.snapshotting.apps import EVERY
from tests.acceptance.waiting import wait_until
from tests.services import services_required

pytestmark = [pytest.mark.acceptance, pytest.mark.timeout(300)]

SUMMARIES, LEDGER = "bank.AccountSummaries", "bank.Ledger"
TABLES = {SUMMARIES: "bank_accountsummary", LEDGER: "bank_ledgerentry"}
READING, MOVEMENTS = "tests.acceptance.reading", "reading.Movements"
"""Nothing but the checkpoints keeps its rows from being there twice."""
UNRULY, REMARKS, PAGES = "tests.acceptance.unruly", "unruly.Remarks", "unruly.Pages"
CALM: dict[str, Any] = {"threads": 3, "varied": True, "pause": 0.1, "rounds": 100}
"""A load that leaves Spark most of the processor."""
ACCOUNTS = [f"account-{number:03}" for number in range(100)]


@pytest.fixture
def stack(faulty_postgres: Postgres, faulty_redis: Redis, processors_directory: Path) -> Iterator[RebuildStack]:
    try:
        check_java()
    except SparkUnavailable as error:
        if services_required():
            raise
        pytest.skip(str(error))
    faulty_postgres.start()
    faulty_redis.start()
    with RebuildStack(faulty_postgres, faulty_redis, processors_directory) as stack:
        yield stack


def open_accounts(stack: RebuildStack) -> None:
    """Each with a deposit, all of it followed."""
    stack.client.send([OpenAccount(aggregate_root_id=account, owner="somebody") for account in ACCOUNTS])
    stack.client.send([Deposit(aggregate_root_id=account, amount=Decimal(5)) for account in ACCOUNTS])
    stack.wait_followed()


# -- commands go on ---------------------------------------------------------------------------------------------------


def test_commands_go_on_while_projections_are_rebuilt_and_while_that_is_undone(stack: RebuildStack, seed: int) -> None:
    stack.start_ready(1, role="command")
    stack.start(1, role="event")
    before = oids(stack)
    with stack.load(seed, **CALM) as load:
        rebuild_under_load(stack, load, SUMMARIES)
        rebuild_under_load(stack, load, LEDGER, "--master", "none")
    check(stack)
    assert not {*oids(stack)} & {*before}
    assert [stack.generation(name) for name in TABLES] == [1, 1]

    with stack.load(seed + 1, **CALM) as load:
        rebuild_under_load(stack, load, SUMMARIES, "--undo", "--master", "none")
        rebuild_under_load(stack, load, LEDGER, "--undo", "--master", "none")
    check(stack)
    assert oids(stack) == before
    assert [stack.generation(name) for name in TABLES] == [0, 0]


def oids(stack: RebuildStack) -> list[int]:
    return [stack.oid(table) for table in TABLES.values()]


def rebuild_under_load(stack: RebuildStack, load: Load, name: str, *options: str) -> None:
    """What is stored while the first handlers wait has to be caught up with."""
    stack.hold(name)
    rebuild = stack.start_rebuild(name, *options)
    stack.wait_held(name, rebuild)
    load.wait_for_rounds(30)
    stack.release(name)
    assert rebuild.wait_end(SECONDS) == 0
    assert rebuild.count(r" 0 rows differ among [1-9]\d* aggregates; swapped") == 1
    load.wait_for_rounds(30)


def check(stack: RebuildStack) -> None:
    stack.wait_followed()
    stack.check(loaded=False)
    stack.check_read_side()


# -- what is killed ---------------------------------------------------------------------------------------------------


def test_an_executor_may_be_killed_and_postgres_restarted_in_the_middle_of_a_transaction(stack: RebuildStack) -> None:
    stack.install(READING, ["reading.Balances", MOVEMENTS])
    stack.start_ready(1, role="all")
    open_accounts(stack)
    stack.hold(MOVEMENTS)
    rebuild = stack.start_rebuild(MOVEMENTS, "--master", CLUSTER, JOBS={})
    kill_executor_of(stack, MOVEMENTS, rebuild)
    stack.postgres.stop()
    stack.postgres.start()
    stack.release(MOVEMENTS)
    assert rebuild.wait_end(SECONDS) == 0
    assert rebuild.count("100 aggregates in .* 0 rows differ among 100 aggregates; swapped") == 1
    stack.wait_followed()
    assert stack.check_read_side()["rows of Movement"] == len(ACCOUNTS)


def test_so_they_may_be_while_snapshots_are_made(stack: RebuildStack) -> None:
    deposits = [Deposited(amount=Decimal(1), balance=Decimal(number)) for number in range(1, EVERY + 1)]
    for account in ACCOUNTS[:20]:
        plant(stack, account, [AccountOpened(owner="x"), *deposits])
    stack.hold("snapshots")
    job = stack.start_on_spark("buildsnapshots", "--spark", "--master", CLUSTER, JOBS={})
    kill_executor_of(stack, "snapshots", job)
    stack.postgres.stop()
    stack.postgres.start()
    stack.release("snapshots")
    assert job.wait_end(SECONDS) == 0
    assert job.count("20 snapshots made, 0 aggregates failed") == 1
    assert stack.query("SELECT version, count(*) FROM enode_django_snapshot GROUP BY version") == [(EVERY + 1, 20)]
    verified = stack.python("manage.py", "buildsnapshots", "--verify", "100")
    assert "20 snapshots are as replayed, 0 differ, 0 were made by other code" in verified
    assert stack.query("SELECT relname FROM pg_class WHERE relname ~ '^enode_staging'") == []


def kill_executor_of(stack: RebuildStack, held: str, by: Rebuild) -> None:
    """That of the task which waits; another one has taken over then."""
    worker = stack.wait_held(held, by)
    first = {pid for pid, name in family(by.pid).items() if name == "java"}
    executor = java_of(worker)
    assert executor in first
    os.kill(executor, signal.SIGKILL)
    wait_until(lambda: not is_running(worker), "the end of what the executor has begun", SECONDS)
    wait_until(lambda: {*map(java_of, stack.held(held))} - first - {None}, "another one has taken over", SECONDS)


def test_a_driver_that_is_killed_takes_spark_along_and_the_next_rebuild_clears_up(stack: RebuildStack) -> None:
    stack.start_ready(1, role="all")
    open_accounts(stack)
    before = stack.in_use(TABLES[LEDGER])
    stack.hold(LEDGER)
    rebuild = stack.start_rebuild(LEDGER)
    worker = stack.wait_held(LEDGER, rebuild)
    spark = family(rebuild.pid)
    assert worker in spark
    assert "java" in spark.values()
    rebuild.signal(signal.SIGKILL)
    wait_gone(spark)
    assert stack.in_use(TABLES[LEDGER]) == before
    left = stack.schemas()
    assert len(left) == 1
    stack.release(LEDGER)

    stack.wait_lease_ran_out()
    assert stack.rebuild(LEDGER, "--master", "none").wait_end() == 0
    assert stack.states("rebuild") == ["failed", "succeeded"]
    assert stack.in_use(TABLES[LEDGER])[0] != before[0]
    assert not {*left} & {*stack.schemas()}
    assert stack.query("SELECT DISTINCT generation FROM enode_django_checkpoint WHERE subscriber = %s", LEDGER)
    stack.check_read_side()


# -- what is found out ------------------------------------------------------------------------------------------------


def test_a_poison_event_is_parked_in_the_rebuilt_tables_as_it_is_in_those_in_use(stack: RebuildStack) -> None:
    stack.start_ready(1, role="all", HANDLER_ATTEMPTS=2, HANDLER_RETRY_DELAY=0.05, SWEEP_INTERVAL=0.2)
    open_accounts(stack)
    large = Decimal(10) ** 30
    events = [AccountOpened(owner="x"), Deposited(amount=large, balance=large), Deposited(amount=-large, balance=large)]
    plant(stack, "poisoned", events)
    wait_until(lambda: parked(stack, SUMMARIES) == [("poisoned", 2)], "it is parked in the tables in use", SECONDS)
    before = stack.in_use(TABLES[SUMMARIES])
    rebuild = stack.rebuild(SUMMARIES, "--master", "none")
    assert rebuild.wait_end() == 0
    assert rebuild.count("parked: poisoned;") == 1
    assert rebuild.count("101 aggregates in .* 1 parked; 0 rows differ among 101 aggregates; swapped") == 1
    assert stack.in_use(TABLES[SUMMARIES])[0] != before[0]
    assert parked(stack, SUMMARIES) == [("poisoned", 2)]
    row = "SELECT balance, version FROM bank_accountsummary WHERE aggregate_root_id = 'poisoned'"
    assert stack.query(row) == [(0, 1)]
    stack.check_read_side("--parked")


def plant(stack: RebuildStack, account: str, events: Sequence[DomainEvent]) -> None:
    """A history as no command makes it."""
    columns = ", ".join(StreamRecord._fields)
    values = ", ".join(["%s"] * len(StreamRecord._fields))
    for version, event in enumerate(events, 1):
        names = ("bank.BankAccount", "bank.Deposit")
        record = StreamRecord(account, version, new_id(), *names, datetime.now(UTC), encode_stream([event]), b"")
        stack.query(f"INSERT INTO enode_django_eventstream ({columns}) VALUES ({values}) RETURNING 1", *record)


def parked(stack: RebuildStack, subscriber: str) -> list[tuple[str, int]]:
    asked = "SELECT aggregate_root_id, version FROM enode_django_parkedevent WHERE subscriber = %s"
    return stack.query(asked, subscriber)


def test_what_new_code_makes_of_the_events_is_swapped_only_if_it_is_accepted(stack: RebuildStack) -> None:
    """It writes other texts, and fails at one account. It makes no difference who does the work, so Spark does not."""
    stack.install(UNRULY, [REMARKS, PAGES])
    stack.start_ready(1, role="all")
    open_accounts(stack)
    before = stack.in_use("unruly_remark")
    (stack.directory / "changed").touch()
    (stack.directory / "failing").touch()
    rebuild = stack.rebuild(REMARKS, "--master", "none")
    assert rebuild.wait_end() == 1
    assert rebuild.count("rows differ among 99 aggregates, and 1 aggregates have not come as far") == 1
    assert rebuild.count("unruly_remark of account-000: text: rebuilt 'SOMEBODY', in use 'somebody'") == 1
    assert rebuild.count("account-007: rebuilt up to version 0, in use up to version 2: see what is parked") == 1
    assert rebuild.count("nothing was swapped; if that is what the new code means, accept the differences") == 1
    assert stack.in_use("unruly_remark") == before
    assert (stack.schemas(), parked(stack, REMARKS)) == ([], [])

    rebuild = stack.rebuild(REMARKS, "--accept-differences", "--master", "none")
    assert rebuild.wait_end() == 0
    assert rebuild.count("parked: account-007;") == 1
    texts = "SELECT text, count(*) FROM unruly_remark GROUP BY text"
    assert stack.query(texts) == [("SOMEBODY", 99)]
    assert parked(stack, REMARKS) == [("account-007", 1)]
    (stack.directory / "failing").unlink()
    stack.python("manage.py", "parked", "retry", "--all")
    assert stack.query(texts) == [("SOMEBODY", 100)]
    stack.check_read_side()


def test_a_projection_that_writes_a_table_without_declaring_it_is_refused(stack: RebuildStack) -> None:
    stack.install(UNRULY, [REMARKS, PAGES])
    stack.start_ready(1, role="all")
    open_accounts(stack)
    before = [stack.in_use(table) for table in ("unruly_page", "unruly_cover")]
    rebuild = stack.rebuild(PAGES, "--accept-differences", "--master", "none")
    assert rebuild.wait_end() == 1
    assert rebuild.count('unruly.Pages needs what it does not declare: relation "unruly_cover" does not exist') >= 1
    assert [stack.in_use(table) for table in ("unruly_page", "unruly_cover")] == before
    assert (stack.schemas(), stack.generation(PAGES)) == ([], 0)


# -- in Celery --------------------------------------------------------------------------------------------------------

TASK = "enode_django.rebuild_projection"


def test_after_a_process_of_celery_was_killed_the_next_task_takes_over(stack: RebuildStack) -> None:
    stack.start_ready(1, role="all")
    open_accounts(stack)
    before = stack.in_use(TABLES[SUMMARIES])
    worker = stack.start_worker(stack.hindered)
    with stack.holding(SUMMARIES):
        stack.celery.send_task(TASK, [SUMMARIES])
        process = driver_of(stack.wait_held(SUMMARIES, worker))
        spark = family(process)
        os.kill(process, signal.SIGKILL)
        wait_gone(spark)
        assert stack.in_use(TABLES[SUMMARIES]) == before
    stack.wait_lease_ran_out()
    task = stack.celery.send_task(TASK, [SUMMARIES])
    wait_until(task.ready, "the task has ended", SECONDS)
    figures = task.get()
    assert (figures["swapped"], figures["differences"], figures["streams"]) == (True, 0, 2 * len(ACCOUNTS))
    asked = "SELECT state, figures FROM enode_django_job WHERE kind = 'rebuild' AND name = %s ORDER BY id"
    assert stack.query(asked, SUMMARIES) == [("failed", {}), ("succeeded", figures)]
    assert stack.in_use(TABLES[SUMMARIES])[0] != before[0]
    stack.check_read_side()


def test_spark_ends_with_a_job_that_is_cancelled_and_with_its_worker(stack: RebuildStack) -> None:
    stack.start_ready(1, role="all")
    open_accounts(stack)
    before = stack.in_use(TABLES[LEDGER])
    worker = stack.start_worker(stack.hindered)
    stack.hold(LEDGER)
    task = stack.celery.send_task(TASK, [LEDGER])
    spark = family(driver_of(stack.wait_held(LEDGER, worker)))
    ((job,),) = stack.query("SELECT id FROM enode_django_job WHERE state = 'running'")
    stack.python("manage.py", "jobs", "cancel", str(job))
    wait_until(lambda: stack.states("rebuild") == ["cancelled"], "the job is cancelled", SECONDS)
    wait_gone(spark)
    wait_until(lambda: task.state == "REVOKED", "the task knows")
    assert (stack.in_use(TABLES[LEDGER]), stack.schemas()) == (before, [])

    stack.hold(LEDGER)
    stack.celery.send_task(TASK, [LEDGER])
    process = driver_of(stack.wait_held(LEDGER, worker))
    spark = {process: "python", **family(process)}
    worker.signal(signal.SIGKILL)
    wait_gone(spark)
    assert stack.in_use(TABLES[LEDGER]) == before
